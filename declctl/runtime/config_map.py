"""A ConfigMap as a folder, for `declctl run configmap/NAMESPACE/NAME`, and for commands that read it once.

The folder looks as if the kubelet had mounted the ConfigMap: the link `..data` leads to the folder that has
the files, and a change makes a new folder and moves the link. So the file watch, reloads and digests are the
same as with a mount. A change arrives with the watch, and not with the kubelet's next sync.
"""

import asyncio
import base64
import binascii
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from declctl.errors import ApiError, Forbidden, NotFound, UsageError
from declctl.informer.event_handlers import ResourceEventHandlerFuncs
from declctl.informer.informer import SharedIndexInformer
from declctl.kit.loops import LoopThread
from declctl.kit.text import one_line
from declctl.runtime.library import SharedInformerFactory
from declctl.runtime.log import Log
from declctl.transport import Client

_REFERENCE = re.compile(r"configmap/([^/]+)/([^/]+)")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_FIRST_SECONDS = 60.0  # until the folder has its files: for the connection, the first read and the sync
_SILENCE_SECONDS = 60.0  # between two warnings about the watch
_LINK = "..data"
_VERBS = "get,list,watch"  # that following needs

CODE_LABEL: Final = "declctl.dev/code"
"""The label of ConfigMaps that hold code: `deploy/admission-policy.yaml` says who may set it."""


FOLLOWED: Final = "Followed"
"""The reason of a status without a fault."""


class FollowedStatus(msgspec.Struct, frozen=True):
    """Whether the files follow their ConfigMap: the reason, and a sentence that says what to do."""

    reason: str = FOLLOWED
    message: str = ""

    @property
    def is_followed(self) -> bool:
        """Whether the next change of the ConfigMap is an edit of the files."""
        return self.reason == FOLLOWED


def config_map_of(manifest: str) -> tuple[str, str]:
    """Split `configmap/NAMESPACE/NAME`, the MANIFEST of a command line, into namespace and name.

    Raises UsageError for another text. A folder called `configmap` is written as `./configmap/…`.
    """
    found = _REFERENCE.fullmatch(manifest)
    if found is None:
        raise UsageError(
            f"{manifest}: write configmap/NAMESPACE/NAME for a ConfigMap of the cluster, or ./{manifest} "
            "for a file or folder."
        )
    return found[1], found[2]


