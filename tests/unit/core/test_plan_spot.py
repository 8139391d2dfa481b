"""Which pods may borrow a card now, and which lose one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mizar_core.model_base import parse_time
from mizar_core.models import GPUPool, GPUQuota
from mizar_core.names import SPOT_GATE, EventReason, SpotEvictionReason
from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.snapshot import CardsOnNode, NodeView
from mizar_core.planning.spot import SpotPlan, SpotSnapshot, SpotView, plan_spot
from mizar_core.planning.spot.actions import EvictSpot, OpenGate, WriteLent, WriteSpotStatus
from support.calls import calls_of

NOW = parse_time("2026-03-01T12:00:00Z")
SPOT = "mizar.spot/gpu"


def spot(name: str, namespace: str = "a", age: int = 60, **more: Any) -> SpotView:
    """A pod that waits for its turn."""
    given: dict[str, Any] = {"cards": 1, "gates": (SPOT_GATE,)} | more
    created = NOW - timedelta(seconds=age)
    return SpotView(namespace, name, f"{namespace}/{name}", created=created, **given)


def running(name: str, namespace: str = "a", node: str = "n", **more: Any) -> SpotView:
    return spot(name, namespace, node=node, gates=(), **more)


def quota(namespace: str = "a", most: int | None = 10, **status: Any) -> GPUQuota:
    return GPUQuota.from_dict(
        {
            "metadata": {"name": "gpus", "namespace": namespace, "uid": namespace},
            "spec": {
                "pool": "default",
                "profiles": [{"devices": 2, "max": 1}],
                **({} if most is None else {"spot": {"max": most}}),
            },
            "status": {"spot": status} if status else {},
        }
    )


def had(namespace: str, card_seconds: int, in_use: int = 0) -> GPUQuota:
    at = "2026-03-01T12:00:00Z"
    return quota(namespace, recentCardSeconds=card_seconds, inUse=in_use, countedAt=at)


def node(name: str = "n", lendable: int = 1, **more: Any) -> NodeView:
    cards = {SPOT: CardsOnNode(8, lendable), "nvidia.com/gpu": CardsOnNode(8, 8)}
    return NodeView(name, cards=cards, **more)


def pool(name: str = "default", *, lends: bool = True, **more: Any) -> GPUPool:
    meta = {"metadata": {"name": name}}
    return GPUPool.from_dict({**meta, "spec": {"spot": {"enabled": lends}}, **more})


def planned(*parts: Any, **more: Any) -> SpotPlan:
    kinds = {SpotView: "spots", GPUQuota: "quotas", NodeView: "nodes", GPUPool: "pools"}
    found: dict[str, tuple[Any, ...]] = dict.fromkeys(kinds.values(), ())
    for one in parts:
        found[kinds[type(one)]] += (one,)
    return plan_spot(SpotSnapshot(**found, **more), NOW)


def opened(plan: SpotPlan) -> list[str]:
    return ["/".join(one.spot) for one in plan.actions if isinstance(one, OpenGate)]


def evicted(plan: SpotPlan) -> list[tuple[str, str]]:
    found = (one for one in plan.actions if isinstance(one, EvictSpot))
    return [("/".join(one.spot), str(one.reason)) for one in found]


def said(plan: SpotPlan) -> dict[str, str]:
    return {one.uid: one.message for one in plan.actions if isinstance(one, EmitEvent)}


class TestTurns:
    """Which pods may go to the scheduler."""

    def test_as_many_as_cards_are_lendable(self) -> None:
        plan = planned(quota(), node(lendable=2), *(spot(f"p{i}", age=9 - i) for i in range(4)))
        assert opened(plan) == ["a/p0", "a/p1"]

    def test_a_pod_whose_gate_may_be_open_already_comes_first(self) -> None:
        there = quota("a"), had("b", 500), node(lendable=1), spot("p", "a"), spot("p", "b")
        assert opened(planned(*there)) == ["a/p"]
        asked = spot("p", "b").uid
        assert opened(planned(*there, unanswered=frozenset({asked}))) == ["b/p"]

    def test_cards_that_pods_have_are_not_lent_twice(self) -> None:
        assert opened(planned(quota(), node(lendable=2), running("r"), *map(spot, "pq"))) == ["a/p"]

    def test_cards_of_all_pods_of_a_node_count(self) -> None:
        there = quota(), node(lendable=3), running("r"), running("s")
        assert opened(planned(*there, *map(spot, "pq"))) == ["a/p"]

    def test_of_two_quotas_of_a_namespace_the_last_account_holds(self) -> None:
        early, late = "2026-03-01T11:59:58Z", "2026-03-01T11:59:59Z"
        much = quota("a", recentCardSeconds=900, inUse=0, countedAt=early)
        little = quota("a", recentCardSeconds=100, inUse=0, countedAt=late)
        pods = spot("p", "a"), spot("p", "b"), node(lendable=1)
        for quotas in ((much, little), (little, much)):
            assert opened(planned(*quotas, had("b", 500), *pods)) == ["a/p"]

    def test_more_may_be_waited_for_than_a_status_can_have(self) -> None:
        greedy = (spot(f"p{i}", cards=600_000) for i in range(2))
        plan = planned(quota("a", 600_000), quota("b"), node(), *greedy, spot("p", "b"))
        assert opened(plan) == ["b/p"]
        (status,) = [
            one.status
            for one in plan.actions
            if isinstance(one, WriteSpotStatus) and one.quota == ("a", "gpus")
        ]
        assert status is not None and status.waiting == 1_000_000

    def test_pods_without_a_spot_quota_are_counted_as_waiting_and_get_an_event(self) -> None:
        plan = planned(quota("a", None), node(lendable=0), spot("p"), spot("p", "b"))
        assert {name: one.waiting for name, one in plan.borrowing.items()} == {"a": 1, "b": 1}
        (event, _) = [one for one in plan.actions if isinstance(one, EmitEvent)]
        assert (event.kind, event.type) == ("Pod", "Normal")

    def test_a_pod_that_goes_has_its_card_until_it_is_gone(self) -> None:
        """The scheduler counts the same way."""
        going = running("r", deleting=True)
        assert opened(planned(quota(), node(lendable=1), going, spot("p"))) == []

    def test_a_pod_that_had_its_turn_and_has_no_node_yet_keeps_its_card(self) -> None:
        promised = spot("new", age=1, gates=())
        assert opened(planned(quota(), node(lendable=1), promised, spot("p"))) == []
        assert opened(planned(quota(), node(lendable=2), promised, spot("p"))) == ["a/p"]

    def test_a_promise_that_the_scheduler_refuses_for_another_reason_lapses(self) -> None:
        def promise(message: str, seconds: int) -> SpotView:
            since = NOW - timedelta(seconds=seconds)
            return spot("x", gates=(), unschedulable=message, stuck_since=since)

        cpu, card = "1 Insufficient cpu.", "1 Insufficient mizar.spot/gpu."
        there = quota(), node(lendable=1), spot("p")
        assert opened(planned(*there, promise(cpu, 31))) == ["a/p"]
        now = planned(*there, promise(cpu, 30))
        assert (opened(now), now.due) == (["a/p"], None)
        soon = planned(*there, promise(cpu, 10))
        assert opened(soon) == []
        assert soon.due == NOW + timedelta(seconds=20)
        assert opened(planned(*there, promise(card, 3000))) == []

    def test_a_promise_that_lapsed_leaves_its_quota_to_others(self) -> None:
        """Nor does its namespace pay for it, in its turns."""
        stuck = _stuck("x", 30)
        plan = planned(quota("a", 1), node(lendable=4), stuck, spot("p"))
        assert opened(plan) == ["a/p"]
        assert evicted(plan) == []
        assert (plan.borrowing["a"].in_use, plan.borrowing["a"].waiting) == (1, 1)
        alone = planned(had("a", 0, in_use=1), node(lendable=4), stuck)
        (told,) = [one.status for one in alone.actions if isinstance(one, WriteSpotStatus)]
        assert told is not None and (told.in_use, told.waiting) == (0, 1)
        before = planned(quota("a", 1), node(lendable=4), _stuck("x", 29), spot("p"))
        assert opened(before) == []
        assert said(before)["a/p"].endswith(
            "namespace a borrows 1 of the 1 card that spot.max of its GPUQuotas allows"
        )

    def test_a_promise_of_which_the_scheduler_says_nothing_lapses(self) -> None:
        there = quota(), node(lendable=1), spot("p")
        now = planned(*there, _unheard("x", 300))
        assert (opened(now), now.due) == (["a/p"], None)
        assert (now.borrowing["a"].in_use, now.borrowing["a"].waiting) == (1, 1)
        assert said(now)["a/x"] == (
            "its turn has come, but for 5 minutes the scheduler nobody has found no node for it and"
            " reported nothing new: its card may be given to another pod"
        )
        soon = planned(*there, _unheard("x", 299))
        assert (opened(soon), soon.due) == ([], NOW + timedelta(seconds=1))
        assert "a/x" not in said(soon)

    @pytest.mark.parametrize("message", [None, "1 Insufficient mizar.spot/gpu."])
    def test_what_lapsed_counts_no_more_whatever_the_scheduler_says(
        self, message: str | None
    ) -> None:
        lapsed = spot("x", gates=(), lapsed=True, unheard_since=NOW, unschedulable=message)
        plan = planned(quota("a", 1), node(lendable=1), lapsed, spot("p"))
        assert (opened(plan), evicted(plan), plan.due) == (["a/p"], [], None)
        beside = planned(quota("a", 1), node(lendable=1), lapsed, running("p"))
        assert evicted(beside) == []

    def test_for_whom_there_is_a_card(self) -> None:
        first, second = (spot(name, gates=(), age=age) for name, age in (("x", 9), ("y", 5)))
        assert planned(quota(), node(lendable=1), first, second).kept == {"a/x"}
        assert planned(quota(), node(lendable=1), second, _unheard("x", 300)).kept == {"a/y"}

    def test_a_scheduler_that_says_nothing_gets_its_pods_one_at_a_time(self) -> None:
        """Others' pods need not wait for it."""
        there = quota(), node(lendable=3), _unheard("x", 300)
        own = [spot(name, scheduler="nobody", age=age) for name, age in (("p", 50), ("q", 40))]
        plan = planned(*there, *own, spot("r", age=30))
        assert opened(plan) == ["a/p", "a/r"]
        assert said(plan)["a/q"] == (
            "waits: the scheduler nobody has reported nothing since the turn of another spot"
            " pod came 5 minutes ago"
        )
        asked = replace(own[0], gates=(), unheard_since=NOW)
        assert opened(planned(*there, asked, own[1])) == []

    def test_a_scheduler_that_was_heard_since_gets_them_all(self) -> None:
        own = [spot(name, scheduler="nobody") for name in "pq"]
        there = quota(), node(lendable=3), _unheard("x", 300), *own
        since = NOW - timedelta(seconds=300)
        assert opened(planned(*there, heard={"nobody": since})) == ["a/p"]
        later = {"nobody": since + timedelta(seconds=1)}
        assert opened(planned(*there, heard=later)) == ["a/p", "a/q"]
        assert opened(planned(*there, heard={"other": NOW})) == ["a/p"]

    def test_no_cards_are_kept_for_a_scheduler_that_says_nothing(self) -> None:
        asked = spot("y", gates=(), cards=9, scheduler="nobody", unheard_since=NOW)
        large = spot("p", cards=2, age=3600, scheduler="nobody")
        there = node(lendable=2), running("r"), asked, large, spot("q")
        assert opened(planned(quota("a", 99), *there)) == []
        assert opened(planned(quota("a", 99), *there, _unheard("x", 300))) == ["a/q"]

    def test_nor_is_its_quota_while_its_turn_may_come(self) -> None:
        """The pod would wait, and keep the others of its namespace waiting, for as long as `r`
        runs; then nobody would see it."""
        large = spot("p", cards=2, age=3600, scheduler="nobody")
        there = quota("a", 2), node("n", 2), node("m", 1), running("r"), large, spot("q")
        assert opened(planned(*there)) == []
        assert opened(planned(*there, _unheard("x", 300))) == ["a/q"]

    def test_the_namespace_that_had_the_least_of_late_is_next(self) -> None:
        quotas = had("a", 500), had("b", 100), had("c", 300)
        pods = [spot("p", name) for name in "abc"]
        assert opened(planned(*quotas, *pods, node(lendable=1))) == ["b/p"]
        assert opened(planned(*quotas, *pods, node(lendable=2))) == ["b/p", "c/p"]

    def test_cards_that_come_at_once_are_spread(self) -> None:
        """A namespace that had a little more than another need not leave all of them to it."""
        pods = [spot(f"p{i}", name, age=9 - i) for name in "ab" for i in range(4)]
        plan = planned(had("a", 100), had("b", 0), *pods, node(lendable=4))
        assert opened(plan) == ["b/p0", "a/p0", "b/p1", "a/p1"]

    def test_what_a_namespace_has_counts_before_it_was_counted(self) -> None:
        pods = spot("p", "a"), spot("p", "b"), running("r", "a")
        assert opened(planned(quota("a"), had("b", 100), *pods, node(lendable=2))) == ["b/p"]

    def test_a_namespace_gets_what_its_quota_allows(self) -> None:
        pods = running("r"), spot("p", age=3), spot("q", age=2), spot("s", "b", age=1)
        plan = planned(quota("a", 2), quota("b"), *pods, node(lendable=4))
        assert opened(plan) == ["b/s", "a/p"]

    def test_without_a_quota_nobody_gets_anything(self) -> None:
        assert opened(planned(node(lendable=4), spot("p"))) == []
        assert opened(planned(quota("a", None), node(lendable=4), spot("p"))) == []

    def test_pods_go_where_they_can_run(self) -> None:
        there = Needs(selector=frozenset({("zone", "b")}))
        pods = spot("anywhere", age=9), spot("there", age=8, needs=there)
        nodes = node("a", 1), node("b", 1, labels=frozenset({("zone", "b")}))
        assert opened(planned(quota(), *nodes, *pods)) == ["a/anywhere", "a/there"]
        assert opened(planned(quota(), node("a", 2), *pods)) == ["a/anywhere"]

    def test_several_cards_are_on_one_node(self) -> None:
        two = spot("two", cards=2)
        assert opened(planned(quota(), node("a", 1), node("b", 1), two)) == []
        assert opened(planned(quota(), node("a", 1), node("b", 2), two, spot("one", age=90))) == [
            "a/one",
            "a/two",
        ]

    def test_a_pod_that_fits_no_node_does_not_hold_up_others(self) -> None:
        assert opened(planned(quota(), node(), spot("two", cards=2), spot("one", age=1))) == [
            "a/one"
        ]

    def test_a_pod_that_passes_a_larger_one_has_one_turn(self) -> None:
        pods = spot("two", cards=2), spot("one", age=1)
        assert opened(planned(quota(), node("a", 1), node("b", 1), *pods)) == ["a/one"]

    def test_a_pod_that_wants_several_cards_and_waited_for_long_is_passed_no_more(self) -> None:
        """Where as many cards are lendable as the pod wants, the free one is kept for it until the
        other is back."""
        there = had("b", 100), node("n", 2), running("r", "b"), spot("one", "b", age=1)
        assert opened(planned(quota(), *there, spot("two", cards=2, age=599))) == ["b/one"]
        plan = planned(quota(), *there, spot("two", cards=2, age=600))
        assert opened(plan) == []
        kept = "waits for its turn: free cards are kept for pods that want several"
        assert said(plan)["b/one"].startswith(kept)
        assert plan.lendable == {"n": 1}

    def test_its_namespace_passes_it_neither(self) -> None:
        two, one = spot("two", cards=2, age=600), spot("one", age=1)
        assert opened(planned(quota(), node(lendable=2), running("r", "b"), two, one)) == []
        elsewhere = node("n", 2), node("m", 1)
        assert opened(planned(quota(), *elsewhere, running("r", "b"), two, one)) == ["a/one"]

    def test_what_its_quota_has_left_is_kept_for_it_as_well(self) -> None:
        two, one = spot("two", cards=2, age=600), spot("one", age=1)
        there = node("n", 2), node("m", 1), running("r", "b", cards=2)
        assert opened(planned(quota("a", 2), *there, two, one)) == []
        own = node("n", 3), running("r")
        plan = planned(quota("a", 2), *own, two, one)
        assert opened(plan) == []
        assert said(plan)["a/one"] == (
            "waits for its turn: what is left of the quotas of namespace a is kept for a pod that"
            " wants several cards; 1 spot pod ahead of it"
        )
        assert opened(planned(quota("a", 1), *there, two, one)) == ["a/one"], "it never may"
        apart = node("n", 1), node("m", 1)
        assert opened(planned(quota("a", 2), *apart, two, one)) == ["a/one"], "it never comes"

    def test_what_is_kept_for_it_is_kept_from_all_after_it(self) -> None:
        ones = [spot(f"one{at}", age=9 - at) for at in range(3)]
        nodes = *(node(f"m{at}", 1) for at in range(3)), node("n", 2), running("r", "b")
        plan = planned(quota("a", 4), *nodes, spot("two", cards=2, age=600), *ones)
        assert opened(plan) == ["a/one0", "a/one1"]

    def test_a_pod_that_would_exceed_its_quota_keeps_no_cards_from_others(self) -> None:
        own = running("r"), spot("two", cards=2, age=600)
        there = had("b", 10**5), node("n", 3), spot("one", "b", age=1)
        assert opened(planned(quota("a", 2), *own, *there)) == ["b/one"]

    def test_a_pod_that_would_exceed_what_earlier_pods_leave_of_its_quota_keeps_no_cards(
        self,
    ) -> None:
        own = spot("first", cards=2, age=700), spot("second", cards=2, age=600)
        nodes = node("n", 2), node("m", 2), running("r", "c", "n"), running("s", "c", "m")
        there = had("b", 10**5), spot("one", "b", age=1)
        assert opened(planned(quota("a", 4), *own, *nodes, *there)) == []
        assert opened(planned(quota("a", 3), *own, *nodes, *there)) == ["b/one"]

    def test_a_pod_that_wants_one_card_keeps_nothing_from_others(self) -> None:
        """Other pods pass it only where it cannot run."""
        choosy = spot("there", age=9999, needs=Needs(selector=frozenset({("zone", "b")})))
        nodes = node("n", 1, labels=frozenset({("zone", "b")})), node("m", 1), running("r", "b")
        assert opened(planned(quota("a", 1), *nodes, choosy, spot("any"))) == ["a/any"]

    def test_a_namespace_that_had_less_of_late_goes_before_a_pod_that_wants_several_cards(
        self,
    ) -> None:
        two = spot("two", cards=2, age=600)
        there = node("n", 2), running("r", "c"), spot("one", "b", age=1)
        assert opened(planned(had("a", 100), had("b", 0), *there, two)) == ["b/one"]

    def test_nothing_is_kept_where_fewer_sleep_than_it_wants(self) -> None:
        two, one = spot("two", cards=2, age=600), spot("one", "b", age=1)
        quotas = quota("a"), quota("b")
        assert opened(planned(*quotas, node("n", 1), node("m", 1), two, one)) == ["b/one"]
        other = replace(two, needs=Needs(selector=frozenset({("zone", "b")})))
        there = node("n", 2), running("r", "c")
        assert opened(planned(*quotas, *there, two, one)) == []
        assert opened(planned(*quotas, *there, other, one)) == ["b/one"]

    def test_the_node_that_has_the_most_is_kept(self) -> None:
        others = spot("one", "b", age=2), spot("two", "b", age=1)
        three, nodes = spot("three", cards=3, age=600), (node("n", 4), node("o", 4))
        taken = running("r", "c", node="n", cards=3), running("s", "c", node="o", cards=2)
        assert opened(planned(quota("a"), quota("b"), *nodes, *taken, three, *others)) == ["b/one"]

    def test_what_it_was_promised_is_kept_when_an_owner_woke(self) -> None:
        promised = spot("two", cards=2, age=600, gates=())
        there = quota("b"), node("n", 2), running("r", "b"), spot("one", "b", age=1)
        assert opened(planned(quota(), *there, promised)) == []
        assert opened(planned(quota(), *there, replace(promised, created=NOW))) == ["b/one"]

    def test_nodes_that_the_scheduler_leaves_out_lend_nothing(self) -> None:
        assert opened(planned(quota(), node(available=False), spot("p"))) == []

    @pytest.mark.parametrize(
        "held", [{"gates": (SPOT_GATE, "example.com/mine")}, {"deleting": True}]
    )
    def test_a_pod_that_has_another_gate_or_is_being_deleted_has_no_turn(
        self, held: dict[str, Any]
    ) -> None:
        plan = planned(quota(), node(lendable=1), spot("p", **held), spot("q", age=1))
        assert opened(plan) == ["a/q"]

    def test_a_mizar_that_lends_nothing_opens_nothing(self) -> None:
        plan = planned(quota(), pool(), node(), spot("p"), enabled=False)
        assert opened(plan) == []
        assert "spot.enabled is false" in said(plan)["a/p"]
        assert plan.rules == '{"rules":[]}'


