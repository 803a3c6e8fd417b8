"""What a LIST and a WATCH are asked with: the query parameters of the Kubernetes API, as values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListOptions:
    """One page of a LIST.

    `resource_version` None is the most recent (quorum read), "0" is any version.
    `resource_version_match` is `Exact` or `NotOlderThan`. The selectors leave something of what the
    source gives, and so does `namespace` where the source is of all namespaces; a source that does not
    know it ignores it.
    """

    resource_version: str | None = None
    resource_version_match: str | None = None
    limit: int | None = None
    continue_token: str | None = None
    label_selector: str = ""
    field_selector: str = ""
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """One WATCH from `resource_version`.

    `timeout_seconds` is when the server shall end it; bookmarks are always asked for. The selectors
    are as in ListOptions.

    `send_initial_events` asks for a streaming list (WatchList): the objects as ADDED, then a
    bookmark that says they ended.
    """

    resource_version: str | None = None
    timeout_seconds: int = 300
    send_initial_events: bool = False
    label_selector: str = ""
    field_selector: str = ""
