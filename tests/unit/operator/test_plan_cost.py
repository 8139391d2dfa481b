"""What a plan costs: a namespace whose pods all have constraints of their own stops nobody."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Event

import pytest

from mizar_core.planning import Plan, Snapshot, plan
from mizar_core.planning.actions import CreateShadow, DeleteShadow, Drain, EmitEvent
from mizar_core.planning.node_fit import HOSTNAME, Needs, Requirement, Term
from mizar_core.planning.postponed import JUDGED_MAX, TURN
from mizar_core.planning.snapshot import PendingView, PodView
from mizar_operator.reconcile import run_in_thread
from property.plan.snapshots import NOW, at, node, pool, quota, ready, shadow, waiting
from stateful.harness import KEY, Harness
from stateful.model import Model
from support.calls import calls_of
from support.planned import actions, small

FEW, MANY = 60, 240
CARDS = "nvidia.com/gpu"


def _by_name(number: int) -> Needs:
    return Needs(terms=(Term((), (Requirement("metadata.name", "In", (f"n{number}",)),)),))


def _pinned(count: int, most: int, **fields: object) -> Snapshot:
    return Snapshot(
        pools=(pool(),),
        quotas=(quota("team-a", profiles=[{"devices": 2, "max": most}]),),
        nodes=tuple(node(f"n{number}") for number in range(count)),
        shares=tuple(
            waiting(f"p{number}", needs=_by_name(number), **fields) for number in range(count)
        ),
    )


def _new(count: int) -> Snapshot:
    return _pinned(count, count)


def _denied(count: int) -> Snapshot:
    return _pinned(count, 2)


def _blocked(count: int) -> Snapshot:
    pods = [PodView(needs=_by_name(n), unschedulable="Insufficient cpu") for n in range(count)]
    shadows = (shadow(f"shadow-2-{n}", pod=one, sequence=n) for n, one in enumerate(pods))
    found = _pinned(count, count, unschedulable="Insufficient devices", unschedulable_since=at(99))
    return Snapshot(**{**_parts(found), "shadows": tuple(shadows)})


def _draining(count: int) -> Snapshot:
    pods = [PodView(phase="Running", node=f"n{n}", drain_asked=at(5)) for n in range(count)]
    shadows = (
        ready(f"shadow-2-{n}", f"n{n}", pod=one, sequence=n, draining=True)
        for n, one in enumerate(pods)
    )
    return Snapshot(**{**_parts(_pinned(count, count)), "shadows": tuple(shadows)})


def _parts(snapshot: Snapshot) -> dict[str, object]:
    return {name: getattr(snapshot, name) for name in ("pools", "quotas", "nodes", "shares")}


def _calls(snapshot: Snapshot) -> int:
    return calls_of(lambda: plan(snapshot, NOW))


@pytest.mark.parametrize("make", [_new, _denied, _blocked, _draining])
def test_pods_that_name_their_nodes_cost_the_same_each(make: Callable[[int], Snapshot]) -> None:
    assert _calls(make(MANY)) <= 1.3 * (MANY / FEW) * _calls(make(FEW))


def _served(tenants: int) -> Snapshot:
    """Each tenant has a shadow pod in use, one that nobody uses, and a pod that waits."""
    names = [f"team-{number}" for number in range(tenants)]
    resources = {one: f"{one}.mizar.share/gpu.2" for one in names}
    held = (ready("shadow-2-a", f"n{n}", namespace=one) for n, one in enumerate(names))
    free = (ready("shadow-2-b", f"n{n}", namespace=one, sequence=1) for n, one in enumerate(names))
    return Snapshot(
        pools=(pool(),),
        quotas=tuple(quota(one, profiles=[{"devices": 2, "max": 3}]) for one in names),
        nodes=tuple(node(f"n{number}") for number in range(tenants)),
        shadows=(*(replace(one, holders=((one.namespace, "p"),)) for one in held), *free),
        shares=(
            *(waiting("p", 1, resources[one], one, node=f"n{n}") for n, one in enumerate(names)),
            *(waiting("q", 3, resources[one], one) for one in names),
        ),
    )


def test_a_larger_cluster_costs_the_same_per_pod() -> None:
    """Counted in calls: what the clock adds to that are the processor's caches."""
    assert _calls(_served(MANY)) <= 1.05 * (MANY / FEW) * _calls(_served(FEW))


def test_each_pod_that_names_its_node_gets_a_shadow_pod_there() -> None:
    by_label = tuple(
        waiting(f"q{n}", needs=Needs(selector=frozenset({(HOSTNAME, f"host-{n}")})))
        for n in range(2)
    )
    bare = [node(f"n{n}") for n in range(4)]
    nodes = tuple(
        replace(one, labels=one.labels | {(HOSTNAME, f"host-{n - 2}")})
        for n, one in enumerate(bare)
    )
    made = actions(CreateShadow, small(nodes=nodes, shares=(*_new(2).shares, *by_label)))
    assert len(made) == 4


async def test_other_tasks_run_while_a_plan_is_made() -> None:
    operator, started, renewed = Harness(Model()), Event(), Event()

    def slow(snapshot: Snapshot, now: datetime) -> Plan:
        started.set()
        assert renewed.wait(20), "the event loop stands still"
        return plan(snapshot, now)

    operator.reconciler._planner, operator.reconciler._runs = slow, run_in_thread
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(operator.reconciler.reconcile(KEY))
        while not started.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        renewed.set()


