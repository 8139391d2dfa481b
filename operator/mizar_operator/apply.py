"""The last of three steps: from a plan to calls of the API server. One small function per action;
each can be repeated without harm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from mizar_core.base import format_time
from mizar_core.names import (
    ANNOTATION_CARVE,
    ANNOTATION_DRAIN,
    FIELD_MANAGER_OPERATOR,
)
from mizar_core.planning.actions import (
    Action,
    CancelDrain,
    CreatePod,
    CreateShadow,
    DeleteShadow,
    Drain,
    EmitEvent,
    EvictShare,
    Recarve,
    RemoveFinalizer,
    SetInUse,
    WritePoolStatus,
    WriteQuotaStatus,
    WriteShadowStatus,
)
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.snapshot import Key, ShadowView, Snapshot
from mizar_kube.client import KubeClient
from mizar_kube.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    Unavailable,
)
from mizar_kube.event_series import Regarding
from mizar_kube.events import EventRecorder
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, POD, SHADOW_POD, Kind, Object, Ref
from mizar_kube.logs import bound, get_logger
from mizar_operator import action_log, manifests, views
from mizar_operator.caches import Caches
from mizar_operator.delete_guard import StillInUse
from mizar_operator.disruption_budgets import DisruptionBudgets
from mizar_operator.eviction import Evictor
from mizar_operator.shadow_deletion import ShadowDeleter
from mizar_operator.snapshot_index import SnapshotIndex
from mizar_operator.status_writer import StatusWriter

log = get_logger(__name__)

STATUSES = (WriteShadowStatus, WriteQuotaStatus, WritePoolStatus)
"""What only tells how things are: the next plan has it again, and newer."""

# What the API server says of a namespace that is going; its GPUQuota will be gone in a moment.
TERMINATING = "because it is being terminated"

KINDS: dict[str, Kind] = {"Pod": POD, "ShadowPod": SHADOW_POD, "GPUQuota": GPU_QUOTA}


def _never() -> bool:
    return False


@dataclass
class Result:
    """What came of a plan. `used`: UIDs of shadow pods that turned out to be in use. `refused`:
    what the API server says of shadow pods that it doesn't let in, by quota and devices.
    `unanswered`: (quota, devices, sequence) of shadow pods of which it says nothing. `postponed`:
    whether statuses were left to the next plan."""

    errors: list[Exception] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    refused: dict[tuple[Key, int], str] = field(default_factory=dict)
    unanswered: set[tuple[Key, int, int]] = field(default_factory=set)
    announced: set[tuple[str, str]] = field(default_factory=set)
    postponed: bool = False


class Applier:
    """Applies plans. What the API server answers goes into the caches at once, so that the next
    plan does not depend on how fast the watches are."""

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
        self._shape = pod_settings
        self._budgets = DisruptionBudgets(client)
        self._evictor = Evictor(client, clock)
        self._deleter = ShadowDeleter(client, caches, self._budgets)
        self._statuses = StatusWriter(client, caches)
        self._limit = asyncio.Semaphore(at_once)

    async def apply(
        self, snapshot: Snapshot, actions: Iterable[Action], has_news: Callable[[], bool] = _never
    ) -> Result:
        """All actions in order, those of one type at the same time. Once `hurry` says so, statuses
        are left to the next plan.

        A failure voids what the plan has for the same namespace after it, and nothing else: one
        tenant's trouble must not hold up the others.
        """
        index, result, failed = SnapshotIndex(snapshot), Result(), set[str]()
        for _, group in groupby(actions, key=type):
            todo = [one for one in group if _namespace(one) not in failed]
            outcomes = await asyncio.gather(
                *(self._one(index, one, result, has_news) for one in todo)
            )
            failed |= {
                _namespace(one) for one, good in zip(todo, outcomes, strict=True) if not good
            }
            if result.used:
                # The pool's figures count on what could not be deleted; a new plan follows at once.
                failed.add("")
        return result

    async def _one(
        self, index: SnapshotIndex, action: Action, result: Result, has_news: Callable[[], bool]
    ) -> bool:
        with bound(**action_log.object_fields(action, index)):
            async with self._limit:
                if isinstance(action, STATUSES) and has_news():
                    result.postponed = True
                    return True
                return await self._tried(index, action, result)

    async def _tried(self, index: SnapshotIndex, action: Action, result: Result) -> bool:
        try:
            await self._do(index, action)
        except StillInUse as used:
            log.info("the shadow pod stays", problem=used.why)
            result.used.add(used.uid)
            return False
        except KubeError as error:
            if TERMINATING not in str(error):
                _report(index, action, error, result)
            return False
        except Exception as error:
            # What nobody foresaw about one object must not hold up the others.
            log.exception("an action failed", action=type(action).__name__)
            result.errors.append(error)
            return False
        if isinstance(action, EmitEvent):
            result.announced.add((action.uid, str(action.reason)))
        action_log.log_done(action, index)
        return True

    async def _do(self, index: SnapshotIndex, action: Action) -> None:
        match action:
            case CreateShadow():
                await self._create(index, action)
            case CreatePod():
                shadow = index.shadows[action.shadow]
                await self._create_pod(index, shadow, action.needs)
            case Drain():
                await self._annotate(index, action.shadow, format_time(action.at))
            case CancelDrain():
                await self._annotate(index, action.shadow, None)
            case SetInUse():
                await self._mark(index, action)
            case Recarve():
                await self._recarve(index.shadows[action.shadow], action.carve.to_json())
            case DeleteShadow():
                await self._deleter.delete(index.shadows[action.shadow])
            case RemoveFinalizer():
                await self._deleter.remove_finalizer(index.shadows[action.shadow])
            case WriteShadowStatus():
                await self._statuses.write_shadow(action)
            case WriteQuotaStatus():
                await self._statuses.write(GPU_QUOTA, action.quota, action.status.to_dict())
            case WritePoolStatus():
                await self._statuses.write(GPU_POOL, ("", action.pool), action.status.to_dict())
            case EmitEvent():
                self._post_event(index, action)
            case EvictShare():
                await self._evictor.evict(action)

    async def _create(self, index: SnapshotIndex, action: CreateShadow) -> None:
        wanted = manifests.shadow_pod(action)
        try:
            made = await self._client.create(wanted, field_manager=FIELD_MANAGER_OPERATOR)
        except AlreadyExists:
            made = await self._client.get(Ref(SHADOW_POD, action.shadow[1], action.shadow[0]))
            _check_ours(made, wanted)
        self._caches.shadows.observe(made)
        shadow = index.add_created(views.shadow_view(made), action.resource)
        await self._create_pod(index, shadow, action.needs)

    async def _create_pod(self, index: SnapshotIndex, shadow: ShadowView, needs: Needs) -> None:
        wanted = manifests.pod(
            shadow,
            index.pools[shadow.pool],
            index.quotas[shadow.quota_key],
            self._shape,
            needs,
        )
        try:
            made = await self._client.create(wanted, field_manager=FIELD_MANAGER_OPERATOR)
        except AlreadyExists:
            made = await self._client.get(Ref(POD, shadow.name, shadow.namespace))
            _check_ours(made, wanted)
        self._caches.holders.observe(made)

    async def _annotate(self, index: SnapshotIndex, key: Key, asked: str | None) -> None:
        await self._patch_pod(index, key, {"annotations": {ANNOTATION_DRAIN: asked}})

    async def _mark(self, index: SnapshotIndex, action: SetInUse) -> None:
        if action.in_use:
            await self._budgets.ensure(action.shadow[0])
        await self._patch_pod(index, action.shadow, manifests.in_use(on=action.in_use))

    async def _patch_pod(self, index: SnapshotIndex, key: Key, meta: Object) -> None:
        pod = index.shadows[key].pod
        if pod is not None and pod.uid:
            # Never another pod that has come to have this name.
            meta["uid"] = pod.uid
        ref = Ref(POD, key[1], key[0])
        self._caches.holders.observe(await self._client.patch_merge(ref, {"metadata": meta}))

    async def _recarve(self, known: ShadowView, carve: str) -> None:
        """Of this very pod, as it is now: nobody else's change is undone."""
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


