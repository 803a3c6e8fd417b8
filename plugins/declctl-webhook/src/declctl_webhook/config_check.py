"""What is wrong in a config that its schema has accepted, found without a network and without a change.

`declctl validate` shows it. A secret or a folder that is missing here may be there where the process runs:
that is a warning.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from declctl_webhook.endpoint import tls_context
from declctl_webhook.settings import (
    EndpointSettings,
    Settings,
    SettingsError,
    SignatureSettings,
    ValueSource,
    check_header,
    check_url,
)

Place = tuple[str | int, ...]


class ConfigFault(NamedTuple):
    """One fault. `may_be_right`: it may be none where the process runs."""

    path: Place
    message: str
    may_be_right: bool = False

    def document(self) -> Mapping[str, Any]:
        """As a hook returns it."""
        severity = "warning" if self.may_be_right else "error"
        return {"path": list(self.path), "message": self.message, "severity": severity}


def config_faults(config: Mapping[str, Any]) -> Iterator[ConfigFault]:
    """All faults of a config. Reads its secrets and files, and shows no value of them. Blocks."""
    try:
        settings = Settings.of(config)
    except SettingsError as error:
        yield ConfigFault((), str(error))
        return
    yield from _of_endpoint(settings.endpoint)
    if settings.delivery.signature is not None:
        yield from _of_signature(settings.delivery.signature)
    yield from _of_spool(settings.spool.path)


def _of_endpoint(endpoint: EndpointSettings) -> Iterator[ConfigFault]:
    url = endpoint.url
    if isinstance(url, ValueSource):
        yield from _of_source(("urlFrom",), url, lambda: check_url(url.read(), str(url)))
    else:
        yield from _raised(("url",), lambda: check_url(url, "url"))
    for place, (name, source) in enumerate(endpoint.secret_headers):
        yield from _of_source(("headersFrom", place), source, _header_check(name, source))
    if message := endpoint.plain_text_warning():
        yield ConfigFault(("headersFrom",), message, may_be_right=True)
    files = (endpoint.ca_file, endpoint.cert_file, endpoint.key_file)
    missing = any(file is not None and not _is_there(Path(file)) for file in files)
    yield from _raised(("tls",), lambda: tls_context(endpoint), may_be_right=missing)


def _header_check(name: str, source: ValueSource) -> Callable[[], object]:
    return lambda: check_header(source.read(), f"the value of the header {name} in {source}")


def _of_signature(signature: SignatureSettings) -> Iterator[ConfigFault]:
    for place, source in enumerate(signature.secrets):
        one = SignatureSettings(signature.scheme, (source,))
        yield from _of_source(("signature", "secretsFrom", place), source, one.keys)


def _of_source(path: Place, source: ValueSource, check: Callable[[], object]) -> Iterator[ConfigFault]:
    """What is wrong with a secret; a variable or a file that is missing here may be there elsewhere."""
    is_there = os.environ.get(source.env) if source.env is not None else _is_there(Path(str(source.file)))
    yield from _raised(path, check, may_be_right=not is_there)


def _raised(path: Place, check: Callable[[], object], *, may_be_right: bool = False) -> Iterator[ConfigFault]:
    try:
        check()
    except SettingsError as error:
        yield ConfigFault(path, str(error), may_be_right)


def _of_spool(folder: Path) -> Iterator[ConfigFault]:
    """Whether the folder could be opened, or made. The process that runs may have it open."""
    existing = next(each for each in (folder, *folder.parents) if _is_there(each))
    why = ""
    if not existing.is_dir():
        why = f"{existing} is no folder"
    elif not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        why = f"this user can't read and write {existing}"
    if why:
        # The volume of a folder that is not there may be mounted where the process runs.
        may_be_right = existing != folder and existing.is_dir()
        yield ConfigFault(("spool", "path"), f"the spool {folder} can't be used: {why}", may_be_right)


def _is_there(path: Path) -> bool:
    """Whether a path exists, also if it can't be looked at."""
    try:
        path.stat()
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    return True
