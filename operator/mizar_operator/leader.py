"""Leader election: a Lease says which replica leads, as for Kubernetes' own controllers.

https://kubernetes.io/docs/concepts/architecture/leases/#leader-election. Clocks of different
machines are never compared: a holder counts as gone when its Lease has not changed for the whole
duration by the replica's own clock. `Operator._lead` in main.py waits for the Lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from mizar_kube.client import KubeClient
from mizar_kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from mizar_kube.kinds import DEPLOYMENT, LEASE, Object, Ref
from mizar_kube.logs import get_logger

log = get_logger(__name__)


class LeadershipLost(Exception):
    """Another replica may lead now, so this process must not write any more."""


@dataclass(frozen=True)
class Pace:
    """Times in seconds: a Lease is valid for `duration`. The leader renews it every `retry`, which
    is the timeout of each call too, and stops leading when that has failed for `deadline`, before
    any other replica can start. A leader that ends tries for `release` to give the Lease up."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0
    release: float = 0.5


class _Held(Enum):
    """Which replica has the Lease, after this one tried to take or renew it."""

    HERE = "it is ours"
    ELSEWHERE = "it names another replica, and is good"
    UNKNOWN = "there was no answer, or another replica has just written it"


class Leader:
    """Holds the Lease `name` as `identity`. `clock` counts seconds, `now` is the time of day.

    The Lease belongs to the Deployment `owner`, if one is named, so that an uninstall leaves none
    behind.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        pace: Pace | None = None,
        owner: str = "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._ref = Ref(LEASE, name, namespace)
        self._identity = identity
        self._pace = pace or Pace()
        self._clock = clock
        self._sleep = sleep
        self._now = now
        self._owner = Ref(DEPLOYMENT, owner, namespace) if owner else None
        self._owners: list[Object] = []
        self._seen: tuple[str, float] = ("", clock())
        self._renewed = float("-inf")

    async def acquire(self) -> None:
        """Wait until this replica leads."""
        await self._find_owner()
        waited = False
        while await self._try() is not _Held.HERE:
            if not waited:
                log.info("another replica leads: waiting", lease=self._ref.name)
                waited = True
            await self._sleep(self._pace.retry)
        log.info("this replica leads", identity=self._identity, lease=self._ref.name)

    async def _find_owner(self) -> None:
        if self._owner is None:
            return
        try:
            uid = (await self._client.get(self._owner))["metadata"]["uid"]
        except KubeError as error:
            log.info("the lease will stay after an uninstall", error=error)
            return
        kind = {"apiVersion": DEPLOYMENT.api_version, "kind": DEPLOYMENT.name}
        self._owners = [{**kind, "name": self._owner.name, "uid": uid}]

    async def keep(self) -> None:
        """Renew the Lease for ever. Raises LeadershipLost at once if the Lease names another
        replica, and at the deadline if it could not be renewed, even in the middle of a slow call:
        the age of the Lease counts from when its last renewal was sent."""
        while (left := self._pace.deadline - (self._clock() - self._renewed)) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._sleep(self._pace.retry)
                    held = await self._try()
            except TimeoutError:
                break
            if held is _Held.ELSEWHERE:
                raise LeadershipLost(f"another replica holds lease {self._ref.name}")
        raise LeadershipLost(f"lease {self._ref.name} could not be renewed")

    async def release(self) -> None:
        """Give the Lease up, so that another replica can lead at once. Tries only for
        `Pace.release` seconds, so that the process ends soon even if the API server does not
        answer: the Lease then expires by itself."""
        try:
            async with asyncio.timeout(self._pace.release):
                lease = await self._client.get(self._ref)
                if lease["spec"].get("holderIdentity") == self._identity:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._client.replace(lease)
        except (KubeError, TimeoutError) as error:
            log.info("the lease was not released", lease=self._ref.name, error=error)

    async def _try(self) -> _Held:
        """Take or renew the Lease. Returns which replica has it."""
        sent = self._clock()
        if (held := await self._write()) is _Held.HERE:
            self._renewed = sent
        return held

    async def _write(self) -> _Held:
        try:
            try:
                lease = await self._client.get(self._ref, timeout=self._pace.retry)
            except NotFound:
                await self._client.create(self._written(None), timeout=self._pace.retry)
                return _Held.HERE
            if not self._may_take(lease):
                return _Held.ELSEWHERE
            await self._client.replace(self._written(lease), timeout=self._pace.retry)
            return _Held.HERE
        except (AlreadyExists, Conflict):
            return _Held.UNKNOWN
        except KubeError as error:
            log.warning("the lease could not be taken", lease=self._ref.name, error=error)
            return _Held.UNKNOWN

    def _may_take(self, lease: Object) -> bool:
        spec, version = lease["spec"], lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, self._clock())
        if spec.get("holderIdentity", "") in ("", self._identity):
            return True
        good_for = float(spec.get("leaseDurationSeconds") or self._pace.duration)
        return self._clock() - self._seen[1] >= good_for

    def _written(self, lease: Object | None) -> Object:
        time = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(lease["spec"]) if lease else {}
        if spec.get("holderIdentity") != self._identity:
            changes = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
            spec |= {"acquireTime": time, "leaseTransitions": changes}
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._pace.duration),
            "renewTime": time,
        }
        meta = dict(lease["metadata"]) if lease else {}
        if self._owners:
            meta["ownerReferences"] = self._owners
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {**meta, "name": self._ref.name, "namespace": self._ref.namespace},
            "spec": spec,
        }