def _report(index: SnapshotIndex, action: Action, error: KubeError, result: Result) -> None:
    log.warning("an action failed", action=type(action).__name__, error=error)
    if isinstance(action, CreateShadow | CreatePod) and _is_refusal(error):
        result.refused[index.quota_and_devices(action)] = str(error)
    else:
        result.errors.append(error)
    if isinstance(action, CreateShadow) and isinstance(error, Unavailable):
        result.unanswered.add((*index.quota_and_devices(action), action.sequence))


def _is_refusal(error: KubeError) -> bool:
    """Whether the API server will say the same until somebody changes something: a ResourceQuota,
    a RuntimeClass, a policy, a webhook (whose failure is an internal error)."""
    return isinstance(error, BadRequest | Forbidden | Invalid) or "calling webhook" in str(error)


def _namespace(action: Action) -> str:
    match action:
        case WriteQuotaStatus():
            return action.quota[0]
        case WritePoolStatus():
            return ""
        case EmitEvent():
            return action.about[0]
        case EvictShare():
            return action.share[0]
        case _:
            return action.shadow[0]


def _check_ours(found: Object, wanted: Object) -> None:
    """An object of the name that we want is there: from an earlier try of ours, or not?"""
    owners = [one["uid"] for one in found["metadata"].get("ownerReferences") or ()]
    if wanted["metadata"]["ownerReferences"][0]["uid"] not in owners:
        name = f"{found['metadata']['namespace']}/{found['metadata']['name']}"
        raise Conflict(f"{found['kind']} {name} is in the way, and it is not of our making")
