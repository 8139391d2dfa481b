"""Prometheus counters of shadow pods that were created, reaped and lost. They count what the API
server has carried out, not what is planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge

from mizar_core.names import CreationReason, LossReason, ReapReason
from mizar_core.planning.actions import (
    Action,
    CancelDrain,
    CreateShadow,
    DeleteShadow,
    Drain,
    WriteShadowStatus,
)
from mizar_core.planning.evict_share_pods import loss_of
from mizar_core.planning.shadow_stage import ShadowStage, stage_of
from mizar_core.planning.snapshot import Key, ShadowView, Snapshot


class ShadowCounters:
    """The counters. `applied` must be called with the actions that the API server has carried out,
    and `changed` when a ShadowPod changes. `now` returns seconds since 1970."""

    def __init__(self, registry: CollectorRegistry, now: Callable[[], float] = time.time) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(
                f"mizar_shadow_pods_{name}_total", text, ["pool", "reason"], registry=registry
            )

        self._created = counter("created", "Shadow pods that were created, by reason.")
        self._reaped = counter(
            "reaped", "Shadow pods that were deleted after they had held cards, by reason."
        )
        self._lost = counter(
            "lost", "Shadow pods that lost their cards while pods used them, by reason."
        )
        # A new leader may find a loss in its first plan, before Prometheus has read the counter as
        # 0. An alert on the counter's increase would not see that.
        self._lost_at = Gauge(
            "mizar_shadow_pods_last_lost_timestamp_seconds",
            "When the operator last counted a lost shadow pod, since 1970; 0 if it has not.",
            ["pool", "reason"],
            registry=registry,
        )
        self._now = now
        self._reasons: dict[Key, ReapReason] = {}
        self._known_lost: set[str] = set()
        self._pools: dict[str, set[str]] = {}
        self._shown: set[str] = set()

    def planned(self, key: str, snapshot: Snapshot) -> None:
        """Create all series of a key's pools at 0, so that the first count shows as an increase,
        and remove those of pools that are gone and have no shadow pod left."""
        pools = {one.metadata.name for one in snapshot.pools}
        self._pools[key] = pools | {one.pool for one in snapshot.shadows}
        for pool in self._shown.difference(*self._pools.values()):
            self._hide(pool)
        for pool in self._pools[key]:
            self._show(pool)

    def _show(self, pool: str) -> None:
        if pool in self._shown:
            return
        self._shown.add(pool)
        for counter, reason in self._series():
            counter.labels(pool, reason)

    def _hide(self, pool: str) -> None:
        self._shown.discard(pool)
        for counter, reason in self._series():
            counter.remove(pool, reason)

    def _series(self) -> Iterator[tuple[Counter | Gauge, str]]:
        yield from ((self._created, one.value) for one in CreationReason)
        yield from ((self._reaped, one.value) for one in ReapReason)
        yield from ((self._lost, one.value) for one in LossReason)
        yield from ((self._lost_at, one.value) for one in LossReason)

    def _count(self, counter: Counter, pool: str, reason: str) -> None:
        self._show(pool)
        counter.labels(pool, reason).inc()

    def applied(self, snapshot: Snapshot, actions: Iterable[Action]) -> None:
        """Count the actions that are done. `snapshot`: the one that they were planned from."""
        nodes = {one.name for one in snapshot.nodes}
        known = {one.key: one for one in snapshot.shadows}
        for action in actions:
            match action:
                case CreateShadow():
                    self._count(self._created, action.pool, action.reason.value)
                case (
                    Drain(reason=ReapReason() as reason)
                    | DeleteShadow(reason=ReapReason() as reason)
                ):
                    self._reasons[action.shadow] = reason
                case CancelDrain():
                    self._reasons.pop(action.shadow, None)
            if isinstance(action, DeleteShadow | WriteShadowStatus) and action.shadow in known:
                self._note_loss(known[action.shadow], nodes)

    def _note_loss(self, shadow: ShadowView, nodes: set[str]) -> None:
        """Count a shadow pod in use as lost once, when its phase Lost is written, or when it is
        deleted. One that is unused counts as reaped when it is gone: it is lost whenever a node is
        drained, and nobody is the worse for it."""
        if not shadow.held or stage_of(shadow, nodes) is not ShadowStage.LOST:
            return
        if shadow.uid in self._known_lost:
            return
        self._known_lost.add(shadow.uid)
        if shadow.phase != "Lost":
            how = loss_of(shadow, nodes).value
            self._count(self._lost, shadow.pool, how)
            self._lost_at.labels(shadow.pool, how).set(self._now())

    def changed(self, old: ShadowView | None, new: ShadowView | None) -> None:
        """Count a ShadowPod that is gone as reaped, unless it was lost before."""
        if old is None or (new is not None and new.uid == old.uid):
            return
        reason = self._reasons.pop(old.key, ReapReason.OTHER)
        if old.uid in self._known_lost or (old.phase == "Lost" and old.held):
            self._known_lost.discard(old.uid)
        else:
            self._count(self._reaped, old.pool, reason.value)
