"""Snapshots of ordinary clusters, beside those in which every state is possible: in the latter, by
chance alone, hardly any shadow pod would be idle, in use, or in another pod's way.

A number decides all of a cluster: what hypothesis draws piece by piece resembles what it drew
before, and leaves out for dozens of examples what takes several pieces together.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.planning.node_fit import NO_NEEDS, Needs
from mizar_core.planning.snapshot import (
    PendingView,
    PodView,
    ShadowView,
    ShareView,
    Snapshot,
)
from property.plan.snapshots import (
    CARVES,
    NAMESPACES,
    NOW,
    at,
    node,
    pool,
    quota,
    ready,
    shadow,
    waiting,
    wild_snapshots,
)

LIVES = (
    *("idle", "idle", "used", "draining", "drained", "lost", "lost in use", "let go", "starting"),
    *("no pod yet", "silent", "drained in vain"),
)
CALM = ("idle", "idle", "idle", "used")
"""Where little happens, idle shadow pods are in the way of some pod."""
LOSSES: tuple[dict[str, Any], ...] = ({"phase": "Failed"}, {"deleting": True}, {"node": "gone"})
CARDS = "nvidia.com/gpu"
EAST, WEST = (Needs(selector=frozenset({("zone", zone)})) for zone in ("east", "west"))


def snapshots() -> st.SearchStrategy[Snapshot]:
    """Snapshots of all kinds."""
    return st.one_of(st.integers(0, 2**32).map(changed), wild_snapshots())


def changed(seed: int) -> Snapshot:
    """The cluster of that number. In every second one, somebody has changed something, or something
    has failed. (A random number more for `cluster` would make others of the numbers that tests
    name.)"""
    random, made = Random(f"changed {seed}"), cluster(seed)
    change = random.choice(CHANGES)
    return random.choice([made, change(random, made)])


def cluster(seed: int) -> Snapshot:
    """Two nodes, two tenants with up to three shadow pods each, some share pods that wait."""
    random = Random(seed)
    lives = random.choice([CALM, LIVES])
    sizes = {one: random.randint(0, 3) for one in NAMESPACES}
    shadows = [
        _life(random, one, number, random.choice(lives))
        for one, size in sizes.items()
        for number in range(size)
    ]
    free = {(f"{one}.mizar.share/gpu.2", "n1"): (at(60),) * 2 for one in NAMESPACES}
    return Snapshot(
        pools=(pool(idleTimeoutSeconds=random.choice([50, 500])),),
        quotas=tuple(_quota(random, *one) for one in sizes.items()),
        nodes=(node("n1"), node("n2", "west")),
        shadows=tuple(shadow for shadow, _ in shadows),
        shares=(
            *(user for _, users in shadows for user in users),
            *(_waiting(random, number) for number in range(random.randint(0, 3))),
        ),
        free_since=random.choice([{}, free]),
        pending=tuple(_whole(random, number) for number in range(random.randint(0, 1))),
        taken=random.choice([{}, {(CARDS, "n1"): 1, (CARDS, "n2"): 2}]),
    )


def _quota(random: Random, namespace: str, size: int) -> GPUQuota:
    """A quota for as many shadow pods as there are, or for one more; some keep one ready."""
    most = max(size + random.choice([0, 0, 1]), 1)
    return quota(namespace, profiles=[{"devices": 2, "min": random.choice([0, 0, 1]), "max": most}])


def _life(
    random: Random, namespace: str, sequence: int, life: str
) -> tuple[ShadowView, tuple[ShareView, ...]]:
    """A shadow pod, and the share pods that use it."""
    name, where = f"shadow-2-{sequence}", random.choice(["n1", "n2"])
    carve = random.choice([None, *CARVES[:2]])
    pod = PodView("uid-pod", "Running", where, at(100), carve=carve)
    made = ready(name, where, namespace=namespace, sequence=sequence, pod=pod)
    made = replace(made, idle_since=at(random.choice([10, 100, 1000])))
    users = ()
    if life in ("used", "lost in use"):
        user = waiting(f"user-{sequence}", random.randint(1, 2), made.resource, namespace)
        users = (replace(user, node=where),)
        made = replace(made, holders=(user.key,) * user.count, in_use=True, idle_since=None)
    changes = {
        "draining": {"pod": replace(pod, drain_asked=at(5)), "ready": False, "draining": True},
        "starting": {"ready": False, "healthy": 0},
        "let go": {"pod": None, "ready": False, "deleting": True},
    }
    changes["no pod yet"] = {**changes["starting"], "pod": None, "node": None, "phase": None}
    changes["silent"] = {**changes["starting"], "node": None, "idle_since": None}
    asked = replace(pod, drain_asked=at(70))
    changes["drained in vain"] = {**changes["silent"], "pod": asked}
    changes["drained"] = {**changes["draining"], "drained": True}
    if life.startswith("lost"):
        loss = random.choice(LOSSES)
        changes[life] = {"pod": replace(pod, **loss), "ready": False}
    return replace(made, **changes.get(life, {})), users  # type: ignore[arg-type]


def _waiting(random: Random, number: int) -> ShareView:
    """A share pod of a tenant that waits; the scheduler may have refused it for a while."""
    namespace = random.choice(NAMESPACES)
    resource = f"{namespace}.mizar.share/gpu.2"
    made = waiting(f"p{number}", random.choice([1, 1, 2]), resource, namespace)
    refused = random.random() < 0.5
    return replace(
        made,
        needs=random.choice([NO_NEEDS, EAST, WEST]),
        unschedulable="Insufficient cpu" if refused else None,
        unschedulable_since=at(30) if refused else None,
        gated=not refused and random.random() < 0.5,
    )


def _whole(random: Random, number: int) -> PendingView:
    """A pod that waits for whole cards."""
    name, cards = f"whole-{number}", ((CARDS, random.randint(1, 3)),)
    needs = random.choice([NO_NEEDS, EAST, WEST])
    unknown = random.random() < 0.3
    return PendingView(
        "team-z", name, f"uid-{name}", at(number), cards, needs, reason_unknown=unknown
    )


# ---- what changes a cluster ----------------------------------------------------------------------


def _lower(random: Random, snapshot: Snapshot) -> Snapshot:
    """An administrator permits fewer shadow pods than there are."""
    most = random.randint(0, 1)
    spec = {"profiles": [{"devices": 2, "max": most}]}
    if random.random() < 0.3:
        spec = {"profiles": [{"devices": 2, "max": 3}], "maxCards": most}  # type: ignore[dict-item]
    return replace(snapshot, quotas=tuple(quota(one, **spec) for one in NAMESPACES))


def _remove_a_quota(random: Random, snapshot: Snapshot) -> Snapshot:
    """It is gone, or on its way."""
    first, *others = random.sample(snapshot.quotas, len(snapshot.quotas))
    leaving = first.metadata.changed(deletion_timestamp=NOW)
    left = random.choice([(), (first.model_copy(update={"metadata": leaving}),)])
    return replace(snapshot, quotas=(*left, *others))


def _give_default_quotas(random: Random, snapshot: Snapshot) -> Snapshot:
    """A namespace has no quota, and its pool has one for it, or for others."""
    name = random.choice(NAMESPACES)
    labels = random.choice([{}, {"gpus": "no"}])
    default = {
        "namespaceSelector": {"matchExpressions": [{"key": "gpus", "operator": "DoesNotExist"}]},
        "profiles": [{"devices": 2, "max": 2}],
    }
    return replace(
        snapshot,
        pools=tuple(_of_pool(one, defaultQuota=default) for one in snapshot.pools),
        quotas=tuple(one for one in snapshot.quotas if one.metadata.namespace != name),
        shadows=tuple(one for one in snapshot.shadows if one.namespace != name),
        shares=(
            *(one for one in snapshot.shares if one.namespace != name or one.node is None),
            waiting("first", 1, f"{name}.mizar.share/gpu.2", name),
        ),
        namespaces={name: labels},
    )


def _of_pool(made: GPUPool, **spec: object) -> GPUPool:
    return pool(made.metadata.name, idleTimeoutSeconds=made.spec.idle_timeout_seconds, **spec)


def _break_cards(random: Random, snapshot: Snapshot) -> Snapshot:
    """The cards of some shadow pods fail: all of a shadow pod's devices, or one."""

    def broken(one: ShadowView) -> ShadowView:
        if not one.ready or random.random() < 0.5:
            return one
        healthy = random.choice([0, one.healthy - 1])
        return replace(one, broken=True, healthy=healthy, ready=healthy > 0)

    return replace(snapshot, shadows=tuple(map(broken, snapshot.shadows)))


