"""Which owners each card has, and which rule."""

from dataclasses import replace
from pathlib import Path

import pytest

from mizar_core.models import Spot
from mizar_core.spot_rules import SpotRule, SpotRules
from mizar_nodeagent import pods
from mizar_nodeagent.container.slots import Owner, Slot
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.spot.borrowers import with_init_containers
from mizar_nodeagent.spot.owner_events import PodIdentity
from mizar_nodeagent.spot.owners import CardOwner, owners, pools, resources, rule_of
from unit.nodeagent.makers import (
    CARD,
    SHADOW,
    card,
    card_claim,
    carve,
    device,
    shadow,
    share,
    share_claim,
    share_object,
    snapshot,
)

SECOND = card(2).uuid
ZONE = {"zone": "z1"}
ON_A100 = SpotRule(pool="a", card_models=("nvidia-a100*",), node_selector=ZONE, spot=Spot())
OTHERS = SpotRule(pool="b", physical_resource="example.com/gpu", spot=Spot())


def whole(name: str = "owner", **changes: object) -> Pod:
    return Pod("team-a", name, f"uid-{name}", admitted=True, **changes)  # type: ignore[arg-type]


def carving(cards: int = 1) -> dict[tuple[str, str], Carving]:
    held = tuple(card(number) for number in range(1, 1 + cards))
    return {SHADOW: Carving(*SHADOW, "uid", "owner", carve(cards=cards), held)}


def test_a_pod_owns_the_cards_that_it_holds_whole() -> None:
    now = snapshot(1.0, [whole(low_power=True)], [card_claim("owner", CARD, SECOND)])
    pod = PodIdentity("team-a", "owner", "uid-owner")
    assert owners(now, {}) == (CardOwner(pod, frozenset({CARD, SECOND}), low_power=True),)
    assert resources(now) == {CARD: "nvidia.com/gpu", SECOND: "nvidia.com/gpu"}


def test_a_replica_of_a_card_is_the_card() -> None:
    now = snapshot(1.0, [whole()], [card_claim("owner", f"{CARD}::3")])
    assert owners(now, {})[0].cards == {CARD}


def test_a_pod_that_has_ended_owns_nothing_and_one_that_nobody_knows_has_not_agreed() -> None:
    assert owners(snapshot(1.0, [whole(ended=True)], [card_claim("owner")]), {}) == ()
    (found,) = owners(snapshot(1.0, [], [card_claim("owner")]), {})
    assert found.pod.uid == "" and not found.low_power


def test_what_a_shadow_pod_holds_is_its_sharers() -> None:
    claims = [card_claim(SHADOW[1], CARD, SECOND), share_claim(device(1), pod="share")]
    now = snapshot(1.0, [shadow(), share(low_power=True)], claims)
    pod = PodIdentity("team-a", "share", "uid-share")
    assert owners(now, carving(2)) == (CardOwner(pod, frozenset({SECOND}), low_power=True),)
    # The pod is on one of these cards; which one is not known yet.
    assert owners(now, {}) == (CardOwner(pod, frozenset({CARD, SECOND}), low_power=True),)


def test_a_shadow_pod_that_nobody_shares_owns_nothing() -> None:
    now = snapshot(1.0, [shadow()], [card_claim()])
    assert owners(now, carving()) == () and resources(now) == {CARD: "nvidia.com/gpu"}


def test_a_spot_pod_does_not_own_the_card_that_it_borrows() -> None:
    borrowed = Claim("team-b", "train", "main", "mizar.spot/gpu", frozenset({f"{CARD}-spot"}))
    assert owners(snapshot(1.0, [], [borrowed]), {}) == ()


@pytest.mark.parametrize(("container", "holds"), [("prepare", True), ("main", False)])
def test_only_init_containers_hold_what_the_kubelet_does_not_list(
    container: str, holds: bool
) -> None:
    """Devices of all others are in the kubelet's list for as long as they are held."""
    pod = share(init_containers=frozenset({"prepare"}))
    owner = Owner(pod.namespace, pod.name, pod.uid, container)
    slot = Slot("slot", Path("/"), "mizar.spot/gpu", frozenset({f"{CARD}-spot"}), 0.0, owner)
    now = snapshot(1.0, [pod], [])
    assert bool(with_init_containers(now, [slot]).claims.all) is holds
    ended = snapshot(1.0, [replace(pod, ended=True)], [])
    assert not with_init_containers(ended, [slot]).claims.all
    again = snapshot(1.0, [replace(pod, uid="another")], [])
    assert not with_init_containers(again, [slot]).claims.all


def test_a_sidecar_is_no_container_that_the_kubelet_leaves_out() -> None:
    found = share_object()
    found["spec"]["initContainers"] = [
        {"name": "prepare"},
        {"name": "sidecar", "restartPolicy": "Always"},
    ]
    pod = pods.trim(found)
    assert pod is not None and pod.init_containers == {"prepare"}


def test_owners_agree_by_annotation_or_by_their_namespace() -> None:
    pod = PodIdentity("team-a", "owner", "uid")
    rule = ON_A100.changed(spot=Spot(namespaces=("team-a",)))
    assert CardOwner(pod, frozenset(), low_power=True).agrees(None)
    assert CardOwner(pod, frozenset()).agrees(rule)
    assert not CardOwner(pod, frozenset()).agrees(ON_A100)
    assert not CardOwner(pod, frozenset()).agrees(None)


def test_a_card_has_the_rule_of_the_first_pool_that_it_belongs_to() -> None:
    rules = SpotRules(rules=(ON_A100, OTHERS))
    assert rule_of(card(), "nvidia.com/gpu", ZONE, rules) == ON_A100
    assert rule_of(card(), "example.com/gpu", ZONE, rules) == OTHERS
    assert rule_of(card(), "nvidia.com/gpu", {}, rules) is None
    other = ON_A100.changed(card_models=("NVIDIA-H100*",))
    assert rule_of(card(), "nvidia.com/gpu", ZONE, SpotRules(rules=(other,))) is None


def test_a_card_that_a_shadow_pod_holds_has_the_rule_of_that_pods_pool() -> None:
    """Another pool may have the same nodes: it lends none of this pool's cards, on no terms."""
    first, second = ON_A100, ON_A100.changed(pool="b")
    rules = SpotRules(rules=(first, second))
    assert rule_of(card(), "nvidia.com/gpu", ZONE, rules, pool="b") == second
    assert rule_of(card(), "nvidia.com/gpu", {}, rules, pool="b") is None
    assert rule_of(card(), "nvidia.com/gpu", ZONE, rules, pool="c") is None


def test_the_pool_of_a_card_is_known_from_the_shadow_pod_that_holds_it_now() -> None:
    now = snapshot(1.0, [shadow()], [card_claim(SHADOW[1], CARD)])
    assert pools(now, carving()) == {CARD: "default"}
    assert pools(now, {}) == {}
    assert pools(snapshot(1.0, [whole()], [card_claim("owner", CARD)]), carving()) == {}
