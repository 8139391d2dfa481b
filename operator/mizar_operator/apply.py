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
from mizar_operator import manifests, telling, views
from mizar_operator.budgets import Budgets
from mizar_operator.caches import Caches
from mizar_operator.evict import Evictor
from mizar_operator.live import StillUsed
from mizar_operator.remove import Remover
from mizar_operator.statuses import StatusWriter
from mizar_operator.world import World

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
        shape: manifests.Shape,
        at_once: int = 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self._shape = shape
        self._budgets = Budgets(client)
        self._evictor = Evictor(client, clock)
        self._remover = Remover(client, caches, self._budgets)
        self._statuses = StatusWriter(client, caches)
        self._limit = asyncio.Semaphore(at_once)

    async def apply(
        self, snapshot: Snapshot, actions: Iterable[Action], hurry: Callable[[], bool] = _never
    ) -> Result:
        """All actions in order, those of one type at the same time. Once `hurry` says so, statuses
        are left to the next plan.

        A failure voids what the plan has for the same namespace after it, and nothing else: one
        tenant's trouble must not hold up the others.
        """
        world, result, failed = World(snapshot), Result(), set[str]()
        for _, group in groupby(actions, key=type):
            todo = [one for one in group if _namespace(one) not in failed]
            outcomes = await asyncio.gather(*(self._one(world, one, result, hurry) for one in todo))
            failed |= {
                _namespace(one) for one, good in zip(todo, outcomes, strict=True) if not good
            }
            if result.used:
                # The pool's figures count on what could not be deleted; a new plan follows at once.
                failed.add("")
        return result

    async def _one(
        self, world: World, action: Action, result: Result, hurry: Callable[[], bool]
    ) -> bool:
        with bound(**telling.named(action, world)):
            async with self._limit:
                if isinstance(action, STATUSES) and hurry():
                    result.postponed = True
                    return True
                return await self._tried(world, action, result)

    async def _tried(self, world: World, action: Action, result: Result) -> bool:
        try:
            await self._do(world, action)
        except StillUsed as used:
            log.info("the shadow pod stays", problem=used.why)
            result.used.add(used.uid)
            return False
        except KubeError as error:
            if TERMINATING not in str(error):
                _report(world, action, error, result)
            return False
        except Exception as error:
            # What nobody foresaw about one object must not hold up the others.
            log.exception("an action failed", action=type(action).__name__)
            result.errors.append(error)
            return False
        if isinstance(action, EmitEvent):
            result.announced.add((action.uid, str(action.reason)))
        telling.tell(action, world)
        return True

    async def _do(self, world: World, action: Action) -> None:
        match action:
            case CreateShadow():
                await self._create(world, action)
            case CreatePod():
                shadow = world.shadows[action.shadow]
                await self._create_pod(world, shadow, action.needs)
            case Drain():
                await self._annotate(world, action.shadow, format_time(action.at))
            case CancelDrain():
                await self._annotate(world, action.shadow, None)
            case SetInUse():
                await self._mark(world, action)
            case Recarve():
                await self._recarve(world.shadows[action.shadow], action.carve.to_json())
            case DeleteShadow():
                await self._remover.delete(world.shadows[action.shadow])
            case RemoveFinalizer():
                await self._remover.release(world.shadows[action.shadow])
            case WriteShadowStatus():
                await self._statuses.write_shadow(action)
            case WriteQuotaStatus():
                await self._statuses.write(GPU_QUOTA, action.quota, action.status.to_dict())
            case WritePoolStatus():
                await self._statuses.write(GPU_POOL, ("", action.pool), action.status.to_dict())
            case EmitEvent():
                self._tell(world, action)
            case EvictShare():
                await self._evictor.evict(action)

    async def _create(self, world: World, action: CreateShadow) -> None:
        wanted = manifests.shadow_pod(action)
        try:
            made = await self._client.create(wanted, field_manager=FIELD_MANAGER_OPERATOR)
        except AlreadyExists:
            made = await self._client.get(Ref(SHADOW_POD, action.shadow[1], action.shadow[0]))
            _check_ours(made, wanted)
        self._caches.shadows.observe(made)
        shadow = world.take(views.shadow_view(made), action.resource)
        await self._create_pod(world, shadow, action.needs)

    async def _create_pod(self, world: World, shadow: ShadowView, needs: Needs) -> None:
        wanted = manifests.pod(
            shadow,
            world.pools[shadow.pool],
            world.quotas[shadow.quota_key],
            self._shape,
            needs,
        )
        try:
            made = await self._client.create(wanted, field_manager=FIELD_MANAGER_OPERATOR)
        except AlreadyExists:
            made = await self._client.get(Ref(POD, shadow.name, shadow.namespace))
            _check_ours(made, wanted)
        self._caches.holders.observe(made)

    async def _annotate(self, world: World, key: Key, asked: str | None) -> None:
        await self._patch_pod(world, key, {"annotations": {ANNOTATION_DRAIN: asked}})

    async def _mark(self, world: World, action: SetInUse) -> None:
        if action.in_use:
            await self._budgets.ensure(action.shadow[0])
        await self._patch_pod(world, action.shadow, manifests.in_use(on=action.in_use))

    async def _patch_pod(self, world: World, key: Key, meta: Object) -> None:
        pod = world.shadows[key].pod
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

    def _tell(self, world: World, event: EmitEvent) -> None:
        namespace, name = event.about
        uid = world.uid_of(event)
        self._events.emit(
            Regarding(KINDS[event.kind], name, namespace, uid),
            str(event.reason),
            event.message,
            warning=event.type == "Warning",
        )


def _report(world: World, action: Action, error: KubeError, result: Result) -> None:
    log.warning("an action failed", action=type(action).__name__, error=error)
    if isinstance(action, CreateShadow | CreatePod) and _is_refusal(error):
        result.refused[world.offer_of(action)] = str(error)
    else:
        result.errors.append(error)
    if isinstance(action, CreateShadow) and isinstance(error, Unavailable):
        result.unanswered.add((*world.offer_of(action), action.sequence))


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
