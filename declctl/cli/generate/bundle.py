"""The files of a manifest as ConfigMaps, and the volume in which a pod finds them."""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from declctl.cli.generate.objects import Document, Place
from declctl.errors import UsageError
from declctl.manifest.model import PluginSpec
from declctl.runtime.checking.inputs import Inputs
from declctl.runtime.config_map import CODE_LABEL

MANIFEST: Final = "manifest.yaml"
FOLDER: Final = "/etc/declctl"
LARGEST: Final = 1_000_000  # bytes of one ConfigMap; an API server takes 1 MiB
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_FROM_ENVIRONMENT = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)")


class BundleVolume(msgspec.Struct, frozen=True):
    """The ConfigMaps with the files of a manifest, and how a pod gets them.

    A Secret with the name of the controller, which is not generated, has to have the keys in `variables` and
    `secret_files`: environment variables, and files that configs of plugins name.
    """

    config_maps: Sequence[Document]
    volume: Document
    variables: tuple[str, ...]
    secret_files: Mapping[str, str]  # paths by the key of the Secret
    other_files: tuple[str, ...]  # that configs of plugins name by full paths, which --secret mounts


def bundle_volume(inputs: Inputs, place: Place) -> BundleVolume:
    """Put the manifest and its handlers into ConfigMaps.

    Raises UsageError for a file that is too large for a ConfigMap, and for a name that can be no key.
    """
    files = {MANIFEST: inputs.loaded.document.text.encode(), **inputs.bundle.files}
    keys = {_key(path): path for path in files}
    parts = list(_parts({key: files[path] for key, path in keys.items()}))
    names = [place.name if number == 1 else f"{place.name}-{number}" for number in range(1, len(parts) + 1)]
    config_maps = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(place, name), **_data(part)}
        for name, part in zip(names, parts, strict=True)
    ]
    secret_files: dict[str, str] = {}
    named = [file for plugin in inputs.loaded.controller.plugins for file in _files(plugin)]
    elsewhere = tuple(file for file in named if file.startswith("/"))
    for key, path in ((_key(file), file) for file in named if file not in elsewhere):
        if secret_files.setdefault(key, path) != path:
            raise UsageError(
                f"configFrom names {secret_files[key]} and {path}, which would both be the key {key} of the "
                "Secret: rename one of them."
            )
    has_folders = any("/" in path for path in files)
    if len(parts) == 1 and not has_folders and not secret_files:
        # Without a list of keys, a file that is added later needs no new pod.
        volume = {"configMap": {"name": place.name}}
        return BundleVolume(config_maps, volume, _variables(inputs), {}, elsewhere)
    sources: list[dict[str, Any]] = []
    for name, part in zip(names, parts, strict=True):
        items = [{"key": key, "path": keys[key]} for key in part]
        sources.append({"configMap": {"name": name, **({"items": items} if has_folders else {})}})
    if secret_files:
        items = [{"key": key, "path": path} for key, path in secret_files.items()]
        sources.append({"secret": {"name": place.name, "items": items}})
    volume = {"projected": {"sources": sources}}
    return BundleVolume(config_maps, volume, _variables(inputs), secret_files, elsewhere)


def _metadata(place: Place, name: str) -> dict[str, Any]:
    metadata = place.metadata(name)
    # deploy/admission-policy.yaml lets reviewers alone change ConfigMaps with this label.
    return {**metadata, "labels": {**metadata["labels"], CODE_LABEL: place.name}}


def _key(path: str) -> str:
    """The key of a file: a ConfigMap has no folders, and `items` of the volume bring them back."""
    key = path.replace("/", ".")
    if _KEY.fullmatch(key) is None:
        raise UsageError(
            f"{path} can't be in a ConfigMap, whose keys have letters without accents, digits, dashes, dots "
            "and underscores: rename the module, or install it in the image (`declctl generate image`)."
        )
    return key


def _parts(files: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """The files of each ConfigMap, in order, with at most LARGEST bytes."""
    part: dict[str, bytes] = {}
    size = 0
    for key, data in files.items():
        if len(data) > LARGEST:
            raise UsageError(
                f"{key} has {len(data):,} bytes, and a ConfigMap holds {LARGEST:,} with what is around them: "
                "split it, or install it in the image (`declctl generate image`)."
            )
        if size + len(data) > LARGEST:
            yield part
            part, size = {}, 0
        part[key] = data
        size += len(data)
    yield part


def _data(files: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for key, data in files.items():
        try:
            texts[key] = data.decode("utf-8")
        except UnicodeDecodeError:  # such as a source in Latin-1
            others[key] = base64.b64encode(data).decode()
    return {**({"data": texts} if texts else {}), **({"binaryData": others} if others else {})}


def _variables(inputs: Inputs) -> tuple[str, ...]:
    """The variables that the manifest and configs of plugins read."""
    found = _FROM_ENVIRONMENT.findall(inputs.loaded.document.text)
    for plugin in inputs.loaded.controller.plugins:
        found += [source.env for source in plugin.config_from if source.env is not None]
    return tuple(sorted(set(found)))


def _files(plugin: PluginSpec) -> Iterator[str]:
    """The files with values of a plugin's config. They are secrets, and in no ConfigMap."""
    for source in plugin.config_from:
        if source.file is None:
            continue
        path = PurePosixPath(source.file)
        if ".." in path.parts or (path.is_absolute() and path.is_relative_to(FOLDER)):
            raise UsageError(
                f"configFrom of {plugin.name} names {source.file}, which no Secret can be mounted at: name a "
                f"relative path without .., or a full one outside of {FOLDER}, which --secret mounts."
            )
        yield source.file
