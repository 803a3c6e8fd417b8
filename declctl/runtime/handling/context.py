"""What a hook receives as `ctx`."""

import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from declctl.informer import Lister
from declctl.objects import ObjectView

Json = None | bool | int | float | str | list[Any] | dict[str, Any]


class Memo(MutableMapping[str, Json]):
    """What a handler remembers: JSON-like values that survive reloads.

    A value is copied in, so that no object of a generation's own classes can be carried over by
    accident; anything that JSON can't write is refused with TypeError.
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, Json] = {}

    def __getitem__(self, name: str) -> Json:
        return self._values[name]

    def __setitem__(self, name: str, value: Json) -> None:
        try:
            self._values[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError) as fault:
            raise TypeError(
                f"ctx.memo[{name!r}] can't hold a {type(value).__name__}: a memo outlives the code that "
                f"wrote it, so it keeps None, booleans, numbers, strings, lists and dicts only ({fault})"
            ) from fault

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Memo({self._values!r})"


class Listers(Mapping[str, Lister]):
    """`ctx.listers["pods"]`: the caches by the names of the manifest's resources."""

    def __init__(self, listers: Mapping[str, Lister]) -> None:
        self._listers = listers

    def __getitem__(self, name: str) -> Lister:
        try:
            return self._listers[name]
        except KeyError:
            known = ", ".join(sorted(self._listers)) or "none"
            raise KeyError(f"no resource is named {name!r}; the manifest declares: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._listers)

    def __len__(self) -> int:
        return len(self._listers)


class Cluster(Protocol):
    """What a context needs of the connection to a cluster."""

    @property
    def client(self) -> Any:
        """The official asynchronous ApiClient."""
        ...

    @property
    def sync_client(self) -> Any:
        """The official synchronous ApiClient."""
        ...

    def record_event(self, obj: ObjectView, event: Mapping[str, str]) -> None:
        """Post a Kubernetes Event about an object, in the background."""
        ...


@dataclass(frozen=True, slots=True)
class HandlerEnvironment:
    """What all contexts of one handler of one generation share. `log` is a structlog logger."""

    handler: str
    generation: int
    listers: Listers
    config: Mapping[str, Any]
    cluster: Cluster
    log: Any
    dry_run: bool = False


class HandlerContext:
    """The world of one call: cheap to make, and everything in it is made when it is asked for.

    It is valid for the length of the call and may be used from the thread or the loop that the
    hook runs on. `remember` gives the memo; it is asked when the hook does.
    """

    __slots__ = ("_key", "_log", "_memo", "_remember", "_world")

    def __init__(
        self, world: HandlerEnvironment, remember: Callable[[], Memo], key: str | None = None
    ) -> None:
        self._memo: Memo | None = None
        self._remember = remember
        self._world = world
        self._key = key
        self._log: Any = None

    @property
    def handler(self) -> str:
        """The handler's name in the manifest; in a life-cycle hook the plugin or entry point."""
        return self._world.handler

    @property
    def generation(self) -> int:
        """The generation whose code is running."""
        return self._world.generation

    @property
    def memo(self) -> Memo:
        """What is remembered of the object, or of the handler in a life-cycle hook; it survives reloads."""
        if self._memo is None:
            self._memo = self._remember()
        return self._memo

    @property
    def listers(self) -> Listers:
        """The caches, by the names of the manifest's resources."""
        return self._world.listers

    @property
    def config(self) -> Mapping[str, Any]:
        """The plugin's config, validated; empty for a handler that has none."""
        return self._world.config

    @property
    def dry_run(self) -> bool:
        """Whether nothing shall be changed in the cluster."""
        return self._world.dry_run

    @property
    def log(self) -> Any:
        """A structlog logger, bound with handler, generation and, in an event hook, the key."""
        if self._log is None:
            names: dict[str, Any] = {"handler": self.handler, "generation": self.generation}
            if self._key is not None:
                names["key"] = self._key
            self._log = self._world.log.bind(**names)
        return self._log

    @property
    def snapshots(self) -> Mapping[str, Any]:
        """The related objects that the handler declared.

        Empty, as `includeSnapshotsFrom` is not done yet.
        """
        return {}

    @property
    def client(self) -> Any:
        """The official asynchronous ApiClient (`kubernetes.aio.client`), configured.

        For `async def` hooks.
        """
        return self._world.cluster.client

    @property
    def sync_client(self) -> Any:
        """The official synchronous ApiClient (`kubernetes.client`), configured; for `def` hooks."""
        return self._world.cluster.sync_client

    def record_event(self, obj: ObjectView, reason: str, message: str, type: str = "Normal") -> None:  # noqa: A002
        """Post a Kubernetes Event about `obj`.

        Returns at once; that the server refuses it is logged, and never raised. Raises ValueError for another
        `type`, and TypeError for a `reason` or a `message` that is no text.
        """
        if type not in ("Normal", "Warning"):
            raise ValueError(f"the type of an event is Normal or Warning, not {type!r}")
        # What can't be encoded would fail in the background, where it ends the whole process.
        _require_text("reason", reason)
        _require_text("message", message)
        self._world.cluster.record_event(obj, {"reason": reason, "message": message, "type": type})


def _require_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"the {name} of an event is a text, not a {type(text).__name__}")
