"""Changed limits: updates the carve of each shadow pod to its pool and quota, also while it is in
use.

The number of its devices never changes. To divide a card into another number, an idle shadow pod
is drained, and a new one gets the card: see preempt_idle.py, and replacement.py where the quota has
no room for both.
"""

from __future__ import annotations

from mizar_core.carve import Carve
from mizar_core.errors import CarveRefused
from mizar_core.models import GPUPool, GPUQuota, isolation_of
from mizar_core.planning.actions import Recarve
from mizar_core.planning.draft import Draft
from mizar_core.planning.shadow_stage import ShadowStage
from mizar_core.planning.snapshot import ShadowView
from mizar_core.planning.surplus import surplus_in_use


def carve_of(shadow: ShadowView, pool: GPUPool, quota: GPUQuota) -> Carve:
    """The carve of the shadow pod's cards by its pool and quota."""
    profile = pool.spec.profile(shadow.devices)
    return Carve(
        resource=shadow.resource,
        devices=shadow.devices,
        cards=shadow.cards,
        memory=profile.memory_bytes if profile else None,
        memory_scaling=pool.spec.memory_scaling,
        core_scaling=pool.spec.core_scaling,
        isolation=isolation_of(pool.spec, quota.spec),
        pool=shadow.pool,
        quota=shadow.quota,
        tenancy=pool.spec.tenancy,
        physical_resource=pool.spec.physical_resource,
        variables=pool.spec.share_variables,
        same_card=pool.spec.same_card,
    )


def recarve(draft: Draft) -> None:
    """Plan a new carve for each shadow pod whose annotation does not match its pool and quota."""
    carves = _Carves(draft)
    for shadow, _ in draft.in_order():
        pod = shadow.pod
        if pod is None or pod.carve is None or pod.deleting or pod.ended or not pod.uid:
            continue
        if (other := carves.other_than(pod.carve, shadow)) is not None:
            draft.do(Recarve(shadow.key, other))


class _Carves:
    """Carves, computed and compared once for all shadow pods that are alike, as most of a quota
    are."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._read: dict[str, Carve | None] = {}
        self._others: dict[tuple[object, ...], Carve | None] = {}
        self._surplus = surplus_in_use(draft, self._is_closed)

    def other_than(self, present: str, shadow: ShadowView) -> Carve | None:
        """The carve that the shadow pod's annotation should have; None if it has it already.

        A shadow pod that is no longer wanted keeps its carve for its users, but is closed to other
        pods; if it is unused, it is drained. A shadow pod beyond its quota is closed, too, and
        stays closed while it is drained: if it were opened, the kubelet would offer its devices
        again, and pods that the scheduler then places there would be refused on the node.
        """
        if not self._draft.is_wanted(shadow):
            known = self._parsed(present) if shadow.held else None
            return known.changed(closed=True) if known and not known.closed else None
        closed = shadow.key in self._surplus or self._goes_closed(shadow)
        shape = shadow.pool, shadow.devices, shadow.cards, shadow.resource
        alike = present, closed, shadow.quota_key, *shape
        if alike not in self._others:
            self._others[alike] = self._wanted(present, shadow, closed)
        return self._others[alike]

    def _wanted(self, present: str, shadow: ShadowView, closed: bool) -> Carve | None:
        pool, quota = self._draft.pools[shadow.pool], self._draft.active_quotas[shadow.quota_key]
        wanted = carve_of(shadow, pool, quota)
        if closed:
            wanted = wanted.changed(closed=True)
        return None if wanted == self._parsed(present) else wanted

    def _goes_closed(self, shadow: ShadowView) -> bool:
        draining = self._draft.stages[shadow.key] is ShadowStage.DRAINING
        return draining and self._is_closed(shadow)

    def _is_closed(self, shadow: ShadowView) -> bool:
        known = self._parsed((shadow.pod and shadow.pod.carve) or "")
        return known is not None and known.closed

    def _parsed(self, text: str) -> Carve | None:
        """The carve in an annotation; None if it is damaged."""
        if text not in self._read:
            try:
                self._read[text] = Carve.from_json(text)
            except CarveRefused:
                self._read[text] = None
        return self._read[text]
