"""What a handler does to what it was given, nobody else ever sees.

client-go's MutationDetector finds handlers that spoil the cache; here there is nothing to spoil.
"""

import contextlib

import pytest

from tests.rooms.informer.shapes import made, pod, rest, running


def whole(node: str, **metadata):
    """A pod with lists in maps and maps in lists."""
    made_pod = pod("a", node=node, labels={"app": "web"}, annotations={"note": "x"}, **metadata)
    made_pod["spec"]["containers"] = [{"name": "c", "env": [{"name": "A", "value": "1"}]}]
    return made_pod


def spoil(value):
    """Change everything that can be reached and changed, inside out."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in list(children):
        spoil(child)
    with contextlib.suppress(AttributeError, TypeError):  # what can't be changed, and what refuses it
        value.clear()


def spoil_view(obj):
    """As far as a view lets one get to its inside."""
    for part in (*obj.values(), obj.to_dict()):
        spoil(part)


class Spoils:
    """A handler that ruins what it gets. It is called on the loop, without threads."""

    async def on_add(self, obj, is_in_initial_list):
        spoil_view(obj)

    async def on_update(self, old, new):
        spoil_view(old)
        spoil_view(new)

    async def on_delete(self, obj):
        spoil_view(obj)


class Looks:
    def __init__(self):
        self.seen = []

    async def on_add(self, obj, is_in_initial_list):
        self.seen.append(obj.to_dict() | dict(obj))

    async def on_update(self, old, new):
        self.seen += (dict(old), dict(new))

    async def on_delete(self, obj):
        self.seen.append(dict(obj))


@pytest.mark.client_go(108, "MutationDetector")
async def test_what_one_handler_ruins_neither_the_cache_nor_another_handler_sees():
    """Adds, both states of updates and deletes; nested maps and lists, too."""
    source, informer, clock = made(indexers={"app": lambda obj: [obj.labels["app"]]})
    looks = Looks()
    async with running(informer, clock):
        informer.add_event_handler(Spoils())
        informer.add_event_handler(looks)
        source.add(whole("n1"))
        await rest(clock)
        cached = informer.lister.get("demo/a").to_dict()
        source.modify(whole("n2"))
        await rest(clock)
        found = [dict(view) for view in informer.lister.by_index("app", "web")]
        source.delete("demo/a")
        await rest(clock)
    shown = [(o["spec"]["nodeName"], o["spec"]["containers"], o["metadata"]["labels"]) for o in looks.seen]
    rest_of_it = (whole("")["spec"]["containers"], {"app": "web"})
    assert shown == [(node, *rest_of_it) for node in ("n1", "n1", "n2", "n2")]
    assert cached == looks.seen[0]
    assert found == [looks.seen[2]]