class MountedFiles:
    """A folder with the files of a ConfigMap, as the kubelet mounts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: Mapping[str, bytes] | None = None  # the files of the folder
        self._count = 0  # of inner folders that were made, which have it in their names

    def replace(self, config_map: Mapping[str, Any]) -> None:
        """Replace the files by `data` and `binaryData` of a ConfigMap in one step, if they differ.

        Raises UsageError for what can be no file, and OSError.
        """
        files = _files(config_map)
        if files == self._written:
            return
        self._count += 1
        inner = self.folder / f"..{self._count}"
        # As the kubelet's AtomicWriter: new names get their links after the move, old ones lose theirs.
        link, moved = self.folder / _LINK, self.folder / "..data_tmp"
        before = link.readlink() if link.is_symlink() else None
        try:
            inner.mkdir()
            for name, data in files.items():
                (inner / name).write_bytes(data)
            moved.unlink(missing_ok=True)  # of a write that has failed, as on a full disk
            moved.symlink_to(inner.name)
            moved.replace(link)
        except OSError:
            shutil.rmtree(inner, ignore_errors=True)  # what was written must not keep a full disk full
            raise
        for name in files:
            with suppress(FileExistsError):
                (self.folder / name).symlink_to(f"{_LINK}/{name}")
        for name in (self._written or {}).keys() - files.keys():
            (self.folder / name).unlink(missing_ok=True)
        if before is not None:
            shutil.rmtree(self.folder / before, ignore_errors=True)
        self._written = files


def _files(config_map: Mapping[str, Any]) -> Mapping[str, bytes]:
    """The files of `data` and `binaryData`. Raises UsageError for a name that is no file name."""
    files: dict[str, bytes] = {}
    for name, text in (config_map.get("data") or {}).items():
        files[str(name)] = str(text).encode()
    for name, text in (config_map.get("binaryData") or {}).items():
        try:
            files[str(name)] = base64.b64decode(str(text), validate=True)
        except binascii.Error as error:
            raise UsageError(f"the binaryData of {name} is not base64") from error
    for name in files:
        # The API server refuses such keys. Another server may not, and a key must not leave the folder.
        if not _KEY.fullmatch(name) or name == "." or name.startswith(".."):
            raise UsageError(f"the key {name!r} is no name of a file")
    return files


async def read_config_map(client: Client, namespace: str, name: str, *, verbs: str = "get") -> Any:
    """The ConfigMap, by one request. `verbs` are all that the caller needs, for the message without a right.

    Raises UsageError, which says what to do, if it is not there or may not be read, and ApiError.
    """
    what = f"configmap/{namespace}/{name}"
    try:
        return await client.request_json("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    except NotFound as error:
        raise UsageError(
            f"{what} is not there: create it, or write the name as `kubectl get configmaps -A` has it."
        ) from error
    except Forbidden as error:
        raise UsageError(
            f"{what} may not be read: {one_line(str(error))}. {_grant(namespace, name, verbs)}."
        ) from error


def _grant(namespace: str, name: str, verbs: str) -> str:
    """What to do without these rights, as a sentence without its full stop."""
    return (
        f"Grant {verbs.replace(',', ', ')} of it, such as with `kubectl create role read-{name} "
        f"-n {namespace} --verb={verbs} --resource=configmaps --resource-name={name}` and a role binding"
    )


@contextmanager
def copied_config_map(manifest: str, *, connect: Callable[[], Awaitable[Client]]) -> Generator[Path]:
    """A folder with the files of `configmap/NAMESPACE/NAME` as they are now, until the end of the block.

    Raises UsageError if they can't be read: no cluster, no answer, no such ConfigMap, or no right to it.
    Blocks, and runs a loop of its own.
    """
    namespace, name = config_map_of(manifest)
    with tempfile.TemporaryDirectory(prefix="declctl-configmap-") as folder:
        found = asyncio.run(_read_once(manifest, namespace, name, connect))
        try:
            MountedFiles(Path(folder)).replace(found)
        except UsageError as error:
            raise UsageError(f"{manifest}: {error}.") from error
        yield Path(folder)


async def _read_once(
    manifest: str, namespace: str, name: str, connect: Callable[[], Awaitable[Client]]
) -> Any:
    try:
        async with asyncio.timeout(_FIRST_SECONDS):
            try:
                client = await connect()
            except UsageError as error:
                raise UsageError(f"{manifest} is read from a cluster. {error}") from error
            try:
                return await read_config_map(client, namespace, name)
            finally:
                await client.close()
    except TimeoutError as error:
        raise UsageError(f"{manifest}: the API server has not answered for {_FIRST_SECONDS:g} s.") from error
    except ApiError as error:
        raise UsageError(
            f"{manifest} can't be read from the cluster: {one_line(str(error))}. Check --kubeconfig and "
            "--context."
        ) from error


class ConfigMapFolder:
    """The folder of one ConfigMap, from `__enter__` to `__exit__`. It has a client and a thread of its own.

    Only a ConfigMap with the label CODE_LABEL is taken: while the one that is followed is deleted, users who
    may not set the label can make another one of its name.
    While the ConfigMap is deleted, or the API server is away, the folder stays as it is; `status` says so.
    """

    def __init__(
        self, namespace: str, name: str, *, connect: Callable[[], Awaitable[Client]], log: Log
    ) -> None:
        self._namespace = namespace
        self._name = name
        self._connect = connect
        self._log = log
        self._machinery = LoopThread("declctl-configmap")
        self._files: MountedFiles | None = None  # from `__enter__` on
        self._warned_at = -_SILENCE_SECONDS  # by time.monotonic; of the last warning about the watch
        # The thread of the folder writes these four, and any thread reads them.
        self._informer: SharedIndexInformer | None = None  # from the first read on
        self._is_deleted = False
        self._refused: str | None = None  # why the last change could not be taken over
        self._ended: str | None = None  # why the ConfigMap is not followed any more

    def __enter__(self) -> Self:
        """Read the ConfigMap, and write the folder. Raises UsageError if that can't be done."""
        self._files = MountedFiles(Path(tempfile.mkdtemp(prefix="declctl-configmap-")))
        self._machinery.start()
        first: asyncio.Future[None] = self._machinery.loop.create_future()
        self._machinery.submit(self._follow(first))
        try:
            self._machinery.submit(asyncio.wait_for(first, _FIRST_SECONDS)).result()
        except TimeoutError as error:
            self.__exit__(None, None, None)
            raise UsageError(f"{self}: the API server has not answered for {_FIRST_SECONDS:g} s.") from error
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._machinery.stop()
        if self._files is not None:
            shutil.rmtree(self._files.folder, ignore_errors=True)

    def __str__(self) -> str:
        """As on the command line."""
        return f"configmap/{self._namespace}/{self._name}"

    @property
    def path(self) -> Path:
        """The folder. Inside the `with` block only."""
        assert self._files is not None
        return self._files.folder

    def status(self) -> FollowedStatus:
        """Whether the files follow the ConfigMap now. From any thread."""
        goes_on = "the process goes on with the last files"
        if self._ended is not None:
            what = f"{self} is not followed any more, and {goes_on}"
            return FollowedStatus("NotFollowed", f"{what}: {self._ended}; start it again")
        figures = None if self._informer is None else self._informer.statistics()
        if figures is not None and figures.error is not None:
            what = f"{self} can't be watched, and {goes_on}: {one_line(figures.error)}"
            if figures.forbidden:
                grant = _grant(self._namespace, self._name, _VERBS)
                return FollowedStatus("WatchForbidden", f"{what}. {grant}")
            return FollowedStatus("WatchFailed", f"{what}; it is tried again by itself")
        if self._is_deleted:
            return FollowedStatus(
                "ConfigMapDeleted",
                f"{self} was deleted, and {goes_on}: create it again, and it is followed again. A process "
                "that starts without it ends at once",
            )
        if self._refused is not None:
            what = f"a change of {self} can't be taken over, and {goes_on}"
            return FollowedStatus("ChangeRefused", f"{what}: {self._refused.rstrip('.')}; mend it")
        return FollowedStatus()

    async def _follow(self, first: "asyncio.Future[None]") -> None:
        """Write the folder, set `first`, and write each change, until cancelled."""
        try:
            client = await self._connect()
        except Exception as error:  # noqa: BLE001 - raised by `__enter__`
            first.set_exception(error)
            return
        try:
            # An informer would retry after a wrong name or a missing right. This read raises at once.
            self._replace(await read_config_map(client, self._namespace, self._name, verbs=_VERBS))
            async with SharedInformerFactory(client, namespace=self._namespace) as factory:
                informer = factory.informer("v1", "ConfigMap", field_selector=f"metadata.name={self._name}")
                informer.add_event_handler(
                    ResourceEventHandlerFuncs(add=self._added, update=self._updated, delete=self._deleted)
                )
                self._informer = informer
                # The files are there: a missing right to watch them is a status, not a reason to wait here.
                informer.set_watch_error_handler(lambda error: self._watch_failed(error, first))
                await factory.wait_for_cache_sync()
                if not informer.lister.keys():
                    await self._deleted(None)  # between the read and the list
                _finish(first)
                await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001 - raised by `__enter__`; later it is logged
            if first.done():
                self._ended = f"{type(error).__name__}: {error}"
                self._log.error(f"{self} is not followed any more: {self._ended}")
            else:
                first.set_exception(error)
        finally:
            await client.close()

    async def _added(self, obj: Any, _: bool) -> None:
        if self._is_deleted:
            self._is_deleted = False
            self._log.info(f"{self} is there again, and is followed")
        self._changed(obj)

    async def _updated(self, _: Any, new: Any) -> None:
        self._changed(new)

    async def _deleted(self, _: Any) -> None:
        self._is_deleted = True
        self._log.warning(f"{self} was deleted: what runs goes on, and a new ConfigMap of this name is read")

    def _changed(self, obj: Any) -> None:
        try:
            self._replace(obj)
        except (UsageError, OSError) as error:
            self._refused = str(error)
            self._log.error(f"a change of {self} can't be taken over, and what runs goes on: {error}")
        else:
            self._refused = None

    def _watch_failed(self, error: Exception, first: "asyncio.Future[None]") -> None:
        _finish(first)
        now = time.monotonic()
        if now - self._warned_at >= _SILENCE_SECONDS:
            self._warned_at = now
            self._log.warning(f"{self} can't be watched: {one_line(str(error))}; it is tried again")

    def _replace(self, obj: Any) -> None:
        """Take the files of a ConfigMap. Raises UsageError if it has no label, or can't be taken."""
        assert self._files is not None
        if CODE_LABEL not in (obj["metadata"].get("labels") or {}):
            raise UsageError(
                f"{self} has no label {CODE_LABEL}, which marks ConfigMaps that may hold code: set it with "
                f"`kubectl label configmap {self._name} -n {self._namespace} {CODE_LABEL}={self._name}`."
            )
        try:
            self._files.replace(obj)
        except UsageError as error:
            raise UsageError(f"{self}: {error}.") from error


def _finish(first: "asyncio.Future[None]") -> None:
    if not first.done():
        first.set_result(None)
