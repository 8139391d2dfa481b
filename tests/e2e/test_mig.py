"""MIG devices are shared like cards, whether NVIDIA's plugin announces them as cards or by size.

The simulated cards of one node are divided while the test runs, as with `nvidia-smi mig`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e.dividing import by_size, divided
from e2e.watching import card_of, cards_seen_inside, ready_shadows, wait_event, wait_held
from simgpu.machine import Machine
from support.kube import Kube, condition
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HALF = {"devices": 2, "min": 0, "max": 1}
SMALL, LARGE = "1g.5gb", "2g.10gb"
MIB = {SMALL: 4864, LARGE: 9728}
BY_SIZE = by_size(LARGE)
MODEL = "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb"
LABELS = {f"{BY_SIZE}.product": MODEL, f"{BY_SIZE}.memory": str(MIB[LARGE])}


@pytest.fixture
def node(mizar_cluster: Cluster) -> Node:
    return mizar_cluster.nodes[-1]


@pytest.fixture
def mixed(kube: Kube, node: Node) -> Iterator[list[str]]:
    """The MIG devices of a card that is divided into two of different sizes."""
    with divided(kube, node, "mixed", [SMALL, LARGE]) as made:
        yield made


@pytest.fixture
def single(kube: Kube, node: Node) -> Iterator[list[str]]:
    """The MIG devices of a node whose cards are divided into equal ones."""
    with divided(kube, node, "single", [SMALL] * 3, [SMALL] * 2) as made:
        yield made


@pytest.fixture
def labels(kube: Kube, node: Node) -> Iterator[None]:
    """The node's labels for MIG devices by strategy mixed, as GPU feature discovery writes them."""
    kube.run("label", "node", node.name, *(f"{key}={value}" for key, value in LABELS.items()))
    yield
    kube.run("label", "node", node.name, *(f"{key}-" for key in LABELS))


def shared(kube: Kube, tenant: str, node: Node, size: str) -> str:
    """The UUID of the MIG device that two pods share, each kept within its half."""
    mib = MIB[size]
    kube.apply(share_pod(tenant, "a"), share_pod(tenant, "b"))
    kube.wait_running(tenant, "a", "b")
    (shadow,) = ready_shadows(kube, tenant)
    wait_held(kube, tenant, "a", "b")
    (card,) = shadow["status"]["cards"]
    assert shadow["status"]["node"] == node.name
    assert card["model"] == f"NVIDIA A100-SXM4-40GB MIG {size}"
    assert card["memoryMiB"] == mib
    for pod in ("a", "b"):
        assert cards_seen_inside(kube, tenant, pod) == card_of(kube, tenant, pod) == {card["uuid"]}
        status, answer = kube.exec(tenant, pod, "cuda-sample", "alloc", str(mib // 2))
        assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer
        status, answer = kube.exec(tenant, pod, "cuda-sample", "alloc", str(mib // 8))
        assert status == 0, answer
        _, figures = kube.exec(tenant, pod, "cuda-sample", "smi")
        assert f"/ {mib // 2:6}MiB" in figures, figures
    return str(card["uuid"])


def test_by_strategy_mixed_a_pool_names_a_size(
    kube: Kube, mixed: list[str], labels: None, stage: "Stage", node: Node
) -> None:
    """Two pods share one MIG device, beside pods on others of the card; then the MIG device fails
    by an XID of its own."""
    _, large = mixed
    pool = stage.pool(physicalResource=BY_SIZE, cardModels=[MODEL], idleTimeoutSeconds=3)
    tenant = stage.tenant(HALF, pool=pool)
    assert shared(kube, tenant, node, LARGE) == large

    def told() -> bool:
        models = (kube.get("gpupool", pool) or {})["status"]["models"]
        assert [(one["model"], one["total"], one["held"]) for one in models] == [(MODEL, 1, 1)]
        return True

    wait_for("the pool to count it", told)
    with Machine(node.simgpu_dir) as machine:

        def only_there() -> bool:
            """Whether nothing else is on the cards; the node agent may just be measuring what a
            context costs."""
            on_cards = [one for card in machine.cards for one in card.processes]
            return len(machine.card(large).processes) == 2 and not on_cards

        wait_for("both pods' programs on the MIG device alone", only_there)
        machine.set_health(large, 48)
        assert "XID 48" in wait_event(kube, tenant, "a", "DeviceUnhealthy")
        machine.set_health(large, 0)


def test_by_strategy_single_they_come_as_cards(
    kube: Kube, single: list[str], stage: "Stage", node: Node
) -> None:
    """The plugin says nvidia.com/gpu, and so does the pool."""
    only_here = {"kubernetes.io/hostname": node.name}
    tenant = stage.tenant(HALF, pool=stage.pool(nodeSelector=only_here, idleTimeoutSeconds=3))
    assert shared(kube, tenant, node, SMALL) in single


def test_a_profile_that_no_mig_device_of_the_size_has_room_for(
    kube: Kube, mixed: list[str], labels: None, stage: "Stage"
) -> None:
    pool = stage.pool(
        physicalResource=BY_SIZE, profiles=[{"devices": 2, "cards": 1, "memory": "6Gi"}]
    )

    def told() -> bool:
        ready = condition(kube.get("gpupool", pool) or {}, "Ready")
        return ready["reason"] == "ProfileTooLarge" and f"{MIB[LARGE]} MiB" in ready["message"]

    wait_for("the pool to say so", told)
