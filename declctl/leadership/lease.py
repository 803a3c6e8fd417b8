"""The Lease of an election: the record in it, and the requests for it.

A Lease is an object of coordination.k8s.io/v1. `LeaderElectionRecord` is its content (client-go's type of
the same name); fields that an elector does not know are kept. `LeaseLock` sends the three requests.
"""

from datetime import UTC, datetime
from math import ceil

import msgspec

from declctl.errors import MalformedAnswer
from declctl.objects import KubeObject, RequestSender
from declctl.objects.answers import mapping

_GROUP = "coordination.k8s.io"
_API_VERSION = f"{_GROUP}/v1"
SHARDING_KEY = "declctl.dev/sharding"  # as a label, the controller; as an annotation, the sharding


class LeaderElectionRecord(msgspec.Struct, frozen=True):
    """The content of a Lease, as every elector sees it. Equal records are one observation.

    The times are those of the holder's wall clock. They are for people and never decide anything.
    """

    holder: str = ""  # `holderIdentity`; empty if nobody holds the lease
    lease_seconds: int | None = None  # `leaseDurationSeconds`; None if it is missing or not positive
    acquire_time: str = ""  # as in the object
    renew_time: str = ""  # as in the object
    transitions: int = 0  # `leaseTransitions`: how often another process has taken the lease

    @classmethod
    def of(cls, lease: KubeObject) -> "LeaderElectionRecord":
        """The record of a Lease. A field that is missing or malformed counts as empty, as in client-go.

        Without a `leaseDurationSeconds`, a reader takes its own `lease_duration`. In client-go it is 0: a
        lease that was written by hand would be free at once.
        """
        spec = mapping(lease.get("spec"))
        return cls(
            holder=_text(spec.get("holderIdentity")),
            lease_seconds=_positive(spec.get("leaseDurationSeconds")),
            acquire_time=_text(spec.get("acquireTime")),
            renew_time=_text(spec.get("renewTime")),
            transitions=_positive(spec.get("leaseTransitions")) or 0,
        )

    @property
    def acquired_at(self) -> datetime | None:
        """The time at which the holder took the lease, by its clock; None if it is missing or malformed."""
        return parse_micro_time(self.acquire_time)

    def valid_seconds(self, default: float) -> float:
        """For how long the lease is valid after a change: as its holder says, or else for the default.

        The holder may have another configuration than its readers.
        """
        return default if self.lease_seconds is None else self.lease_seconds

    def written_to(self, lease: KubeObject) -> KubeObject:
        """A copy of a Lease with this record; labels, annotations, version and other fields stay."""
        spec = {
            **mapping(lease.get("spec")),
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.lease_seconds,
            "acquireTime": self.acquire_time,
            "renewTime": self.renew_time,
            "leaseTransitions": self.transitions,
        }
        return {**lease, "spec": spec}


def new_lease(namespace: str, name: str) -> KubeObject:
    """A Lease without a record, to be created."""
    return {
        "apiVersion": _API_VERSION,
        "kind": "Lease",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {},
    }


def version_of(lease: KubeObject) -> str:
    """The resource version of a Lease.

    Raises MalformedAnswer if it has none: an update without a version would overwrite any other.
    """
    version = mapping(lease.get("metadata")).get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise MalformedAnswer("the answer about the lease has no resource version")
    return version


def seconds_of(duration: float) -> int:
    """A duration as whole seconds, rounded up: other processes never wait for less."""
    return max(1, ceil(duration))


def micro_time(moment: datetime) -> str:
    """A moment as a MicroTime of Kubernetes, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_micro_time(text: str) -> datetime | None:
    """The moment of a MicroTime; None if the text is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo is not None else None


class LeaseLock:
    """The requests for one Lease over a client (client-go's LeaseLock)."""

    def __init__(self, client: RequestSender, *, namespace: str, name: str) -> None:
        self._client = client
        self.namespace = namespace
        self.name = name

    async def get(self) -> KubeObject:
        """The present lease. Without a resourceVersion in the request, the server reads its storage."""
        return await self._client.request_json("GET", f"{self._folder}/{self.name}")

    async def create(self, lease: KubeObject) -> KubeObject:
        """Create the lease; returns the stored one."""
        return await self._client.request_json("POST", self._folder, body=lease)

    async def update(self, lease: KubeObject) -> KubeObject:
        """Replace the lease; returns the stored one."""
        return await self._client.request_json("PUT", f"{self._folder}/{self.name}", body=lease)

    @property
    def _folder(self) -> str:
        return f"/apis/{_API_VERSION}/namespaces/{self.namespace}/leases"


class SharingLeases:
    """The requests for the Leases by which replicas share shards. `name` is that of the controller."""

    def __init__(self, client: RequestSender, *, namespace: str, name: str) -> None:
        self._client = client
        self.namespace = namespace
        self.name = name

    async def list(self) -> KubeObject:
        """The present Leases of this controller. Without a resourceVersion, the server reads its storage."""
        path = f"/apis/{_API_VERSION}/namespaces/{self.namespace}/leases"
        params = {"labelSelector": f"{SHARDING_KEY}={self.name}"}
        return await self._client.request_json("GET", path, params=params)

    def lock(self, name: str) -> LeaseLock:
        """The requests for one of them."""
        return LeaseLock(self._client, namespace=self.namespace, name=name)

    def missing_right(self, verb: str, shards: int) -> str:
        """What an administrator has to add to a Role, after a Forbidden for this verb."""
        kind = f"apiGroups: [{_GROUP}], resources: [leases]"
        names = ", ".join(f"{self.name}-{each}-0 to -{shards - 1}" for each in ("member", "shard"))
        return (
            f"a Role of namespace {self.namespace} needs the rule {{{kind}, verbs: [list, create]}} and, for "
            f"the names {names}, {{{kind}, resourceNames: [...], verbs: [get, update]}}; it lacks {verb}"
        )


def missing_right(verb: str, lease: LeaseLock) -> str:
    """What an administrator has to add to a Role, after a Forbidden for this verb."""
    rule = f"{{apiGroups: [{_GROUP}], resources: [leases], verbs: [get, create, update]}}"
    return f"a Role of namespace {lease.namespace} needs the rule {rule}, and lacks {verb}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
