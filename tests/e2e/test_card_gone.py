"""A card drops off the bus while pods share it, alone or as one of two, and comes back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e.card_access import card_nodes_inside
from e2e.components import kill_containers
from e2e.test_loss import running
from e2e.test_restarts import restart_counts
from e2e.watching import card_of, cards_seen_inside, ready_shadows, wait_event, wait_held
from simgpu.machine import Machine
from support.kube import Kube
from support.objects import deployment, share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HALF = {"devices": 2, "min": 0, "max": 1}
GONE_AFTER_S = 60.0
"""Seconds after which a card that NVML does not list is gone for good: no reset takes that long."""
NEXT_MINOR = 2
"""The first minor number that is free on a node of two cards."""


def test_a_card_that_is_gone_and_comes_back_by_another_number(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """The pods that share the card get an event at once, and are evicted when it is gone for good.
    Pods that come later get its device node by the new number, and the pod on the other card never
    gets it."""
    node = mizar_cluster.nodes[-1]
    pool = stage.pool(nodeSelector={"kubernetes.io/hostname": node.name})
    near, tenant = (stage.tenant(HALF, pool=pool) for _ in range(2))
    kube.apply(share_pod(near, "near"))
    kube.wait_running(near, "near")
    wait_held(kube, near, "near")
    (other,) = card_of(kube, near, "near")
    kube.apply(deployment(tenant, "users", replicas=2))
    names = wait_for("two pods on a card", lambda: running(kube, tenant, 2))
    ready_shadows(kube, tenant)
    wait_held(kube, tenant, *names)
    (card,) = card_of(kube, tenant, names[0])
    assert card != other
    nodes = card_nodes_inside(kube, near, "near")

    with Machine(node.simgpu_dir) as machine, restored(machine, card, node):
        machine.remove(card)
        gone = time.monotonic()
        for pod in names:
            assert "gone" in wait_event(kube, tenant, pod, "DeviceUnhealthy")
        wait_for("their eviction", lambda: _evicted(kube, tenant, names), timeout=240)
        assert time.monotonic() - gone >= GONE_AFTER_S
        assert card in wait_event(kube, tenant, names[0], "CardLost")

        machine.set_minor(card, NEXT_MINOR)
        machine.restore(card)
        after = wait_for(
            "two others on the card",
            lambda: running(kube, tenant, 2, but=names),
            explain=lambda: kube.attempt("get", "pods,shadowpods", "-A", "-o", "wide")[1],
        )
        for pod in after:
            assert cards_seen_inside(kube, tenant, pod) == {card}
            assert card_nodes_inside(kube, tenant, pod) == {f"nvidia{NEXT_MINOR}"}
        assert restart_counts(kube, near, "near") == {"main": 0}
        kill_containers(mizar_cluster, kube.get("pod", "near", near) or {})
        wait_for("near to start again", lambda: restart_counts(kube, near, "near") == {"main": 1})
        kube.wait_running(near, "near")
        assert cards_seen_inside(kube, near, "near") == {other}
        assert card_nodes_inside(kube, near, "near") == nodes


def test_one_of_two_cards_of_a_shadow_pod_is_gone(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """Only the pods that use it are evicted. The others run on, also when their containers start
    anew, and the card is shared again when it is back."""
    node = mizar_cluster.nodes[-1]
    pool = stage.pool(
        nodeSelector={"kubernetes.io/hostname": node.name}, profiles=[{"devices": 4, "cards": 2}]
    )
    tenant = stage.tenant({"devices": 4, "min": 0, "max": 1}, pool=pool)
    kube.apply(deployment(tenant, "users", "mizar.share/gpu.4", replicas=4))
    names = wait_for("four pods on two cards", lambda: running(kube, tenant, 4))
    shadow = _shadow(kube, tenant)
    wait_held(kube, tenant, *names)
    cards = {pod: min(card_of(kube, tenant, pod)) for pod in names}
    gone, other = sorted(set(cards.values()))
    losers = sorted(pod for pod in names if cards[pod] == gone)
    assert len(losers) == 2

    with Machine(node.simgpu_dir) as machine, restored(machine, gone, node):
        machine.remove(gone)
        for pod in losers:
            assert "gone" in wait_event(kube, tenant, pod, "DeviceUnhealthy")
        for pod in losers:
            assert gone in wait_event(kube, tenant, pod, "CardLost", timeout=240)
            assert gone in wait_event(kube, tenant, pod, "ShareEvicted")
        others = sorted(set(names) - set(losers))
        assert sorted(running(kube, tenant, 2) or ()) == others
        assert not _evicted(kube, tenant, others)
        kill_containers(mizar_cluster, kube.get("pod", others[0], tenant) or {})
        wait_for(
            "its container to start again",
            lambda: restart_counts(kube, tenant, others[0]) == {"main": 1},
        )
        kube.wait_running(tenant, others[0])
        assert cards_seen_inside(kube, tenant, others[0]) == {other}
        assert restart_counts(kube, tenant, others[1]) == {"main": 0}
        assert _shadow(kube, tenant) == shadow

        machine.restore(gone)
        after = wait_for(
            "two others on the card that is back", lambda: running(kube, tenant, 4, but=losers)
        )
        for pod in set(after) - set(others):
            assert cards_seen_inside(kube, tenant, pod) == {gone}
        assert _shadow(kube, tenant) == shadow


def _shadow(kube: Kube, tenant: str) -> str:
    """The UID of the tenant's only shadow pod, which is ready."""
    (found,) = ready_shadows(kube, tenant)
    return str(found["metadata"]["uid"])


def _evicted(kube: Kube, tenant: str, pods: list[str]) -> bool:
    """Whether one of the pods was evicted."""
    return any("ShareEvicted" in dict(kube.events(tenant, pod)) for pod in pods)


@contextmanager
def restored(machine: Machine, card: str, node: Node) -> Iterator[None]:
    """At the end the card is there, by the number that it has by then."""
    minor = machine.card(card).minor
    try:
        yield
    finally:
        machine.set_minor(card, minor)
        machine.restore(card)
        (node.simgpu_dir / "dev" / f"nvidia{NEXT_MINOR}").unlink(missing_ok=True)
