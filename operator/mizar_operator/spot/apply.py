"""Applies a plan for spot pods by calls of the API server. Each action can be repeated without
harm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, assert_never

from mizar_core.names import FIELD_MANAGER_SPOT, SPOT_GATE
from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.snapshot import Key
from mizar_core.planning.spot import SpotAction
from mizar_core.planning.spot.actions import EvictSpot, OpenGate, WriteLent, WriteSpotStatus
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.event_series import Regarding
from mizar_kube.events import EventRecorder
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, POD, Object
from mizar_kube.logs import bound, get_logger
from mizar_operator.caches import Caches
from mizar_operator.evict_or_delete import BUDGET_RESPECTED_S, Evictor
from mizar_operator.scheduling_gates import open_gate
from mizar_operator.spot.metrics import SpotMetrics
from mizar_operator.status_writer import StatusWriter

log = get_logger(__name__)


class Failure(NamedTuple):
    """An action that failed, and why."""

    action: SpotAction
    error: KubeError


class SpotApplier:
    """Applies plans, `at_once` calls at the same time. The API server's answers go into the caches
    at once, so that the next plan promises no card twice. `clock` counts seconds."""

    def __init__(
        self,
        client: KubeClient,
        caches: Caches,
        events: EventRecorder,
        metrics: SpotMetrics,
        at_once: int = 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self._metrics = metrics
        self._evictor = Evictor(client, clock)
        self._statuses = StatusWriter(client, caches, FIELD_MANAGER_SPOT)
        self._limit = asyncio.Semaphore(at_once)
        self._counted: set[str] = set()

    async def apply(self, actions: Iterable[SpotAction]) -> list[Failure]:
        """Apply all actions; returns those that failed. A failure holds up no other action."""
        found = await asyncio.gather(*(self._one(one) for one in actions))
        return [failed for failed in found if failed is not None]

    async def _one(self, action: SpotAction) -> Failure | None:
        namespace, name = _about(action)
        async with self._limit:
            with bound(namespace=namespace, name=name):
                try:
                    await self._do(action)
                except KubeError as error:
                    log.warning("an action failed", action=type(action).__name__, error=error)
                    return Failure(action, error)
        return None

    async def _do(self, action: SpotAction) -> None:
        match action:
            case OpenGate():
                await self._open(action)
            case EvictSpot():
                await self._evict(action)
            case WriteSpotStatus():
                status = {} if action.status is None else {"spot": action.status.to_dict()}
                quota = self._caches.quotas.get(action.quota[1], action.quota[0])
                uid = quota.metadata.uid if quota else None
                await self._statuses.write(GPU_QUOTA, action.quota, uid or "", status)
            case WriteLent():
                await self._write_lent(action)
            case EmitEvent():
                self._post(action)
            case _:
                assert_never(action)

    async def _open(self, action: OpenGate) -> None:
        if opened := await open_gate(self._client, action.spot, action.uid, SPOT_GATE):
            self._caches.spots.observe(opened)

    async def _evict(self, action: EvictSpot) -> None:
        patience = 0.0 if action.at_once else BUDGET_RESPECTED_S
        # Counted before the eviction becomes visible. Node agents count the evictions that they
        # cause.
        if not action.at_once and action.uid not in self._counted:
            self._counted.add(action.uid)
            self._metrics.evictions.labels(action.reason).inc()
        await self._evictor.evict(action.spot, action.uid, patience, action.grace_s)

    async def _write_lent(self, action: WriteLent) -> None:
        pool = self._caches.pools.get(action.pool)
        status: Object = {"cards": {"lent": action.lent}}
        if action.condition is not None:
            status["conditions"] = [action.condition.to_dict()]
        uid = pool.metadata.uid if pool else None
        await self._statuses.write(GPU_POOL, ("", action.pool), uid or "", status)

    def _post(self, event: EmitEvent) -> None:
        namespace, name = event.about
        self._events.emit(
            Regarding(POD, name, namespace, event.uid),
            str(event.reason),
            event.message,
            warning=event.type == "Warning",
        )
        log.info("event", reason=str(event.reason), message=event.message)

    def forget(self, uids: set[str]) -> None:
        """Forget the counted pods whose UIDs are not among these."""
        self._counted &= uids


def _about(action: SpotAction) -> Key:
    match action:
        case WriteSpotStatus():
            return action.quota
        case WriteLent():
            return "", action.pool
        case EmitEvent():
            return action.about
        case _:
            return action.spot
