"""The volumes of a pod: the files that its process reads, and the folders that it may write to.

Secrets and lists of digests exist already, under the names of the command line. The manifest says where the
process looks for them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from declctl.cli.generate.bundle import FOLDER, BundleVolume
from declctl.cli.generate.objects import Document
from declctl.cli.options import checked
from declctl.errors import UsageError
from declctl.kit.tokens import TOKEN_VARIABLE
from declctl.manifest import Plan
from declctl.manifest.values import check_subdomain, parse_quantity

PLUGINS: Final = "/opt/plugins"
ALLOWED_DIGESTS: Final = "/etc/declctl-allowed/digests"
_TEMPORARY: Final = "/tmp"
_TLS_KEYS: Final = ("tls.crt", "tls.key")  # of Secrets of the type kubernetes.io/tls
_TOKEN_KEY: Final = "token"


class VolumeOptions(msgspec.Struct, frozen=True):
    """What the command line says about volumes. Names are of objects in the namespace of the process."""

    tls_secret: str | None = None
    token_secret: str | None = None
    allowed_digests: str | None = None  # a ConfigMap
    secrets: Mapping[str, str] = {}  # names by the folder in which the keys are files
    writable: Mapping[str, str | None] = {}  # sizes by folder; None for no limit


class Volume(msgspec.Struct, frozen=True):
    """A volume, and the folder at which the container of declctl has it."""

    name: str
    folder: str
    source: Document
    read_only: bool = True

    @property
    def in_pod(self) -> Document:
        """As it stands among the volumes of a pod."""
        return {"name": self.name, **self.source}

    @property
    def in_container(self) -> Document:
        """As it stands among the volumeMounts of a container."""
        mount: dict[str, Any] = {"name": self.name, "mountPath": self.folder}
        return {**mount, "readOnly": True} if self.read_only else mount


def volume_options(
    *,
    tls_secret: str | None,
    token_secret: str | None,
    allowed_digests: str | None,
    secrets: Sequence[str],
    writable: Sequence[str],
) -> VolumeOptions:
    """Read the options of the command line: `secrets` are DIR=SECRET, and `writable` are DIR or DIR=SIZE.

    Raises UsageError, which names the option.
    """
    names = [("--tls-secret", tls_secret), ("--token-secret", token_secret)]
    names.append(("--allowed-digests", allowed_digests))
    mounted: dict[str, str] = {}
    for text in secrets:
        folder, equals, name = text.rpartition("=")
        if not equals:
            raise UsageError(f'--secret: "{text}" names no Secret; write DIR=SECRET.')
        _add(mounted, folder, name, option="--secret")
        names.append(("--secret", name))
    folders: dict[str, str | None] = {}
    for text in writable:
        folder, equals, size = text.partition("=")
        _add(folders, folder, size if equals else None, option="--writable")
    _require_valid(check_subdomain, names)
    _require_valid(parse_quantity, [("--writable", size) for size in folders.values()])
    return VolumeOptions(tls_secret, token_secret, allowed_digests, mounted, folders)


def _add(folders: dict[str, Any], folder: str, value: str | None, *, option: str) -> None:
    path = str(PurePosixPath(folder))
    if path in folders:
        raise UsageError(f"{option} has {path} twice.")
    folders[path] = value


def _require_valid(check: Callable[[str], object], values: Iterable[tuple[str, str | None]]) -> None:
    """Raise UsageError, with its option, for a value that does not pass a check of the manifest's values."""
    for option, value in values:
        if value is not None:
            checked(check, value, option)


def pod_volumes(plan: Plan, bundle: BundleVolume, options: VolumeOptions, *, plugins: bool) -> list[Volume]:
    """The volumes of the pod, each in a folder of its own.

    `plugins` is whether an init container fills the folder PLUGINS. Raises UsageError for an option that the
    manifest has no use for, and for a folder that can't be mounted, or that two volumes would have.
    """
    volumes = [
        Volume("bundle", FOLDER, bundle.volume),
        Volume("tmp", _TEMPORARY, {"emptyDir": {}}, read_only=False),
    ]
    if plugins:
        volumes.append(Volume("plugins", PLUGINS, {"emptyDir": {}}))
    if options.allowed_digests is not None:
        folder = str(PurePosixPath(ALLOWED_DIGESTS).parent)
        volumes.append(Volume("allowed", folder, {"configMap": {"name": options.allowed_digests}}))
    for number, (folder, secrets) in enumerate(_admin_files(plan, options).items(), start=1):
        sources = [
            {"secret": {"name": name, "items": [{"key": key, "path": path} for key, path in items]}}
            for name, items in secrets.items()
        ]
        volumes.append(Volume(f"admin-{number}", folder, {"projected": {"sources": sources}}))
    for number, (folder, name) in enumerate(options.secrets.items(), start=1):
        volumes.append(Volume(f"secret-{number}", folder, {"secret": {"secretName": name}}))
    for number, (folder, size) in enumerate(options.writable.items(), start=1):
        empty = {"emptyDir": {} if size is None else {"sizeLimit": size}}
        volumes.append(Volume(f"writable-{number}", folder, empty, read_only=False))
    volumes += _state(plan, volumes)
    _require_folders(volumes)
    return volumes