def _too_few(count: int) -> Snapshot:
    """Each node has an idle shadow pod with one card, and each pod that waits asks for four."""
    idle = [ready(f"shadow-2-{n}", f"n{n}", sequence=n, idle_since=at(5)) for n in range(count)]
    whole = [PendingView("b", f"p{n}", f"u{n}", at(3), ((CARDS, 4),)) for n in range(count)]
    return Snapshot(
        pools=(pool(),),
        quotas=(quota("team-a", profiles=[{"devices": 2, "max": count}]),),
        nodes=tuple(node(f"n{n}") for n in range(count)),
        shadows=tuple(idle),
        pending=tuple(whole),
    )


def test_pods_for_which_no_room_can_be_made_cost_the_same_each() -> None:
    assert not actions(Drain, _too_few(2))
    assert _calls(_too_few(MANY)) <= 1.3 * (MANY / FEW) * _calls(_too_few(FEW))


def _moved(count: int) -> Snapshot:
    """Pods that need devices of another resource too, and that the scheduler refuses all nodes with
    free devices; their new shadow pods are on their way."""
    names = [f"n{number}" for number in range(count)]
    refused = Needs(excluded_nodes=frozenset(names))
    idle = [ready(f"shadow-2-{name}", name, sequence=n) for n, name in enumerate(names)]
    new = [shadow(f"new-{n}", pod=PodView(needs=refused), sequence=count + n) for n in range(count)]
    one = waiting("p", 2, unschedulable="Insufficient cpu", unschedulable_since=at(99))
    return Snapshot(
        pools=(pool(),),
        quotas=(quota("team-a", profiles=[{"devices": 2, "max": 1000}]),),
        nodes=tuple(node(name) for name in ("a", *names)),
        shadows=(*idle, *new),
        shares=tuple(
            replace(one, name=name, uid=name, count=2, beside=("other/gpu.2",)) for name in names
        ),
        free_since={(one.resource, name): (at(99), at(99)) for name in names},
    )


def test_pods_whose_devices_are_moved_cost_the_same_each() -> None:
    assert not actions(CreateShadow, _moved(2))
    assert _calls(_moved(MANY)) <= 1.3 * (MANY / FEW) * _calls(_moved(FEW))


def _distinct(count: int, **fields: object) -> Snapshot:
    needs = (Needs(selector=frozenset({("mine", str(n))})) for n in range(count))
    shares = tuple(waiting(f"p{n}", needs=one, **fields) for n, one in enumerate(needs))
    limits = [{"devices": 2, "max": 1000}]
    return small(quotas=(quota("team-a", profiles=limits),), shares=shares)


def test_of_very_many_constraints_some_are_judged_in_each_plan() -> None:
    assert len(actions(CreateShadow, _distinct(JUDGED_MAX))) == JUDGED_MAX
    snapshot = _distinct(JUDGED_MAX + 10)
    assert len(actions(CreateShadow, snapshot)) == JUDGED_MAX
    told = [
        one.message for one in actions(EmitEvent, snapshot) if "considered later" in one.message
    ]
    assert len(told) == 10
    assert all(one.startswith("the waiting pods of its namespace have more") for one in told)
    due = plan(snapshot, NOW).due
    assert due is not None
    assert NOW < due <= NOW + TURN


def test_constraints_that_most_nodes_meet_are_compared_fast() -> None:
    def calls(count: int) -> int:
        lines = [Requirement("zone", "NotIn", ("west", str(n))) for n in range(JUDGED_MAX)]
        shares = (
            waiting(f"p{n}", needs=Needs(terms=(Term((one,)),))) for n, one in enumerate(lines)
        )
        nodes = (node(f"n{n}", zone="east" if n else "west") for n in range(count))
        quotas = (quota("team-a", profiles=[{"devices": 2, "max": 1000}]),)
        return _calls(small(nodes=tuple(nodes), shares=tuple(shares), quotas=quotas))

    each = (calls(60) - calls(20)) / (60 - 20) / JUDGED_MAX
    assert each < JUDGED_MAX, "every two of them are compared on every node"


def test_each_constraint_is_judged_in_some_plan() -> None:
    snapshot, seen = _distinct(3 * JUDGED_MAX), set[Needs]()
    for turn in range(40):
        if len(seen) == 3 * JUDGED_MAX:
            break
        made = plan(snapshot, NOW + turn * TURN).actions
        seen |= {one.needs for one in made if isinstance(one, CreateShadow)}
    assert len(seen) == 3 * JUDGED_MAX


def test_pods_without_constraints_wait_for_no_turn() -> None:
    snapshot = _distinct(3 * JUDGED_MAX)
    plain = waiting("plain")
    mixed = Snapshot(**{**_parts(snapshot), "shares": (*snapshot.shares, plain)})
    assert plain.needs in {
        Needs(anti_affinity=one.needs.anti_affinity) for one in actions(CreateShadow, mixed)
    }
    messages = [one for one in actions(EmitEvent, mixed) if one.about == plain.key]
    assert "considered later" not in messages[0].message


def test_the_shadow_pods_of_pods_that_are_not_judged_stay() -> None:
    snapshot = _distinct(3 * JUDGED_MAX)
    pods = [PodView(needs=one.needs, unschedulable="no node") for one in snapshot.shares]
    shadows = tuple(shadow(f"shadow-2-{n}", pod=one, sequence=n) for n, one in enumerate(pods))
    held = Snapshot(**{**_parts(snapshot), "shadows": shadows})
    assert not actions(DeleteShadow, held)
    assert len(plan(held, NOW + timedelta(hours=1)).actions) > 0