def _stuck(name: str, seconds: int, **more: Any) -> SpotView:
    """A pod that the scheduler has refused for so long, though cards are free."""
    since = NOW - timedelta(seconds=seconds)
    refused = {"unschedulable": "9 Insufficient cpu.", "stuck_since": since}
    return spot(name, gates=(), **refused, **more)


def _unheard(name: str, seconds: int) -> SpotView:
    """A pod of which its scheduler has said nothing for so long since its turn came."""
    since = NOW - timedelta(seconds=seconds)
    return spot(name, gates=(), scheduler="nobody", unheard_since=since)


def graces(plan: SpotPlan) -> list[int]:
    return [one.grace_s for one in plan.actions if isinstance(one, EvictSpot)]


class TestEviction:
    """Which pods lose their card."""

    def test_a_pod_that_lost_its_card_is_evicted_at_once_without_another_event(self) -> None:
        lost = running("r", lost=SpotEvictionReason.OWNER_BACK)
        plan = planned(quota(), node(lendable=0), lost)
        assert evicted(plan) == [("a/r", "OwnerBack")]
        assert said(plan) == {}, "the node agent has told it, by name of the owner"
        assert [one.at_once for one in plan.actions if isinstance(one, EvictSpot)] == [True]
        assert plan.due == NOW + timedelta(seconds=5)
        assert evicted(planned(quota(), replace(lost, deleting=True))) == []

    def test_a_smaller_quota_takes_the_newest_back(self) -> None:
        pods = running("old", age=9), running("new", age=1), spot("promised", age=5, gates=())
        assert evicted(planned(quota("a", 3), *pods)) == []
        first, second = ("a/promised", "QuotaReclaim"), ("a/new", "QuotaReclaim")
        plan = planned(quota("a", 2), *pods)
        assert evicted(plan) == [first]
        assert said(plan) == {
            "a/promised": "evicted (QuotaReclaim): spot.max of the GPUQuotas of namespace a"
            " now allows 2 cards; it has no card yet"
        }
        events = [one for one in plan.actions if isinstance(one, EmitEvent)]
        assert [(one.kind, one.type, one.reason) for one in events] == [
            ("Pod", "Warning", EventReason.SPOT_EVICTED)
        ]
        assert evicted(planned(quota("a", 1), *pods)) == [first, second]
        assert len(evicted(planned(*pods))) == 3

    def test_who_loses_a_card_is_told_which_and_whose_as_far_as_that_is_known(self) -> None:
        told, untold = running("r", borrows="card GPU-1 of x/owner"), running("s")
        found = said(planned(quota("a", 0), told, untold))
        assert found["a/r"].endswith("now allows 0 cards; it loses card GPU-1 of x/owner")
        assert found["a/s"].endswith(
            "; which card it loses, and whose, is not known: the node agent of node n has not told"
        )
        drained = said(planned(quota("a", 9), told, enabled=False))["a/r"]
        assert drained.endswith("spot.enabled is false; it loses card GPU-1 of x/owner")

    def test_a_smaller_quota_takes_nothing_from_who_fits_once_a_larger_pod_has_gone(self) -> None:
        pods = running("large", age=9, cards=2), running("b", age=5), running("c", age=1)
        assert evicted(planned(quota("a", 1), *pods)) == [
            ("a/c", "QuotaReclaim"),
            ("a/large", "QuotaReclaim"),
        ]
        assert evicted(planned(quota("a", 1), *pods[:2])) == [("a/large", "QuotaReclaim")]
        assert evicted(planned(quota("a", 2), *pods)) == [
            ("a/c", "QuotaReclaim"),
            ("a/b", "QuotaReclaim"),
        ]

    def test_a_promise_that_lapsed_is_settled_when_it_is_kept_after_all(self) -> None:
        """Meanwhile another pod may have got the quota's card."""
        lapsed, other = _stuck("x", 30, age=9), running("p", age=1)
        assert evicted(planned(quota("a", 1), node(lendable=4), lapsed, other)) == []
        bound = replace(lapsed, node="n", unschedulable=None, stuck_since=None)
        plan = planned(quota("a", 1), node(lendable=4), bound, other)
        assert evicted(plan) == [("a/p", "QuotaReclaim")]
        promised = replace(other, node=None)
        plan = planned(quota("a", 1), node(lendable=4), replace(bound, created=NOW), promised)
        assert evicted(plan) == [("a/p", "QuotaReclaim")]

    def test_a_pod_that_got_a_node_late_takes_no_card_from_pods_that_worked_meanwhile(self) -> None:
        late = running("x", age=900, late=NOW - timedelta(seconds=1))
        pods = late, running("p", age=60), node(lendable=4)
        assert evicted(planned(quota("a", 2), *pods)) == []
        assert evicted(planned(quota("a", 1), *pods)) == [("a/x", "QuotaReclaim")]
        newer = running("q", age=0)
        assert evicted(planned(quota("a", 2), *pods, newer)) == [("a/q", "QuotaReclaim")]

    def test_a_promise_that_lapsed_goes_where_it_never_may_be_kept(self) -> None:
        lapsed, other = _stuck("x", 30, cards=2), running("p")
        assert evicted(planned(quota("a", 2), lapsed, other)) == []
        assert evicted(planned(quota("a", 1), lapsed, other)) == [("a/x", "QuotaReclaim")]
        assert len(evicted(planned(quota("a", 2), lapsed, other, enabled=False))) == 2

    def test_pods_that_are_being_deleted_or_lost_their_card_count_as_given_back(self) -> None:
        pods = running("r"), running("s", deleting=True)
        lost = running("t", lost=SpotEvictionReason.OWNER_GONE)
        assert evicted(planned(quota("a", 1), *pods, lost)) == [("a/t", "OwnerGone")]

    def test_a_pod_that_takes_long_to_end_gets_a_shorter_grace_period(self) -> None:
        """Only while its namespace has more than its quota: otherwise a pod that a user deletes has
        its own grace."""
        later, soon = NOW + timedelta(days=1), NOW + timedelta(seconds=31)
        slow = running("s", age=900, deleting=True, grace_s=86400, gone_by=later)
        assert evicted(planned(quota("a", 2), running("r"), slow)) == []
        plan = planned(quota("a", 1), running("r"), slow)
        assert evicted(plan) == [("a/s", "QuotaReclaim")]
        assert graces(plan) == [30]
        assert evicted(planned(quota("a", 1), running("r"), replace(slow, gone_by=soon))) == []
        assert evicted(planned(quota("a", 2), slow, enabled=False)) == [("a/s", "Drain")]
        drained = replace(slow, lost=SpotEvictionReason.DRAIN)
        assert evicted(planned(quota("a", 1), running("r"), drained)) == [("a/s", "QuotaReclaim")]

    @pytest.mark.parametrize(("own", "given"), [(86400, 30), (30, 30), (5, 5), (0, 0)])
    def test_nobody_has_more_time_than_half_a_minute(self, own: int, given: int) -> None:
        lost = running("t", lost=SpotEvictionReason.OWNER_GONE, grace_s=own)
        plan = planned(quota("a", 0), running("r", grace_s=own), lost)
        assert graces(plan) == [given, given]

    def test_a_mizar_that_lends_nothing_any_more_takes_all_back(self) -> None:
        plan = planned(quota("a", 3), running("r"), spot("p"), enabled=False)
        assert evicted(plan) == [("a/r", "Drain")]
        told = said(plan)["a/r"]
        assert "no longer lends cards: the chart's value spot.enabled is false;" in told

    def test_other_namespaces_lose_nothing(self) -> None:
        assert evicted(planned(quota("a", 0), quota("b", 1), running("r", "b"))) == []


