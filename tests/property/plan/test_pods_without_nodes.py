"""Share pods that fit no node, beside others of their quota that do: these get what cards there
are, and shadow pods are not made and ended again and again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import CreateShadow, DeleteShadow, Drain
from mizar_core.planning.node_fit import NO_NEEDS, Needs, fits
from mizar_core.planning.snapshot import NodeView, PodView, ShadowView, ShareView
from property.plan.snapshots import NOW, SIZES, at, node, pool, quota, waiting
from support.effort import effort
from support.projection import apply_plan

NODES = (node("n1", cards=2), node("n2", "west", cards=1))
NOWHERE, WEST = (Needs(selector=frozenset({("zone", zone)})) for zone in ("eastt", "west"))
CARDS = "nvidia.com/gpu"

asked = st.tuples(st.sampled_from(SIZES), st.sampled_from([NO_NEEDS, WEST, NOWHERE, NOWHERE]))


@effort(9)
@given(
    first=st.lists(asked, max_size=4),
    later=st.lists(asked, max_size=4),
    most=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    ceiling=st.none() | st.integers(1, 3),
)
# What the first pod's shadow pod gave up for the second one was at once taken for the first again.
@example([(2, NOWHERE)], [(4, NO_NEEDS)], (2, 1), 2)
def test_pods_that_fit_a_node_are_served_and_the_plan_settles(
    first: list[tuple[int, Needs]],
    later: list[tuple[int, Needs]],
    most: tuple[int, int],
    ceiling: int | None,
) -> None:
    profiles = [{"devices": size, "max": one} for size, one in zip(SIZES, most, strict=True)]
    limits = {} if ceiling is None else {"maxCards": ceiling}
    snapshot = Snapshot(
        pools=(pool(),), quotas=(quota("team-a", profiles=profiles, **limits),), nodes=NODES
    )
    pods = [_share(number, *one) for number, one in enumerate([*first, *later])]
    snapshot = _settled(replace(snapshot, shares=tuple(pods[: len(first)])))
    snapshot = _settled(replace(snapshot, shares=snapshot.shares + tuple(pods[len(first) :])))
    _nobody_waits_for_one_that_fits_no_node(snapshot, dict(zip(SIZES, most, strict=True)), ceiling)


def _share(number: int, size: int, needs: Needs) -> ShareView:
    return waiting(f"p{number}", size, f"team-a.mizar.share/gpu.{size}", needs=needs)


def _settled(snapshot: Snapshot) -> Snapshot:
    """The snapshot once nothing is planned any more, though each attempt may be repeated at
    once."""
    for _ in range(20):
        planned = plan(snapshot, NOW)
        moved = (CreateShadow, DeleteShadow, Drain)
        if not any(isinstance(one, moved) for one in planned.actions):
            return snapshot
        snapshot = _world(replace(apply_plan(snapshot, planned), attempted=frozenset()))
    raise AssertionError(f"still planning: {planned.actions}")


def _world(snapshot: Snapshot) -> Snapshot:
    """Scheduler, kubelets and node agents have done what they can."""
    shadows, used = list[ShadowView](), Counter[str]()
    for one in snapshot.shadows:
        used[one.on_node or ""] += one.cards
    for one in snapshot.shadows:
        if one.deleting:
            continue
        if one.pod is not None and one.pod.node is None:
            one = _placed(one, one.pod, used)
        shadows.append(one)
    return _with_users(replace(snapshot, shadows=tuple(shadows)))


def _placed(shadow: ShadowView, pod: PodView, used: Counter[str]) -> ShadowView:
    fitting = [one for one in NODES if fits(pod.needs, one)]
    free = [one for one in fitting if used[one.name] + shadow.cards <= _cards(one)]
    if not free:
        why = f"Insufficient {CARDS}" if fitting else "node(s) didn't match node selector"
        return replace(shadow, pod=replace(pod, unschedulable=f"0/2 nodes are available: 2 {why}"))
    name = free[0].name
    used[name] += shadow.cards
    return replace(
        shadow,
        uid=shadow.name,
        node=name,
        ready=True,
        healthy=shadow.devices,
        idle_since=at(10),
        pod=replace(pod, uid="uid", phase="Running", node=name, bound_at=at(20)),
    )


def _cards(node: NodeView) -> int:
    return node.cards[CARDS].total


def _with_users(snapshot: Snapshot) -> Snapshot:
    """Each waiting share pod takes all devices of a shadow pod that it can use."""
    shadows, nodes = {one.key: one for one in snapshot.shadows}, {one.name: one for one in NODES}
    shares = []
    for share in snapshot.shares:
        idle = (one for one in shadows.values() if one.ready and not one.holders)
        for one in idle if share.node is None else ():
            if one.resource == share.resource and fits(share.needs, nodes[one.node or ""]):
                holders = (share.key,) * share.count
                shadows[one.key] = replace(one, holders=holders, in_use=True, idle_since=None)
                share = replace(share, node=one.node)
                break
        shares.append(share)
    return replace(snapshot, shadows=tuple(shadows.values()), shares=tuple(shares))


def _nobody_waits_for_one_that_fits_no_node(
    snapshot: Snapshot, most: dict[int, int], ceiling: int | None
) -> None:
    """A share pod that fits a node with free cards waits only for shadow pods that fit one."""
    fitting = [
        one for one in snapshot.shadows if one.pod and any(fits(one.pod.needs, n) for n in NODES)
    ]
    used, held = Counter[str](), sum(one.cards for one in fitting)
    for one in fitting:
        used[one.node or ""] += one.cards
    for share in snapshot.shares:
        size = share.count
        free = [
            one
            for one in NODES
            if fits(share.needs, one) and used[one.name] + size // 2 <= _cards(one)
        ]
        full = sum(one.devices == size for one in fitting) >= most[size]
        over = ceiling is not None and held + size // 2 > ceiling
        assert share.node is not None or not free or full or over, (share, snapshot.shadows)
