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

from mizar_core.models import GPUQuota
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
    at,
    node,
    pool,
    quota,
    ready,
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
    return st.one_of(st.integers(0, 2**32).map(cluster), wild_snapshots())


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
