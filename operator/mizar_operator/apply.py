"""Applies a plan, the last of the three steps of a reconcile: carries out its actions by calls of
the API server. Each action can be repeated without harm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import groupby

from mizar_core.model_base import format_time
from mizar_core.names import (
    ANNOTATION_CARVE,
    ANNOTATION_DRAIN,
    PREEMPTION_GATE,
    EventReason,
)
from mizar_core.planning.actions import (
    Action,
    CancelDrain,
    CreatePod,
    CreateQuota,
    CreateShadow,
    DeleteShadow,
    Drain,
    EmitEvent,
    EvictShare,
    LetPreempt,
    Recarve,
    RemoveFinalizer,
    SetInUse,
    WritePoolStatus,
    WriteQuotaStatus,
    WriteShadowStatus,
)
from mizar_core.planning.snapshot import Key, ShadowView, Snapshot
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.event_series import Regarding
from mizar_kube.events import EventRecorder
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, POD, SHADOW_POD, Kind, Object, Ref
from mizar_kube.logs import bound, get_logger
from mizar_operator import action_log, manifests
from mizar_operator.apply_result import CHANGES, Result, is_terminating
from mizar_operator.caches import Caches
from mizar_operator.delete_guard import StillInUse
from mizar_operator.evict_or_delete import Evictor
from mizar_operator.quota_creation import QuotaCreator
from mizar_operator.scheduling_gates import open_gate
from mizar_operator.shadow_creation import ShadowCreator
from mizar_operator.shadow_deletion import ShadowDeleter
from mizar_operator.shadow_disruption_budgets import DisruptionBudgets
from mizar_operator.snapshot_index import SnapshotIndex
from mizar_operator.status_writer import StatusWriter, without_lending, without_spot
from mizar_operator.voided_actions import STATUSES, VoidedActions

log = get_logger(__name__)

KINDS: dict[str, Kind] = {"Pod": POD, "ShadowPod": SHADOW_POD, "GPUQuota": GPU_QUOTA}
"""The kinds of objects that events are about, by the name in the planned event."""


def _never() -> bool:
    return False


class Applier:
    """Applies plans, `at_once` calls at the same time. The API server's answers go into the caches
    at once, so that the next plan does not depend on how fast the watches are. `clock` counts
    seconds."""

    def __init__(
        self,
        client: KubeClient,
        caches: Caches,
        events: EventRecorder,
        pod_settings: manifests.PodSettings,
        at_once: int = 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self.budgets = DisruptionBudgets(client, caches.holders, clock)
        self._evictor = Evictor(client, clock)
        self._creator = ShadowCreator(client, caches, pod_settings)
        self._deleter = ShadowDeleter(client, caches, self.budgets)
        self._quotas = QuotaCreator(client, caches)
        self._statuses = StatusWriter(client, caches)
        self._limit = asyncio.Semaphore(at_once)

    async def apply(
        self, snapshot: Snapshot, actions: Iterable[Action], has_news: Callable[[], bool] = _never
    ) -> Result:
        """Apply all actions in order, consecutive ones of one type at the same time, except those
        that an earlier failure voids (voided_actions.py). While `has_news` returns True, statuses
        are left to the next plan. Raises nothing: errors are in the result."""
        # This comes first: an action may drop the budget of a namespace when its last shadow pod is
        # deleted.
        await self.budgets.keep(snapshot)
        index, result, voided = SnapshotIndex(snapshot), Result(), VoidedActions()
        for _, group in groupby(actions, key=type):
            todo = [one for one in group if not voided.include(one)]
            outcomes = await asyncio.gather(
                *(self._one(index, one, result, has_news) for one in todo)
            )
            for one, good in zip(todo, outcomes, strict=True):
                if isinstance(one, CHANGES) and one.shadow in result.unchangeable:
                    voided.note_refused_change(one.shadow)
                elif not good:
                    voided.note_failure(one, planned_anew=result.tells_next_plan(index, one))
            if result.used:
                # The pool's status assumes that the deletions succeeded; a new plan follows at
                # once.
                voided.note_pools()
        return result

    async def _one(
        self, index: SnapshotIndex, action: Action, result: Result, has_news: Callable[[], bool]
    ) -> bool:
        with bound(**action_log.object_fields(action, index)):
            async with self._limit:
                if isinstance(action, STATUSES) and has_news():
                    result.postponed = True
                    return True
                good = await self._tried(index, action, result)
                (result.done if good else result.failed).append(action)
                return good

    async def _tried(self, index: SnapshotIndex, action: Action, result: Result) -> bool:
        try:
            await self._do(index, action)
        except StillInUse as used:
            log.info("shadow pod not deleted: still in use", problem=used.why)
            result.used.add(used.uid)
            return False
        except KubeError as error:
            if not is_terminating(error):
                log.warning("an action failed", action=type(action).__name__, error=error)
            result.note_error(index, action, error)
            if isinstance(action, CHANGES) and action.shadow in result.unchangeable:
                self._tell_unchangeable(index.shadows[action.shadow], error)
            return False
        except Exception as error:
            # An unexpected error about one object must not hold up the others.
            log.exception("an action failed", action=type(action).__name__)
            result.errors.append(error)
            return False
        if isinstance(action, EmitEvent):
            result.announced.append(action)
        action_log.log_done(action, index)
        return True

    async def _do(self, index: SnapshotIndex, action: Action) -> None:
        match action:
            case CreateQuota():
                await self._quotas.create(action, index.pools[action.pool])
            case CreateShadow():
                await self._creator.create(index, action)
            case CreatePod():
                await self._creator.create_pod(index, index.shadows[action.shadow], action.needs)
            case Drain():
                await self._annotate(index, action.shadow, format_time(action.at))
            case CancelDrain():
                await self._annotate(index, action.shadow, None)
            case SetInUse():
                await self._mark(index, action)
            case Recarve():
                await self._recarve(index.shadows[action.shadow], action.carve.to_json())
            case DeleteShadow():
                await self._deleter.delete(self._made(index, action.shadow))
            case RemoveFinalizer():
                await self._deleter.remove_finalizer(self._made(index, action.shadow))
            case WriteShadowStatus():
                await self._statuses.write_shadow(action, index.shadows[action.shadow].uid)
            case WriteQuotaStatus():
                uid = index.quota_uid(action.quota)
                await self._statuses.write(
                    GPU_QUOTA, action.quota, uid, without_spot(action.status)
                )
            case WritePoolStatus():
                uid, key = index.pool_uid(action.pool), ("", action.pool)
                await self._statuses.write(GPU_POOL, key, uid, without_lending(action.status))
            case EmitEvent():
                self._post_event(index, action)
            case EvictShare():
                await self._evictor.evict(action.share, action.uid)
            case LetPreempt():
                await self._open_gate(action)

    async def _open_gate(self, action: LetPreempt) -> None:
        pod = await open_gate(self._client, action.share, action.uid, PREEMPTION_GATE)
        if pod is not None:
            self._caches.shares.observe(pod)

    def _made(self, index: SnapshotIndex, key: Key) -> ShadowView:
        """The shadow pod of that key. Raises StillInUse while another plan creates its pod."""
        if self._creator.is_under_way(key):
            raise StillInUse(index.shadows[key], "its pod is being created")
        return index.shadows[key]

    async def _annotate(self, index: SnapshotIndex, key: Key, asked: str | None) -> None:
        await self._patch_pod(index, key, {"annotations": {ANNOTATION_DRAIN: asked}})

    async def _mark(self, index: SnapshotIndex, action: SetInUse) -> None:
        marks = manifests.in_use(on=action.in_use)
        if not action.in_use:
            await self._patch_pod(index, action.shadow, marks)
            return
        async with self.budgets.marking(action.shadow):
            await self._patch_pod(index, action.shadow, marks)

    async def _patch_pod(self, index: SnapshotIndex, key: Key, meta: Object) -> None:
        pod = index.shadows[key].pod
        if pod is not None and pod.uid:
            # With this precondition, the API server does not patch another pod of the same name.
            meta["uid"] = pod.uid
        ref = Ref(POD, key[1], key[0])
        self._caches.holders.observe(await self._client.patch_merge(ref, {"metadata": meta}))

    async def _recarve(self, known: ShadowView, carve: str) -> None:
        """Write the carve into the annotation of this very pod, at its present version, so that no
        other change is undone."""
        ref = Ref(POD, known.name, known.namespace)
        meta = (await self._client.get(ref))["metadata"]
        if known.pod is None or meta["uid"] != known.pod.uid:
            return
        change = {
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "annotations": {ANNOTATION_CARVE: carve},
        }
        self._caches.holders.observe(await self._client.patch_merge(ref, {"metadata": change}))

    def _post_event(self, index: SnapshotIndex, event: EmitEvent) -> None:
        namespace, name = event.about
        uid = index.uid_of(event)
        self._events.emit(
            Regarding(KINDS[event.kind], name, namespace, uid),
            str(event.reason),
            event.message,
            warning=event.type == "Warning",
        )

    def _tell_unchangeable(self, shadow: ShadowView, error: KubeError) -> None:
        self._events.emit(
            Regarding(SHADOW_POD, shadow.name, shadow.namespace, shadow.uid),
            EventReason.SHADOW_REFUSED,
            f"the API server refuses to change the shadow pod: {error}",
            warning=True,
        )
