"""Excludes from the plan each object for which planning fails, so that the other objects of its
pool are still planned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from mizar_core.condition import set_condition
from mizar_core.models import GPUPool, GPUQuota
from mizar_core.names import ConditionType, EventReason
from mizar_core.planning.actions import (
    Action,
    EmitEvent,
    LetPreempt,
    Plan,
    ShadowAction,
    WritePoolStatus,
    WriteQuotaStatus,
)
from mizar_core.planning.exclusion import Exclusion, Part, PartName, parts
from mizar_core.planning.plan import plan
from mizar_core.planning.preemption_gates import OPENED_AT_ONCE
from mizar_core.planning.snapshot import ShadowView, ShareView, Snapshot, quota_key

Planner = Callable[[Snapshot, datetime], Plan]


@dataclass(frozen=True)
class IsolatedPlan:
    """A plan, and the parts that are excluded from it: each as it was, with the error of
    planning."""

    plan: Plan
    excluded: Mapping[PartName, tuple[Part, Exception]] = field(default_factory=dict)


def plan_isolated(
    snapshot: Snapshot,
    now: datetime,
    known: Mapping[PartName, tuple[Part, Exception]] | None = None,
    planner: Planner = plan,
) -> Generator[None, None, IsolatedPlan]:
    """The plan without the parts that make `planner` fail. `known`: the parts that were excluded
    the last time, which are excluded again for as long as they are the same.

    A generator that returns the plan. It yields before each further try, since dozens of tries may
    take a while. Raises what `planner` raises where excluding parts does not help.
    """
    search = _Search(snapshot, now, planner)
    excluded = _unchanged(known, snapshot) if known else {}
    planned = search.without(excluded)
    if isinstance(planned, Exception):
        found = dict(parts(snapshot))
        suspects = [name for name in found if name not in excluded]
        yield
        if isinstance(hopeless := search.without({*excluded, *suspects}), Exception):
            raise hopeless
        few = yield from search.narrowed(suspects, set(excluded))
        culprits = yield from search.culprits(few, set(excluded))
        excluded |= {name: (found[name], planned) for name in culprits}
        yield
        planned = search.without(excluded)
        if isinstance(planned, Exception):
            raise planned
    told = tuple(_tell(part, error, now) for part, error in excluded.values())
    others = [*_openings(snapshot, excluded), *(one for one in told if one)]
    return IsolatedPlan(_with(planned, others, snapshot), excluded)


def _openings(snapshot: Snapshot, names: Collection[PartName]) -> list[LetPreempt]:
    """The opening of the gates of excluded pods, since nothing would show when to open them."""
    gated = [one for one in snapshot.shares if one.gated]
    if not names or not gated:
        return []
    kept = {id(one) for one in Exclusion(snapshot, names).remaining().shares}
    left = {one.uid: one for one in gated if id(one) not in kept}
    found = sorted(left.keys() - snapshot.unopenable)
    return [LetPreempt(left[uid].key, uid) for uid in found[:OPENED_AT_ONCE]]


def _unchanged(
    known: Mapping[PartName, tuple[Part, Exception]], snapshot: Snapshot
) -> dict[PartName, tuple[Part, Exception]]:
    found = dict(parts(snapshot))
    return {name: why for name, why in known.items() if found.get(name) == why[0]}


class _Search:
    """Finds the parts that make planning fail, by bisection."""

    def __init__(self, snapshot: Snapshot, now: datetime, planner: Planner) -> None:
        self._snapshot = snapshot
        self._now = now
        self._planner = planner

    def without(self, names: Collection[PartName]) -> Plan | Exception:
        """The plan without these parts, or the error with which planning fails."""
        try:
            if not names:
                return self._planner(self._snapshot, self._now)
            exclusion = Exclusion(self._snapshot, names)
            planned = self._planner(exclusion.remaining(), self._now)
        except Exception as error:
            return error
        kept = tuple(one for one in planned.actions if not _concerns(one, exclusion))
        return replace(planned, actions=kept)

    def narrowed(
        self, suspects: Sequence[PartName], exclusion: set[PartName]
    ) -> Generator[None, None, Sequence[PartName]]:
        """The suspects without quotas and pools, or without pools, if the culprits are among the
        rest. Excluding a quota or pool excludes everything that belongs to it, so it would be found
        guilty of an error in any of that."""
        for owners in (("GPUQuota", "GPUPool"), ("GPUPool",)):
            few = [one for one in suspects if one.what not in owners]
            yield
            if isinstance(self.without(exclusion | set(few)), Plan):
                return few
        return suspects

    def culprits(
        self, suspects: Sequence[PartName], exclusion: set[PartName]
    ) -> Generator[None, None, set[PartName]]:
        """The suspects that must be excluded as well, given that planning succeeds without all of
        them."""
        if len(suspects) == 1:
            return set(suspects)
        half = len(suspects) // 2
        first, second = suspects[:half], suspects[half:]
        for part in (first, second):
            yield
            if isinstance(self.without(exclusion | set(part)), Plan):
                return (yield from self.culprits(part, exclusion))
        found = yield from self.culprits(first, exclusion | set(second))
        yield
        if isinstance(self.without(exclusion | found), Plan):
            return found
        return found | (yield from self.culprits(second, exclusion | found))


def _concerns(action: Action, exclusion: Exclusion) -> bool:
    """Whether the action is about an excluded shadow pod."""
    if isinstance(action, ShadowAction):
        return action.shadow in exclusion.shadows
    return isinstance(action, EmitEvent) and (
        action.kind == "ShadowPod" and action.about in exclusion.shadows
    )


def _with(planned: Plan, told: Sequence[Action], snapshot: Snapshot) -> Plan:
    """The plan with the reports about excluded parts, except events that were posted too
    recently."""
    events = [one for one in told if isinstance(one, EmitEvent)]
    known = {one for one in events if one.is_announced(snapshot.announced)}
    late = {one.subject for one in known if one.is_held_back(snapshot.announced)}
    news = [one for one in told if not isinstance(one, EmitEvent) or one not in known]
    held_back = planned.held_back | late
    return replace(planned, actions=(*planned.actions, *news), held_back=held_back)


def _tell(part: Part, error: Exception, now: datetime) -> Action | None:
    """An event or a condition that says that planning fails for a part; None if its condition says
    so already, and for parts that have neither."""
    lead = (
        "Mizar cannot plan for it now and leaves it as it is: report this error to an administrator"
    )
    message = f"{lead}: {error!r}"[:1000]
    match part:
        case ShareView():
            return _event("Pod", part, message)
        case ShadowView():
            return _event("ShadowPod", part, message)
        case GPUQuota():
            return _quota_status(part, message, now)
        case GPUPool():
            return _pool_status(part, message, now)
        case _:
            return None


def _event(
    kind: Literal["Pod", "ShadowPod"], part: ShareView | ShadowView, message: str
) -> EmitEvent:
    return EmitEvent(kind, part.key, part.uid, "Warning", EventReason.PLANNING_FAILED, message)


def _quota_status(quota: GPUQuota, message: str, now: datetime) -> WriteQuotaStatus | None:
    known, satisfied = quota.status.conditions, ConditionType.SATISFIED
    conditions = set_condition(known, satisfied, False, EventReason.PLANNING_FAILED, message, now)
    if conditions == known:
        return None
    return WriteQuotaStatus(quota_key(quota), quota.status.changed(conditions=conditions))


def _pool_status(pool: GPUPool, message: str, now: datetime) -> WritePoolStatus | None:
    known, ready = pool.status.conditions, ConditionType.READY
    conditions = set_condition(known, ready, False, EventReason.PLANNING_FAILED, message, now)
    if conditions == known:
        return None
    return WritePoolStatus(pool.metadata.name, pool.status.changed(conditions=conditions))