def _take_all_cards(random: Random, snapshot: Snapshot) -> Snapshot:
    """Shadow pods for which pods wait find no free card."""
    name = random.choice(NAMESPACES)
    pod = PodView("uid-pod", unschedulable=f"0/2 nodes are available: 2 Insufficient {CARDS}.")
    blocked = shadow("shadow-2-blocked", namespace=name, sequence=9, pod=pod)
    waits = waiting("blocked", 2, blocked.resource, name, priority=random.choice([0, 10]))
    return replace(
        snapshot,
        quotas=tuple(quota(one, profiles=[{"devices": 2, "max": 5}]) for one in NAMESPACES),
        shadows=(*snapshot.shadows, blocked),
        shares=(*snapshot.shares, waits),
        taken={(CARDS, "n1"): 4, (CARDS, "n2"): 4},
    )


def _use_larger_ones(random: Random, snapshot: Snapshot) -> Snapshot:
    """Shadow pods of four devices on two cards beside those of two on one, with a common limit."""
    larger = [
        made
        for name in NAMESPACES
        for number in range(random.randint(0, 2))
        for made in [_larger(random, name, number)]
    ]
    limits = {} if random.random() < 0.5 else {"maxCards": random.randint(1, 5)}
    profiles = [{"devices": 2, "max": 3}, {"devices": 4, "max": random.randint(0, 3)}]
    return replace(
        snapshot,
        quotas=tuple(quota(one, profiles=profiles, **limits) for one in NAMESPACES),
        shadows=(*snapshot.shadows, *(made for made, _ in larger)),
        shares=(
            *snapshot.shares,
            *(user for _, users in larger for user in users),
            *(_larger_share(random, number) for number in range(random.randint(0, 2))),
        ),
    )


def _larger(
    random: Random, namespace: str, sequence: int
) -> tuple[ShadowView, tuple[ShareView, ...]]:
    where = random.choice(["n1", "n2"])
    pod = PodView("uid-pod", "Running", where, at(100), carve=random.choice([None, *CARVES[2:]]))
    name = f"shadow-4-{sequence}"
    made = ready(name, where, namespace=namespace, devices=4, sequence=sequence, pod=pod)
    if random.random() < 0.5:
        return replace(made, idle_since=at(random.choice([10, 100, 1000]))), ()
    user = waiting(f"large-user-{sequence}", random.randint(1, 4), made.resource, namespace)
    held = (user.key,) * user.count
    return replace(made, holders=held, in_use=True, idle_since=None), (replace(user, node=where),)


def _larger_share(random: Random, number: int) -> ShareView:
    namespace = random.choice(NAMESPACES)
    resource = f"{namespace}.mizar.share/gpu.4"
    return waiting(f"large-{number}", random.randint(1, 4), resource, namespace)


CHANGES = (
    _lower,
    _remove_a_quota,
    _give_default_quotas,
    _break_cards,
    _take_all_cards,
    _use_larger_ones,
)
