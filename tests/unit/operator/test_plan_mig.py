"""A pool of MIG devices: cards, model and memory are those of one size, by the nodes' labels."""

from dataclasses import replace
from typing import Any

import pytest

from mizar_core.planning.actions import CreateShadow, WritePoolStatus
from mizar_core.planning.node_fit import Requirement, Taint, Toleration, fits
from mizar_core.planning.snapshot import CardsOnNode, NodeView
from property.plan.snapshots import node, pool, waiting
from support.planned import actions, small

SIZE = "nvidia.com/mig-1g.5gb"
MODEL = "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    "nvidia.com/gpu.memory": "40960",
    f"{SIZE}.product": MODEL,
    f"{SIZE}.memory": "4864",
}


def divided(name: str = "n1", **changes: Any) -> NodeView:
    """A node with a whole card and three MIG devices, by strategy mixed."""
    cards = {"nvidia.com/gpu": CardsOnNode(1, 1), SIZE: CardsOnNode(3, 2)}
    made = node(name)
    labels = made.labels | frozenset(LABELS.items())
    return replace(made, labels=labels, cards=cards, **changes)


def said(**spec: Any) -> tuple[str, str, list[tuple[str, int, int]]]:
    """Reason and message of the pool's condition Ready, and its models with their numbers."""
    pools = (pool(physicalResource=SIZE, **spec),)
    (found,) = actions(WritePoolStatus, small(pools=pools, nodes=(divided(),)))
    (ready,) = found.status.conditions
    return (
        ready.reason,
        ready.message,
        [(one.model, one.total, one.healthy) for one in found.status.models],
    )


def test_its_cards_are_the_mig_devices_of_its_size() -> None:
    assert said() == ("CardsFound", "3 cards, 2 healthy", [(MODEL, 3, 2)])


@pytest.mark.parametrize(
    ("models", "found"),
    [([MODEL], True), (["*-MIG-1g.5gb"], True), (["NVIDIA-A100-SXM4-40GB"], False)],
)
def test_its_models_are_the_mig_devices(models: list[str], found: bool) -> None:
    assert (said(cardModels=models)[0] == "CardsFound") == found


def test_its_profiles_must_fit_the_mig_device() -> None:
    reason, message, _ = said(profiles=[{"devices": 2, "cards": 1, "memory": "4Gi"}])
    assert reason == "ProfileTooLarge"
    assert "the pool's largest known card, 4864 MiB, is 2432 MiB per device" in message


def test_its_shadow_pods_go_where_mig_devices_of_the_model_are() -> None:
    """Nodes of cards are tainted as such, whatever their cards are divided into."""
    tainted = divided(taints=frozenset({Taint("nvidia.com/gpu", "", "NoSchedule")}))
    needs = waiting("p").needs
    cards = Toleration("nvidia.com/gpu", "Exists", "", "NoSchedule")
    share = waiting("p", needs=replace(needs, tolerations=frozenset({cards})))
    pools = (pool(physicalResource=SIZE, cardModels=["*-1g.5gb"]),)
    (made,) = actions(CreateShadow, small(pools=pools, nodes=(tainted,), shares=(share,)))
    (term,) = made.needs.terms
    assert term.labels == (Requirement(f"{SIZE}.product", "Exists"),)
    assert fits(made.needs, tainted)
    assert cards in made.needs.tolerations
