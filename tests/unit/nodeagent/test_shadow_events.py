"""Which events the change from one plan to the next causes."""

from collections.abc import Mapping

import pytest

from mizar_nodeagent.planning.plan import Plan, plan
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.shadow_events import shadow_events
from unit.nodeagent.makers import (
    CARD,
    SHADOW,
    card,
    card_claim,
    cards,
    carve,
    device,
    shadow,
    share,
    share_claim,
    snapshot,
)

FOUR = carve(devices=4, cards=2, resource="team-a.mizar.share/gpu.4")
OTHER = card(2).uuid
HOT, FAULTY = "it is so hot that it slows down", "the card reported XID 79"
PODS = [shadow(carve=FOUR), share("first"), share("second")]
BY_KEY: Mapping[tuple[str, str], Pod] = {one.key: one for one in PODS}
CLAIMS = [
    card_claim(SHADOW[1], CARD, OTHER),
    share_claim(device(0), pod="first", resource=FOUR.resource),
    share_claim(device(2), pod="second", resource=FOUR.resource),
]


class Node:
    """A node with a shadow pod over two cards, each of which a pod uses."""

    def __init__(self) -> None:
        self.now = 1.0
        self.last: Plan | None = None

    def told(self, first: str = "", second: str = "") -> list[tuple[str, str]]:
        """The object and the message of each event when these are the cards' problems."""
        self.now += 1.0
        facts = cards() | {CARD: card(1, first), OTHER: card(2, second)}
        known = self.last.carvings if self.last else {}
        before, self.last = self.last, plan(known, snapshot(self.now, PODS, CLAIMS, cards=facts))
        found = list(shadow_events(before, self.last, BY_KEY))
        assert all(one.warning and one.reason == "DeviceUnhealthy" for one in found)
        return [(one.about[1], one.message) for one in found]


@pytest.fixture
def node() -> Node:
    made = Node()
    assert made.told() == []
    return made


def test_only_the_users_of_a_card_that_fails_are_told(node: Node) -> None:
    message = f"{CARD}: {HOT}"
    assert node.told(HOT) == [(SHADOW[1], message), ("first", message)]
    assert node.told(HOT) == []


def test_a_second_card_that_fails_is_told_to_its_users_too(node: Node) -> None:
    """The ShadowPod was unhealthy already, because of its other card."""
    node.told(HOT)
    message = f"{OTHER}: {FAULTY}"
    assert node.told(HOT, FAULTY) == [(SHADOW[1], message), ("second", message)]


def test_a_card_that_fails_once_more_is_told_again(node: Node) -> None:
    node.told(HOT, FAULTY)
    assert node.told("", FAULTY) == []
    assert [pod for pod, _ in node.told(HOT, FAULTY)] == [SHADOW[1], "first"]
