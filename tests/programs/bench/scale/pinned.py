"""A share pod on each node, as of a DaemonSet: each pod names its node."""

from __future__ import annotations

from datetime import UTC, datetime

from bench.scale.population import DEVICES, Size
from mizar_core.models import GPUPool, GPUQuota
from mizar_core.planning import Snapshot
from mizar_core.planning.node_fit import NAME_FIELD, Needs, Requirement, Term
from mizar_core.planning.snapshot import CardsOnNode, NodeView, ShareView
from support import objects

EACH = 1_000
"""Pods of one tenant: its quota allows no more shadow pods."""


def pinned(size: Size) -> Snapshot:
    """All pods are pending, and there is no shadow pod yet."""
    names = [f"node-{number:04}" for number in range(size.nodes)]
    tenants = [f"tenant-{number:03}" for number in range(-(-size.nodes // EACH))]
    profile = {"devices": DEVICES, "min": 0, "max": EACH}
    cards = {"nvidia.com/gpu": CardsOnNode(size.cards, size.cards)}
    return Snapshot(
        pools=(GPUPool.from_dict(objects.pool()),),
        quotas=tuple(GPUQuota.from_dict(objects.quota(one, profile)) for one in tenants),
        nodes=tuple(NodeView(name, cards=cards) for name in names),
        shares=tuple(_pod(tenants[n // EACH], name) for n, name in enumerate(names)),
    )


def _pod(tenant: str, node: str) -> ShareView:
    needs = Needs(terms=(Term((), (Requirement(NAME_FIELD, "In", (node,)),)),))
    resource, created = f"{tenant}.mizar.share/gpu.{DEVICES}", datetime.now(UTC)
    return ShareView(tenant, f"on-{node}", f"uid-{node}", resource, 1, created, needs=needs)
