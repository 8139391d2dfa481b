"""Whether a pool's profiles fit its cards, as far as the nodes' labels tell how large those are."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from mizar_core.fields import MEMORY_MIN
from mizar_core.models import GPUPool, Profile
from mizar_core.names import NODE_LABEL_CARD_MEMORY
from mizar_core.planning.membership import in_pool
from mizar_core.planning.snapshot import NodeView
from mizar_core.quantities import parse_scaling

MIB = 1 << 20


def misfit(pool: GPUPool, nodes: Iterable[NodeView]) -> str | None:
    """The first profile that fits no card of the pool, and why; None while every one may fit."""
    sizes = [size for node in nodes if in_pool(node, pool) and (size := _card_bytes(node))]
    if not sizes:
        return None
    found = (_misfit(pool, profile, max(sizes)) for profile in pool.spec.profiles)
    return next((one for one in found if one is not None), None)


def _misfit(pool: GPUPool, profile: Profile, card: int) -> str | None:
    whole = card * Fraction(parse_scaling(pool.spec.memory_scaling))
    share, wanted = whole * profile.cards / profile.devices, profile.memory_bytes
    what = (
        f"profile {profile.devices}: an even share of the pool's largest card,"
        f" {card // MIB} MiB, is {share // MIB} MiB per device"
    )
    if share < MEMORY_MIN:
        return f"{what}, too little for any CUDA program: take fewer devices"
    if wanted is not None and wanted > share:
        return f"{what}, less than its memory {profile.memory}: lower that, or take fewer devices"
    return None


def _card_bytes(node: NodeView) -> int | None:
    """GPU feature discovery labels nodes with a card's memory in MiB."""
    label = node.label(NODE_LABEL_CARD_MEMORY) or ""
    return int(label) * MIB if label.isdecimal() else None
