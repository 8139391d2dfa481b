"""What a snapshot becomes when a plan is applied and nothing else happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mizar_core.models import GPUQuota, default_quota_spec
from mizar_core.models.meta import ObjectMeta
from mizar_core.planning.actions import (
    Action,
    CreateQuota,
    EmitEvent,
    EvictShare,
    LetPreempt,
    Plan,
    ShadowAction,
    WritePoolStatus,
    WriteQuotaStatus,
)
from mizar_core.planning.projection import project
from mizar_core.planning.snapshot import Snapshot, quota_key


def apply_plan(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot right after the plan. Deleted pods are still in it, as deleting."""
    for_shadows = [one for one in plan.actions if isinstance(one, ShadowAction)]
    others = [one for one in plan.actions if not isinstance(one, ShadowAction)]
    shadows = {one.key: one for one in snapshot.shadows}
    for action in for_shadows:
        after = project(shadows.pop(action.shadow, None), action)
        if after is not None:
            shadows[after.key] = after
    attempted = snapshot.attempted | {one.what for one in plan.attempts}
    refused_nodes = dict(snapshot.refused_nodes)
    for share, nodes in plan.refused_nodes.items():
        refused_nodes[share] = refused_nodes.get(share, frozenset()) | nodes
    applied = replace(
        snapshot,
        shadows=tuple(shadows.values()),
        attempted=attempted,
        refused_nodes=refused_nodes,
        silent_nodes={
            node: at
            for node, at in {**snapshot.silent_nodes, **plan.silent_nodes}.items()
            if node not in plan.heard_nodes
        },
    )
    return _apply_others(applied, others)


def _apply_others(snapshot: Snapshot, actions: Sequence[Action]) -> Snapshot:
    quotas = {one.quota: one.status for one in actions if isinstance(one, WriteQuotaStatus)}
    pools = {one.pool: one.status for one in actions if isinstance(one, WritePoolStatus)}
    events = [one for one in actions if isinstance(one, EmitEvent)]
    granted = [one for one in actions if isinstance(one, CreateQuota)]
    evicted = {one.uid for one in actions if isinstance(one, EvictShare)}
    opened = {one.uid for one in actions if isinstance(one, LetPreempt)}
    return replace(
        snapshot,
        shares=tuple(
            replace(
                one,
                deleting=one.deleting or one.uid in evicted,
                gated=one.gated and one.uid not in opened,
            )
            for one in snapshot.shares
        ),
        quotas=tuple(
            one.model_copy(update={"status": quotas.get(quota_key(one), one.status)})
            for one in snapshot.quotas
        )
        + tuple(_granted(snapshot, one) for one in granted),
        pools=tuple(
            one.model_copy(update={"status": pools.get(one.metadata.name, one.status)})
            for one in snapshot.pools
        ),
        announced=snapshot.announced.union(*((one.subject, one.wording) for one in events)),
    )


def _granted(snapshot: Snapshot, action: CreateQuota) -> GPUQuota:
    namespace, name = action.quota
    pool = next(one for one in snapshot.pools if one.metadata.name == action.pool)
    spec = default_quota_spec(pool)
    assert spec is not None
    meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{namespace}-{name}", generation=1)
    return GPUQuota(metadata=meta, spec=spec)