def token_variables(plan: Plan, options: VolumeOptions) -> list[dict[str, Any]]:
    """The variable with the token, if there is a Secret with one and the manifest names no file for it."""
    if options.token_secret is None or plan.admin.token_file is not None:
        return []
    key = {"name": options.token_secret, "key": _TOKEN_KEY}
    return [{"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": key}}]


def files_without_volume(plan: Plan, bundle: BundleVolume, volumes: Sequence[Volume]) -> list[str]:
    """The files outside of the bundle that the manifest names, and that no volume has."""
    tls = plan.admin.tls
    named = [plan.admin.token_file, *((tls.cert_file, tls.key_file) if tls is not None else ())]
    of_others = [each for each in volumes if each.read_only and each.name not in ("bundle", "plugins")]
    folders = [PurePosixPath(each.folder) for each in of_others]
    return [
        each
        for each in dict.fromkeys((*named, plan.reload.allowed_digests, *bundle.other_files))
        if each is not None and not any(_in_pod(each).is_relative_to(folder) for folder in folders)
    ]


def _admin_files(plan: Plan, options: VolumeOptions) -> Mapping[str, Mapping[str, list[tuple[str, str]]]]:
    """Keys and names of files, by Secret, by the folder in which the process looks for them."""
    wanted: list[tuple[str, str, str]] = []  # a Secret, a key, and the path of its file
    if options.tls_secret is not None:
        tls = plan.admin.tls
        if tls is None:
            raise UsageError("--tls-secret is for spec.admin.tls, which the manifest does not have.")
        files = (tls.cert_file, tls.key_file)
        wanted += [(options.tls_secret, key, file) for key, file in zip(_TLS_KEYS, files, strict=True)]
    if options.token_secret is not None and plan.admin.token_file is not None:
        wanted.append((options.token_secret, _TOKEN_KEY, plan.admin.token_file))
    folders: dict[str, dict[str, list[tuple[str, str]]]] = {}
    known = set[PurePosixPath]()
    for secret, key, file in wanted:
        path = _in_pod(file)
        if path.is_relative_to(FOLDER):
            raise UsageError(
                f"{file} of spec.admin can't be mounted in {FOLDER}, where the manifest is: write a "
                "full path in another folder."
            )
        if path in known:
            raise UsageError(f"spec.admin names {file} twice, and each key is a file: write two paths.")
        known.add(path)
        folders.setdefault(str(path.parent), {}).setdefault(secret, []).append((key, path.name))
    return folders


def _state(plan: Plan, others: Sequence[Volume]) -> list[Volume]:
    """A volume for the state of the process, unless its folder is in one that the process may write to."""
    if plan.state.folder is None:
        return []
    folder = _in_pod(plan.state.folder)
    if folder.is_relative_to(FOLDER):
        raise UsageError(
            f"{plan.state.folder} of spec.state can't be in {FOLDER}, where the manifest is: write a full "
            "path in another folder."
        )
    if any(folder.is_relative_to(each.folder) for each in others if not each.read_only):
        return []
    return [Volume("state", str(folder), {"emptyDir": {}}, read_only=False)]


def _in_pod(file: str) -> PurePosixPath:
    """The path of a file that the manifest names."""
    return PurePosixPath(FOLDER) / file


def _require_folders(volumes: Sequence[Volume]) -> None:
    """Raise UsageError unless all volumes can be mounted side by side."""
    taken: dict[PurePosixPath, Volume] = {}
    for volume in sorted(volumes, key=lambda each: len(PurePosixPath(each.folder).parts)):
        folder = PurePosixPath(volume.folder)
        if not folder.is_absolute() or ".." in folder.parts or ":" in volume.folder:
            how = 'name an absolute path without ".." and without colons'
            raise UsageError(f'A volume can\'t be mounted at "{volume.folder}": {how}.')
        if folder == PurePosixPath("/"):
            raise UsageError("A volume can't be mounted at the root: name files in a folder.")
        if folder in taken:
            raise UsageError(f"Two volumes would be mounted at {folder}: name another folder.")
        # Nothing can be mounted inside of a read-only volume, which has no folder for it.
        outer = next((each for each in folder.parents if each in taken and taken[each].read_only), None)
        if outer is not None:
            raise UsageError(
                f"Nothing can be mounted at {folder}, as {outer} is read-only: name a folder elsewhere."
            )
        taken[folder] = volume
