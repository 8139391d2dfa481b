"""Excludes parts from a snapshot in such a way that their absence does no harm.

An excluded part is neither served nor ended, and no decision relies on it. But an excluded shadow
pod still counts against its quota, an excluded node still exists, and everything that belongs to an
excluded quota or pool is excluded with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.planning.snapshot import (
    Key,
    NodeView,
    PendingView,
    PodView,
    ShadowView,
    ShareView,
    Snapshot,
    quota_key,
)

Part = ShareView | PendingView | NodeView | ShadowView | GPUQuota | GPUPool

PartKind = Literal["Pod", "PendingPod", "Node", "ShadowPod", "GPUQuota", "GPUPool"]


@dataclass(frozen=True, order=True, slots=True)
class PartName:
    """Names a part of a snapshot; a pod has one part for each resource that it requests."""

    what: PartKind
    key: Key
    resource: str = ""


def parts(snapshot: Snapshot) -> Iterator[tuple[PartName, Part]]:
    """All parts of a snapshot; those whose absence affects the fewest others come first."""
    for share in snapshot.shares:
        yield PartName("Pod", share.key, share.resource), share
    for pod in snapshot.pending:
        yield PartName("PendingPod", (pod.namespace, pod.name)), pod
    for node in snapshot.nodes:
        yield PartName("Node", ("", node.name)), node
    for shadow in snapshot.shadows:
        yield PartName("ShadowPod", shadow.key), shadow
    for quota in snapshot.quotas:
        yield PartName("GPUQuota", quota_key(quota)), quota
    for pool in snapshot.pools:
        yield PartName("GPUPool", ("", pool.metadata.name)), pool


class Exclusion:
    """The exclusion of some parts, and of everything that belongs to them. `shadows`: the keys of
    excluded shadow pods, which still count against their quota and must not be the object of an
    action."""

    def __init__(self, snapshot: Snapshot, names: Collection[PartName]) -> None:
        self._snapshot = snapshot
        self._names = frozenset(names)
        self.pools = {name.key[1] for name in names if name.what == "GPUPool"}
        self.quotas = {name.key for name in names if name.what == "GPUQuota"}
        self.quotas |= {quota_key(one) for one in snapshot.quotas if one.spec.pool in self.pools}
        self.shadows = {one.key for one in snapshot.shadows if self._goes(one)}

    def remaining(self) -> Snapshot:
        """The snapshot without the excluded parts."""
        whole, tenants = self._snapshot, {namespace for namespace, _ in self.quotas}
        return replace(
            whole,
            pools=tuple(one for one in whole.pools if one.metadata.name not in self.pools),
            quotas=tuple(one for one in whole.quotas if quota_key(one) not in self.quotas),
            shadows=tuple(
                placeholder(one) if one.key in self.shadows else one for one in whole.shadows
            ),
            shares=tuple(
                one
                for one in whole.shares
                if PartName("Pod", one.key, one.resource) not in self._names
                # It is not known which quota their shadow pods would count against.
                and not (one.node is None and one.namespace in tenants)
            ),
            nodes=tuple(
                NodeView(one.name, available=False) if self._has("Node", ("", one.name)) else one
                for one in whole.nodes
            ),
            pending=tuple(
                one
                for one in whole.pending
                if not self._has("PendingPod", (one.namespace, one.name))
            ),
        )

    def _goes(self, shadow: ShadowView) -> bool:
        return (
            self._has("ShadowPod", shadow.key)
            or shadow.quota_key in self.quotas
            or shadow.pool in self.pools
        )

    def _has(self, what: PartKind, key: Key) -> bool:
        return PartName(what, key) in self._names


def placeholder(shadow: ShadowView) -> ShadowView:
    """A stand-in for the shadow pod that counts against the same quota and does nothing else: it
    appears to be terminating."""
    return ShadowView(
        namespace=shadow.namespace,
        name=shadow.name,
        uid=shadow.uid,
        pool=shadow.pool,
        quota=shadow.quota,
        quota_uid=shadow.quota_uid,
        resource="",
        devices=shadow.devices,
        cards=shadow.cards,
        sequence=shadow.sequence,
        deleting=True,
        contested=True,
        pod=PodView(deleting=True),
    )
