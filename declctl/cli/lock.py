"""`declctl lock`: the packages that a manifest needs, each with its version and the hashes of its files.

pip resolves them, without installing anything: once for each platform of the image, whose files differ.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from declctl import __version__
from declctl.cli.report import inputs_of
from declctl.cli.terminal import block
from declctl.errors import UsageError
from declctl.hooks.plugins import installed
from declctl.manifest.model import ControllerSpec
from declctl.runtime.checking.check import check

PYTHON: Final = "3.13"  # of the image
# The tags of wheels by the platform of an image; the base of ours has a newer glibc than all of them.
_TAGS: Final[Mapping[str, str]] = MappingProxyType({"linux/amd64": "x86_64", "linux/arm64": "aarch64"})
PLATFORMS: Final = tuple(_TAGS)
_MANYLINUX: Final = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010")
_SECONDS: Final = 300.0  # that pip may take for one platform


class PackageSource(msgspec.Struct, frozen=True):
    """Where pip finds packages, as the command line says. Without any of it, as pip is configured."""

    index_url: str | None = None
    find_links: Sequence[str] = ()
    no_index: bool = False

    @property
    def arguments(self) -> list[str]:
        """For pip."""
        index = ["--index-url", self.index_url] if self.index_url else []
        links = [part for each in self.find_links for part in ("--find-links", each)]
        return [*index, *links, *(["--no-index"] if self.no_index else [])]

    @property
    def lines(self) -> list[str]:
        """For the lock: what was given, without a password."""
        index = [f"--index-url {_without_password(self.index_url)}"] if self.index_url else []
        links = [f"--find-links {each}" for each in self.find_links]
        return [*index, *(["--no-index"] if self.no_index else []), *links]


class LockedPackage(msgspec.Struct):
    """One package of the lock. `hashes` grow with each platform."""

    name: str
    version: str
    hashes: set[str]


def show_lock(
    manifest: str,
    *,
    at: Path | None,
    source: PackageSource,
    python: str,
    platforms: Sequence[str],
    plugins: Mapping[str, str],
) -> None:
    """Print requirements with hashes for the plugins of a manifest and for declctl, in the order of names.

    The manifest is read `at` a path. `plugins` has the packages of plugins whose names do not show them.
    Raises typer.Exit for a manifest with errors, and UsageError if pip finds no solution.
    """
    inputs = inputs_of(check(manifest, at=at, in_child=False))
    wanted = requirements_of(inputs.loaded.controller, plugins)
    for platform in platforms:
        if platform not in _TAGS:
            raise UsageError(f"--platform {platform} is not known: use one of {', '.join(_TAGS)}.")
    locked: dict[str, LockedPackage] = {}
    for platform in platforms:
        for package in resolve(wanted, platform=platform, python=python, source=source):
            known = locked.setdefault(package.name, package)
            if known.version != package.version:
                raise UsageError(
                    f"{package.name} is {known.version} on one platform and {package.version} on another: "
                    "lock each by itself, with --platform."
                )
            known.hashes |= package.hashes
    block(rendered_lock(locked.values(), source, f"Python {python}, {', '.join(platforms)}"))


def requirements_of(controller: ControllerSpec, plugins: Mapping[str, str]) -> list[str]:
    """What pip has to resolve: this declctl, and the package of each plugin in the range of the manifest.

    The package is the one of `plugins`, that of an installed plugin of the name, or else declctl-NAME.
    """
    reads_cel = any(
        each.filter is not None and each.filter.expression
        for handler in controller.handlers
        for each in (handler, *handler.watches)
    )
    distributions = {plugin.name: plugin.distribution for plugin in installed()}
    found = [f"declctl{'[cel]' if reads_cel else ''}=={__version__}"]
    for plugin in controller.plugins:
        package = plugins.get(plugin.name) or distributions.get(plugin.name) or f"declctl-{plugin.name}"
        found.append(f"{package}{plugin.version or ''}")
    return found


def resolve(
    requirements: Sequence[str], *, platform: str, python: str, source: PackageSource
) -> list[LockedPackage]:
    """The packages that pip would install on a platform. Only wheels: nothing is built here.

    Raises UsageError with the last line of pip if there is no solution.
    """
    if find_spec("pip") is None:
        raise UsageError("pip is not installed for this Python, and resolves the packages: install it.")
    tags = [f"{each}_{_TAGS[platform]}" for each in _MANYLINUX]
    with TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"),
            *("--disable-pip-version-check", "--no-input", "--report", "-", "--target", folder),
            *("--only-binary", ":all:", "--python-version", python, "--implementation", "cp"),
            *(part for tag in tags for part in ("--platform", tag)),
            *source.arguments,
            *("--", *requirements),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"pip has not answered within {_SECONDS:g} s: does its index?") from error
    if done.returncode != 0:
        said = [each for each in done.stderr.splitlines() if each.startswith("ERROR: ")]
        why = said[-1].removeprefix("ERROR: ") if said else f"it ended with {done.returncode}"
        raise UsageError(f"pip finds no packages for {platform}: {why}")
    return [_package(each) for each in json.loads(done.stdout)["install"]]


def _package(installed_by_pip: Mapping[str, Any]) -> LockedPackage:
    metadata, extras = installed_by_pip["metadata"], sorted(installed_by_pip.get("requested_extras") or ())
    archive: Mapping[str, Any] = installed_by_pip["download_info"].get("archive_info") or {}
    found: str | None = (archive.get("hashes") or {}).get("sha256")
    if not found:
        raise UsageError(
            f"pip knows no SHA-256 of {metadata['name']}: it comes from a folder or a repository."
        )
    name = str(metadata["name"]) + (f"[{','.join(extras)}]" if extras else "")
    return LockedPackage(name, str(metadata["version"]), {f"sha256:{found}"})


def rendered_lock(packages: Iterable[LockedPackage], source: PackageSource, made_for: str) -> str:
    """The text of a requirements file for `pip install --require-hashes`."""
    lines = [f"# Made by `declctl lock` for {made_for}.", *source.lines]
    for package in sorted(packages, key=lambda each: each.name.lower()):
        hashes = [f"    --hash={each}" for each in sorted(package.hashes)]
        lines.append(" \\\n".join([f"{package.name}=={package.version}", *hashes]))
    return "\n".join(lines) + "\n"


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