class TestEvents:
    """Why a pod waits, told once."""

    def test_how_many_are_before_it(self) -> None:
        pods = [spot(f"p{i}", name, age=9 - i) for name in "ab" for i in range(2)]
        told = said(planned(had("a", 9), had("b", 0), *pods, node(lendable=0)))
        no_card = "waits for its turn: no card of a sleeping owner is free"
        assert told == {
            "b/p0": f"{no_card}; it is next",
            "a/p0": f"{no_card}; 1 spot pod ahead of it",
            "b/p1": f"{no_card}; 2 spot pods ahead of it",
            "a/p1": f"{no_card}; 3 spot pods ahead of it",
        }

    def test_what_its_quota_keeps_it_from(self) -> None:
        told = said(planned(quota("a", 1), running("r"), spot("p"), node(lendable=2)))
        assert told == {
            "a/p": "waits for other spot pods to end: namespace a borrows 1 of the 1 card that"
            " spot.max of its GPUQuotas allows"
        }

    def test_that_it_fits_nowhere(self) -> None:
        told = said(planned(quota(), spot("p", cards=2), node(lendable=1)))
        where = "but no node where it can run has enough of them"
        assert told["a/p"].startswith(f"waits: 1 card could be lent, {where}")

    def test_once(self) -> None:
        parts = quota(), spot("p"), node(lendable=0)
        (event,) = (one for one in planned(*parts).actions if isinstance(one, EmitEvent))
        for told in (event.subject, event.wording):
            assert said(planned(*parts, announced=frozenset({told}))) == {}

    def test_new_words_when_the_last_are_old(self) -> None:
        subject = ("a/p", "SpotWaiting")
        earlier = (*subject, hash("something else"))
        parts = quota(), spot("p"), node(lendable=0)
        late = planned(*parts, announced=frozenset({subject, earlier}))
        assert (said(late), late.held_back) == ({}, {subject})
        assert "a/p" in said(planned(*parts, announced=frozenset({earlier})))


