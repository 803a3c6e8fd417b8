"""declctl as a library: an informer with one index, as docs/library.md shows."""

import asyncio
import sys
import threading
from typing import Any

from protocol import KINDS, SENT, Burner, Counter, arguments, say, serve

from declctl import Client, Registration, SharedIndexInformer, SharedInformerFactory, __version__, field_index

INDEX = "byField"


class Sync:
    """A handler that counts, in a thread of its own."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def on_add(self, _obj: Any, _initial: bool) -> None:
        self._counter.added()

    def on_update(self, _old: Any, new: Any) -> None:
        self._counter.changed(new)

    def on_delete(self, _obj: Any) -> None:
        pass


class Async:
    """A handler that counts, on the loop."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    async def on_add(self, _obj: Any, _initial: bool) -> None:
        self._counter.added()

    async def on_update(self, _old: Any, new: Any) -> None:
        self._counter.changed(new)

    async def on_delete(self, _obj: Any) -> None:
        pass


class Burning(Burner):
    """A handler that keeps a core busy from the first change on."""

    def on_add(self, _obj: Any, _initial: bool) -> None:
        pass

    def on_update(self, _old: Any, _new: Any) -> None:
        self.burn()

    def on_delete(self, _obj: Any) -> None:
        pass


async def main() -> None:
    """Runs the informer until `serve` ends the process."""
    options = arguments(__doc__, listeners=("none", "sync", "async"))
    sys.setswitchinterval(0.0002)  # as docs/library.md says, for handlers that compute
    kind = KINDS[options.kind]
    client = await Client.connect(kubeconfig=options.kubeconfig)
    async with SharedInformerFactory(client) as factory:
        informer = factory.informer(
            kind.api_version, kind.kind, indexers={INDEX: field_index(kind.field_path)}
        )
        counter = Counter(options.objects, lambda obj: obj.annotations[SENT], lambda: merged(informer))
        listeners: list[Registration] = []
        if options.listener != "none":
            handler = Sync(counter) if options.listener == "sync" else Async(counter)
            listeners.append(informer.add_event_handler(handler, name="counting"))
        if options.burn:
            listeners.append(informer.add_event_handler(Burning(), name="burning"))
        await factory.wait_for_cache_sync()
        say("synced", objects=len(informer.lister.keys()), version=f"declctl {__version__}")
        threading.Thread(target=obey, args=(informer, counter), daemon=True).start()
        while True:
            await asyncio.sleep(0.5)
            counter.look()


def merged(informer: SharedIndexInformer) -> int:
    """The number of changes that were merged before their delivery to the counting handler."""
    handlers = informer.statistics().processor.handlers
    return handlers["counting"].merged if "counting" in handlers else 0


def obey(informer: SharedIndexInformer, counter: Counter) -> None:
    """Serves the commands of standard input."""
    lister = informer.lister

    def read() -> int:
        return len(list(lister.by_index(INDEX, value)))

    value = min(lister.index_values(INDEX))
    serve(counter=counter, read=read)


asyncio.run(main())
