"""The first of three steps: from the caches to a snapshot.

A cache may be behind, and each kind has a watch of its own. Whatever looks missing (a shadow
pod's pod, its node) is therefore asked for live before the planner may take it for lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mizar_core.models import GPUPool
from mizar_core.planning.offers import resource_of
from mizar_core.planning.snapshot import ShadowView, ShareView, Snapshot
from mizar_kube.client import KubeClient
from mizar_kube.errors import NotFound, Unavailable
from mizar_kube.kinds import NODE, POD, Object, Ref
from mizar_operator import views
from mizar_operator.caches import NO_POOL, Caches
from mizar_operator.views import HolderPod, SharePod

CONFIRMED_FOR_S = 30.0
# Long enough for a node agent to have said who got the device.
CONTESTED_FIRST_S = 1.0
CONTESTED_MOST_S = 10.0
LOOKS = 3
LOOKS_AT_ONCE = 16


@dataclass(frozen=True)
class Contest:
    """Until when a shadow pod is taken to be in use, and how long that was believed."""

    until: float
    delay: float


@dataclass
class Memory:
    """What the operator remembers from plan to plan; losing it costs a repeated event or call.

    `announced`: (uid, reason) of events. `contested`: UIDs of shadow pods that somebody used when
    asked live. `gone`: what was missing when asked live, until when that is believed.
    """

    announced: set[tuple[str, str]] = field(default_factory=set)
    contested: dict[str, Contest] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)

    def contest(self, uid: str, now: float) -> None:
        """Somebody uses the shadow pod: don't ask again at once."""
        before = self.contested.get(uid)
        delay = min(2 * before.delay, CONTESTED_MOST_S) if before else CONTESTED_FIRST_S
        self.contested[uid] = Contest(now + delay, delay)

    def is_contested(self, uid: str, now: float) -> bool:
        """Whether it is too soon to ask again."""
        contest = self.contested.get(uid)
        return contest is not None and contest.until > now

    def next_contest(self, now: float) -> float | None:
        """In how many seconds the next shadow pod may be asked for again."""
        left = [one.until - now for one in self.contested.values() if one.until > now]
        return min(left, default=None)

    def tidy(self, now: float, uids: set[str]) -> None:
        """Forget what is over, and events on objects that are not among these any more."""
        self.announced = {one for one in self.announced if one[0] in uids}
        self.contested = {uid: one for uid, one in self.contested.items() if uid in uids}
        self.gone = {key: until for key, until in self.gone.items() if until > now}


class Gatherer:
    """Makes snapshots; `clock` gives monotonic seconds."""

    def __init__(
        self, client: KubeClient, caches: Caches, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._caches = caches
        self._clock = clock
        self._memories: dict[str, Memory] = {}

    def memory(self, key: str) -> Memory:
        """What is remembered for a key."""
        return self._memories.setdefault(key, Memory())

    async def gather(self, key: str) -> Snapshot:
        """Everything that is planned under the key, as the cluster is now. Raises KubeError when
        something looks missing and the API server does not answer."""
        for _ in range(LOOKS):
            suspects = self._suspects(key)
            if not suspects:
                return self._snapshot(key)
            await self._look_for(suspects, self.memory(key))
        raise Unavailable(f"{len(suspects)} objects are neither here nor gone: {suspects[0]}")

    def _snapshot(self, key: str) -> Snapshot:
        """In one go, so that nothing changes in between."""
        memory, pools = self.memory(key), self._pools(key)
        shadows = [self._whole(one, pools, memory) for one in self._shadows(key)]
        shares = self._shares(key, shadows)
        quotas = [one for one in self._caches.quotas.values() if self._is_mine(one.spec.pool, key)]
        memory.tidy(self._clock(), {one.uid for one in shadows} | {one.uid for one in shares})
        return Snapshot(
            pools=tuple(pools.values()),
            quotas=tuple(quotas),
            shadows=tuple(shadows),
            shares=tuple(shares),
            nodes=tuple(self._caches.nodes.values()),
            announced=frozenset(memory.announced),
        )

    def _pools(self, key: str) -> dict[str, GPUPool]:
        found = self._caches.pools.values()
        return {one.metadata.name: one for one in found if one.spec.resource_prefix == key}

    def _is_mine(self, pool: str, key: str) -> bool:
        return self._caches.key_of_pool(pool) == key

    def _shadows(self, key: str) -> list[ShadowView]:
        return [one for one in self._caches.shadows.values() if self._is_mine(one.pool, key)]

    def _shares(self, key: str, shadows: Iterable[ShadowView]) -> list[ShareView]:
        resources = {one.resource for one in shadows} if key == NO_POOL else set[str]()
        mine: dict[str, bool] = {}
        found = []
        for value in self._caches.pods.values():
            if not isinstance(value, SharePod):
                continue
            for prefix, view in value.demands:
                if prefix not in mine:
                    mine[prefix] = key in self._caches.keys_of_prefix(prefix)
                if mine[prefix] or view.resource in resources:
                    found.append(view)
        return found

    def _whole(
        self, shadow: ShadowView, pools: Mapping[str, GPUPool], memory: Memory
    ) -> ShadowView:
        """The shadow pod with its pod and its resource."""
        holder, pool = self._holder(shadow), pools.get(shadow.pool)
        resource = holder.resource if holder else ""
        if not resource and pool is not None:
            resource = resource_of(pool.spec, shadow.namespace, shadow.devices) or ""
        return replace(
            shadow,
            resource=resource,
            pod=holder.view if holder else None,
            contested=memory.is_contested(shadow.uid, self._clock()),
        )

    def _holder(self, shadow: ShadowView) -> HolderPod | None:
        """The shadow pod's own pod, not one of an earlier ShadowPod of that name."""
        found = self._caches.pods.get(shadow.name, shadow.namespace)
        return found if isinstance(found, HolderPod) and found.owner_uid == shadow.uid else None

    def _suspects(self, key: str) -> list[Ref]:
        """What is missing from the caches and not known to be gone."""
        gone, now = self.memory(key).gone, self._clock()
        found = set[Ref]()
        for shadow in self._shadows(key):
            holder = self._holder(shadow)
            if holder is None:
                found.add(Ref(POD, shadow.name, shadow.namespace))
            place = (holder.view.node if holder else None) or shadow.node
            if place is not None and self._caches.nodes.get(place) is None:
                found.add(Ref(NODE, place))
        return sorted((one for one in found if gone.get(str(one), 0.0) <= now), key=str)

    async def _look_for(self, suspects: Iterable[Ref], memory: Memory) -> None:
        limit = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def look(ref: Ref) -> None:
            async with limit:
                found = await find(self._client, ref)
            if found is None or not self._take(ref, found):
                memory.gone[str(ref)] = self._clock() + CONFIRMED_FOR_S

        await asyncio.gather(*(look(ref) for ref in suspects))

    def _take(self, ref: Ref, found: Object) -> bool:
        """Put what was found into its cache; False if it is somebody else's pod of that name."""
        if ref.kind == NODE:
            self._caches.nodes.observe(found)
            return True
        shadow = self._caches.shadows.get(ref.name, ref.namespace or "")
        holder = views.pod_view(found)
        if not isinstance(holder, HolderPod) or shadow is None or holder.owner_uid != shadow.uid:
            return False
        self._caches.pods.observe(found)
        return True


async def find(client: KubeClient, ref: Ref) -> Object | None:
    """The object as the API server has it now; None if there is none."""
    try:
        return await client.get(ref)
    except NotFound:
        return None