class TestStatus:
    """What the statuses of quotas and pools say."""

    def test_a_quota_says_what_its_namespace_borrows(self) -> None:
        plan = planned(quota(), node(lendable=2), running("r"), *map(spot, "pq"))
        (written,) = [one for one in plan.actions if isinstance(one, WriteSpotStatus)]
        assert written.status is not None
        assert written.status.to_dict() == {
            "inUse": 2,
            "waiting": 1,
            "recentCardSeconds": 0,
            "countedAt": "2026-03-01T12:00:00Z",
        }

    def test_time_alone_writes_nothing(self) -> None:
        at = "2026-03-01T11:00:00Z"
        same = quota("a", inUse=1, recentCardSeconds=100, countedAt=at)
        assert planned(same, running("r"), node(lendable=1)).actions == ()
        more = planned(same, running("r"), spot("p"), node(lendable=2))
        (written,) = [one for one in more.actions if isinstance(one, WriteSpotStatus)]
        assert written.status is not None
        assert written.status.recent_card_seconds == round(50 + 5193.7 / 2)

    def test_a_quota_that_allows_nothing_says_nothing(self) -> None:
        assert planned(quota("a", None), quota("b", 1)).actions == ()
        gone = quota("a", None, inUse=1, countedAt="2026-03-01T11:00:00Z")
        (written,) = planned(gone).actions
        assert written == WriteSpotStatus(("a", "gpus"), None)

    def test_a_pool_says_how_many_are_lent(self) -> None:
        pools = pool("b"), pool("a", lends=False), pool("c")
        plan = planned(*pools, quota(), running("r"), running("s"), node(lendable=2))
        told = [one for one in plan.actions if isinstance(one, WriteLent)]
        assert [(one.pool, one.lent) for one in told] == [("b", 2), ("c", 0)]
        assert {one.condition.status for one in told if one.condition} == {"True"}

    def test_a_pool_says_that_the_installation_lends_nothing(self) -> None:
        (told,) = planned(pool(), enabled=False).actions
        assert isinstance(told, WriteLent)
        assert told.condition is not None
        assert (told.condition.status, told.condition.reason) == ("False", "NotInstalled")


