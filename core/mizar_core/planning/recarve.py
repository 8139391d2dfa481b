"""Shadow pods' cards are cut as their pools and quotas say now, also while they are in use."""

from __future__ import annotations

from mizar_core.carve import Carve
from mizar_core.errors import CarveRefused
from mizar_core.models import GPUPool, GPUQuota, isolation_of
from mizar_core.planning.actions import Recarve
from mizar_core.planning.draft import Draft
from mizar_core.planning.snapshot import Key, ShadowView


def carve_of(shadow: ShadowView, pool: GPUPool, quota: GPUQuota) -> Carve:
    """How the node agent is to cut the shadow pod's cards."""
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
    )


def recarve(draft: Draft) -> None:
    """Tell node agents whose shadow pods are to be cut otherwise than they were told last."""
    carves = _Carves(draft)
    for shadow, _ in list(draft.in_order()):
        pod = shadow.pod
        if pod is None or pod.carve is None or pod.deleting or pod.ended or not pod.uid:
            continue
        wanted = carves.wanted(shadow, pod.carve)
        if wanted is not None and wanted != carves.read(pod.carve):
            draft.do(Recarve(shadow.key, wanted))


class _Carves:
    """Each made and read once: a quota's shadow pods have few between them."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._made: dict[tuple[Key, str, int, int, str], Carve] = {}
        self._read: dict[str, Carve | None] = {}

    def read(self, text: str) -> Carve | None:
        """What an annotation says; None if it is damaged."""
        if text not in self._read:
            self._read[text] = _parsed(text)
        return self._read[text]

    def wanted(self, shadow: ShadowView, present: str) -> Carve | None:
        """What the annotation should say; None where there is nothing to say.

        One that nobody wants any more stays as it is for those who use it, and takes nobody new;
        unused, it is drained.
        """
        if not self._draft.is_wanted(shadow):
            known = self.read(present) if shadow.held else None
            return known.changed(closed=True) if known else None
        shape = shadow.quota_key, shadow.pool, shadow.devices, shadow.cards, shadow.resource
        if shape not in self._made:
            pool, quota = self._draft.pools[shadow.pool], self._draft.standing[shadow.quota_key]
            self._made[shape] = carve_of(shadow, pool, quota)
        return self._made[shape]


def _parsed(text: str) -> Carve | None:
    try:
        return Carve.from_json(text)
    except CarveRefused:
        return None
