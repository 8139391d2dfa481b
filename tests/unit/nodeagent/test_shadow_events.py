"""Which events the change from one plan to the next causes."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from mizar_nodeagent.cards import Instance
from mizar_nodeagent.planning.plan import Carvings, Plan, plan
from mizar_nodeagent.planning.planning_errors import plan_isolated
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key, Pod
from mizar_nodeagent.shadow_events import FailedCards
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
    """A node with a shadow pod over two cards, each of which a pod uses. `pods`: those that the API
    server has named. `fails`: whether planning for the shadow pod fails."""

    def __init__(self) -> None:
        self.now = 1.0
        self.carvings: Carvings = {}
        self.last: Plan | None = None
        self.fails = False
        self.cards = FailedCards()
        self.pods = BY_KEY

    def told(self, first: str = "", second: str = "") -> list[tuple[str, str]]:
        """The object and the message of each event when these are the cards' problems."""
        self.now += 1.0
        facts = cards() | {CARD: card(1, first), OTHER: card(2, second)}
        seen = snapshot(self.now, PODS, CLAIMS, cards=facts)
        found = self.last = plan_isolated(self.carvings, seen, self.last, self._plan)
        self.carvings = found.carvings
        return self.events(found, replace(seen, pods=self.pods))

    def _plan(self, carvings: Carvings, seen: NodeSnapshot, without: Collection[Key]) -> Plan:
        if self.fails and SHADOW not in without:
            raise ZeroDivisionError("a bug")
        return plan(carvings, seen, without)

    def events(self, found: Plan, seen: NodeSnapshot) -> list[tuple[str, str]]:
        """The object and the message of each event after that plan."""
        events = list(self.cards.events(found, seen))
        for one in events:
            assert one.warning is (one.reason == "DeviceUnhealthy")
            assert one.warning or one.reason == "DeviceHealthy"
        return [(one.about[1], one.message) for one in events]


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
    message = f"{CARD}: it is well again, and is given to new pods"
    assert node.told("", FAULTY) == [(SHADOW[1], message), ("first", message)]
    assert node.told("", FAULTY) == []
    assert [pod for pod, _ in node.told(HOT, FAULTY)] == [SHADOW[1], "first"]


def test_a_card_that_gets_well_while_planning_fails_is_told_once(node: Node) -> None:
    """The last report before says that the card has failed: pods were told both with each plan."""
    node.told(HOT)
    node.fails = True
    assert node.told(HOT) == []
    message = f"{CARD}: it is well again, and is given to new pods"
    assert node.told() == [(SHADOW[1], message), ("first", message)]
    assert node.told() == []


def test_a_pod_is_told_once_it_is_known(node: Node) -> None:
    """The card failed while the API server was away, and another agent had just started."""
    node.pods = {}
    message = f"{CARD}: {HOT}"
    assert node.told(HOT) == [(SHADOW[1], message)]
    node.pods = BY_KEY
    assert node.told(HOT) == [("first", message)]
    assert node.told(HOT) == []


def test_the_agent_forgets_that_a_pod_was_told_of_a_failed_card_once_the_pod_is_gone(
    node: Node,
) -> None:
    """A card may stay as it is for weeks, and its pods be replaced again and again."""
    node.told(HOT)
    node.pods = {key: replace(pod, uid=f"{pod.uid}-2") for key, pod in BY_KEY.items()}
    assert [pod for pod, _ in node.told(HOT)] == ["first"]
    node.pods = BY_KEY
    assert [pod for pod, _ in node.told(HOT)] == ["first"]


def test_what_an_earlier_agent_told_of_mig_devices_is_not_told_again(node: Node) -> None:
    """The checkpoint does not say of which card they are."""
    node.cards.were_told([], faulty=["GPU-whole"])
    seen = snapshot(9.0, PODS, CLAIMS, cards={CARD: card(1), OTHER: card(2)})
    unread = replace(seen, cards_problem="the cards have not been read yet")
    assert node.events(plan(node.carvings, unread), unread) == []
    whole = Instance("GPU-whole", 1, 0)
    read = replace(seen, cards={**seen.cards, CARD: replace(card(1, FAULTY), instance=whole)})
    assert node.events(plan(node.carvings, read), read) == []
    again = [pod for pod, _ in node.events(plan(node.carvings, seen), seen)]
    assert again == [SHADOW[1], "first"]


def test_what_an_earlier_agent_told_is_not_told_again(node: Node) -> None:
    """Also if the first plan reports on no shadow pod."""
    node.cards.were_told([CARD])
    nothing = plan({}, snapshot(1.0, cards={CARD: card(1, HOT)}))
    assert node.events(nothing, snapshot(1.0, cards={CARD: card(1, HOT)})) == []
    assert node.told(HOT) == []
    assert len(node.told(HOT, FAULTY)) == 2
    assert [pod for pod, _ in node.told()] == [SHADOW[1], "first", SHADOW[1], "second"]
    assert len(node.told(HOT)) == 2