def test_a_job_of_very_many_pods_that_want_several_cards_costs_the_same_each() -> None:
    """They are impatient, and all cards are lent."""

    def cost(count: int) -> int:
        names = [f"n{number:03}" for number in range(count)]
        nodes = [node(name, lendable=2) for name in names]
        others = [running(name, "b", name, cards=2) for name in names]
        pods = [spot(f"p{name}", age=3600, cards=2) for name in names]
        everything = (quota("a", 9 * count), quota("b", 9 * count), *nodes, *others, *pods)
        return calls_of(lambda: planned(*everything))

    assert cost(240) <= 1.3 * (240 / 60) * cost(60)


def test_nor_does_a_job_for_which_what_is_left_of_its_quota_is_kept() -> None:
    """Each pod is told why it waits: nobody looked for cards for it, and all are lent."""

    def cost(count: int) -> int:
        names = [f"n{number:03}" for number in range(count)]
        nodes = [node(name, lendable=2) for name in names]
        others = [running(name, "b", name, cards=2) for name in names]
        pods = [spot(f"p{name}", age=3600) for name in names]
        first = spot("first", age=7200, cards=2)
        everything = (quota("a", 2), quota("b", 9 * count), *nodes, *others, first, *pods)
        return calls_of(lambda: planned(*everything))

    assert cost(240) <= 1.3 * (240 / 60) * cost(60)
