"""One lease in memory behind the requests of an elector, with answers that a test holds back or spoils."""

import asyncio
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Self

from declctl.errors import Conflict, DeclctlError, NotFound
from declctl.kit import ManualClock
from declctl.leadership import LeaderCallbacks, LeaderElector, LeaseTimes
from declctl.objects import KubeObject

TIMES = LeaseTimes(lease_duration=15, renew_deadline=10, retry_period=2)


class Leases:
    """The lease `team/app` of a server, with a spec from the start; `calls` are the verbs of all requests.

    `faults` are errors for the next requests, None for a success. While `held`, a request waits before it is
    applied; while `deaf`, the answer is never given.
    """

    namespace = "team"
    name = "app"

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.lease: KubeObject | None = None
        self.calls: list[str] = []
        self.faults: list[DeclctlError | None] = []
        self.held = False
        self.deaf = False
        self.spoil: Callable[[KubeObject], KubeObject] = lambda lease: lease
        self._version = 0
        if spec is not None:
            self.put(**spec)

    async def get(self) -> KubeObject:
        return await self._answer("get", self._read)

    async def create(self, lease: KubeObject) -> KubeObject:
        return await self._answer("create", lambda: self._create(lease))

    async def update(self, lease: KubeObject) -> KubeObject:
        return await self._answer("update", lambda: self._update(lease))

    def put(self, **spec: Any) -> None:
        """Somebody writes the lease."""
        self._version += 1
        metadata = {"name": "app", "namespace": "team", "resourceVersion": str(self._version)}
        self.lease = {"metadata": metadata, "spec": spec}

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        return self.lease["spec"]

    async def _answer(self, verb: str, apply: Callable[[], KubeObject]) -> KubeObject:
        self.calls.append(verb)
        if self.held:
            await asyncio.Event().wait()
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        answer = apply()
        if self.deaf:
            await asyncio.Event().wait()
        return self.spoil(answer)

    def _read(self) -> KubeObject:
        if self.lease is None:
            raise NotFound(404, "NotFound", 'leases "app" not found')
        return deepcopy(self.lease)

    def _create(self, lease: KubeObject) -> KubeObject:
        if self.lease is not None:
            raise Conflict(409, "AlreadyExists", "it is there")
        return self._store(lease)

    def _update(self, lease: KubeObject) -> KubeObject:
        if lease["metadata"]["resourceVersion"] != self._read()["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "another version")
        return self._store(lease)

    def _store(self, lease: KubeObject) -> KubeObject:
        self._version += 1
        metadata = {**lease["metadata"], "resourceVersion": str(self._version)}
        self.lease = deepcopy({**lease, "metadata": metadata})
        return self._read()


class Scene:
    """An elector on a manual clock, and what its callbacks have heard."""

    def __init__(self, leases: Leases | None = None, *, identity: str = "me", jitter: float = 0.0) -> None:
        self.leases = leases or Leases()
        self.clock = ManualClock(jitter=jitter)
        self.heard: list[str] = []
        self.elector = LeaderElector(
            self.leases,
            times=TIMES,
            clock=self.clock,
            identity=identity,
            callbacks=LeaderCallbacks(
                on_started_leading=lambda: self.heard.append("started"),
                on_stopped_leading=lambda why: self.heard.append(f"stopped: {why}"),
                on_new_leader=lambda who: self.heard.append(f"leader {who}"),
            ),
        )

    async def __aenter__(self) -> Self:
        self.task = asyncio.ensure_future(self.elector.run())
        await self.clock.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def stop(self) -> None:
        """Cancel `run`."""
        self.task.cancel()
        await asyncio.wait([self.task])

    @property
    def leads(self) -> bool:
        return self.elector.may_write()
