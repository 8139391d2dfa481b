"""From what the agent sees to what it reports: adoption, health, drains, leaving."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from mizar_core.device_ids import DeviceID
from mizar_core.models import Holder
from mizar_nodeagent.cards import GONE
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.planning.card_loss import loss_reason
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.device_lists import BACK, refusal
from mizar_nodeagent.planning.plan import Plan, plan
from mizar_nodeagent.planning.shadow_status import Report
from mizar_nodeagent.planning.snapshot import Counts, NodeSnapshot
from mizar_nodeagent.pods import Key, Pod
from unit.nodeagent.makers import (
    CARD,
    GIB,
    RESOURCE,
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

D0, D1 = device(0), device(1)
BOTH = {RESOURCE: {D0, D1}}
NONE: dict[str, set[str]] = {RESOURCE: set()}


def listed(found: Plan, resource: str = RESOURCE) -> dict[str, bool]:
    return {one.id: one.healthy for one in found.lists.get(resource, ())}


def said(found: Plan, type: str, key: Key = SHADOW) -> tuple[str, str]:
    (report,) = (one for one in found.reports if one.key == key)
    return next((one.status, one.reason) for one in report.conditions if one.type == type)


def report(found: Plan) -> Report:
    (one,) = found.reports
    return one


def served(at: float = 1.0) -> Plan:
    """A shadow pod that is served and ready."""
    seen = snapshot(at, [shadow()], [card_claim()], BOTH, node={RESOURCE: Counts(2, 2)})
    return plan(plan({}, seen).carvings, seen)


class TestAdoption:
    def test_a_shadow_pod_with_cards_is_carved(self) -> None:
        found = plan({}, snapshot(1, [shadow()], [card_claim()]))
        assert listed(found) == {D0: True, D1: True}
        assert found.counts == {}
        assert said(found, "Ready") == ("False", "NotAdvertised")
        assert found.poll_often

    def test_counts_follow_what_the_kubelet_has(self) -> None:
        found = plan({}, snapshot(1, [shadow()], [card_claim()], {RESOURCE: {D0}}))
        assert found.counts == {RESOURCE: Counts(1, 1)}
        found = plan({}, snapshot(1, [shadow()], [card_claim()], BOTH))
        assert found.counts == {RESOURCE: Counts(2, 2)}
        assert said(found, "Ready") == ("False", "NotAdvertised")

    def test_ready_when_the_node_shows_it(self) -> None:
        found = served()
        assert said(found, "Ready") == ("True", "Serving")
        assert not found.poll_often
        status = report(found)
        assert [(one.uuid, one.memory_mib, one.index) for one in status.cards] == [
            (CARD, 16 * GIB >> 20, 0)
        ]
        assert [(one.id, one.card, one.health) for one in status.devices] == [
            (D0, CARD, "Healthy"),
            (D1, CARD, "Healthy"),
        ]

    def test_without_cards_it_waits(self) -> None:
        found = plan({}, snapshot(1, [shadow()]))
        assert found.lists == {} and found.without_cards == {SHADOW}
        assert said(found, "Ready") == ("False", "CardsUnknown")

    def test_an_answer_older_than_the_pod_is_not_about_it(self) -> None:
        """A pod of the same name may have held other cards before."""
        seen = snapshot(5, [shadow()], [card_claim()], seen_at={"uid-shadow-2-aaaaa": 6.0})
        assert plan({}, seen).without_cards == {SHADOW}

    def test_cards_that_nvml_does_not_know_wait(self) -> None:
        seen = snapshot(1, [shadow()], [card_claim()], cards={}, cards_problem="no driver")
        assert said(plan({}, seen), "Ready") == ("False", "CardFactsUnknown")

    def test_too_few_cards_wait(self) -> None:
        pod = shadow(carve=carve(devices=4, cards=2, resource="team-a.mizar.share/gpu.4"))
        assert said(plan({}, snapshot(1, [pod], [card_claim()])), "Ready")[0] == "False"

    def test_a_damaged_carve_is_told(self) -> None:
        pod = replace(shadow(), carve_json="{}")
        found = plan({}, snapshot(1, [pod], [card_claim()]))
        assert said(found, "Ready") == ("False", "CarveDamaged")

    def test_a_foreign_resource_is_not_served(self) -> None:
        pod = shadow(carve=carve(resource="team-b.mizar.share/gpu.2"))
        found = plan({}, snapshot(1, [pod], [card_claim()]))
        assert found.lists == {}
        assert said(found, "Ready") == ("False", "CarveDamaged")

    @pytest.mark.parametrize("change", [{"ended": True}, {"terminating": True}])
    def test_pods_on_their_way_out_are_not_carved(self, change: dict[str, bool]) -> None:
        found = plan({}, snapshot(1, [shadow(**change)], [card_claim()]))
        assert found.lists == {} and found.reports == ()

    def test_several_shadows_of_one_resource_are_one_list(self) -> None:
        other = shadow("shadow-2-bbbbb")
        claims = [card_claim(), card_claim(other.name, card(2).uuid)]
        found = plan({}, snapshot(1, [other, shadow()], claims))
        assert [*listed(found)] == [D0, D1, device(0, other.key), device(1, other.key)]

    def test_a_time_sliced_card_is_its_card(self) -> None:
        found = plan({}, snapshot(1, [shadow()], [card_claim(SHADOW[1], f"{CARD}::3")]))
        assert found.carvings[SHADOW].cards[0].uuid == CARD

    def test_of_a_time_sliced_cards_replicas_one_is_carved(self) -> None:
        other = shadow("shadow-2-zzzzz")
        claims = [card_claim(SHADOW[1], f"{CARD}::3"), card_claim(other.name, f"{CARD}::0")]
        found = plan({}, snapshot(1, [shadow(), other], claims))
        assert [*found.carvings] == [SHADOW]
        assert said(found, "Ready", other.key) == ("False", "DevicesInUse")

    def test_two_replicas_of_a_card_are_not_two_cards(self) -> None:
        how = carve(resource="team-a.mizar.share/gpu.4", devices=4, cards=2)
        claims = [card_claim(SHADOW[1], f"{CARD}::0", f"{CARD}::1")]
        found = plan({}, snapshot(1, [shadow(carve=how)], claims))
        assert not found.carvings
        assert said(found, "Ready") == ("False", "CardReplicated")

    def test_a_card_is_not_carved_beside_a_pod_with_a_replica_of_it(self) -> None:
        claims = [card_claim(SHADOW[1], f"{CARD}::0"), card_claim("whole", f"{CARD}::1")]
        found = plan({}, snapshot(1, [shadow()], claims))
        assert said(found, "Ready") == ("False", "CardReplicated")
        claims[1] = card_claim("whole", f"{card(2).uuid}::1")
        assert plan({}, snapshot(1, [shadow()], claims)).carvings

    def test_a_card_still_in_use_is_not_carved_again(self) -> None:
        other = shadow("shadow-2-bbbbb")
        carvings = served().carvings
        claims = [card_claim(other.name), share_claim(D0)]
        found = plan(carvings, snapshot(9, [other, share()], claims, BOTH))
        assert said(found, "Ready", other.key) == ("False", "DevicesInUse")
        assert listed(found) == {D0: False, D1: False}

    def test_a_card_that_nobody_uses_any_more_is_carved_again_at_once(self) -> None:
        """The old IDs stay on the list for a while, but are given to no pod."""
        other = shadow("shadow-2-bbbbb")
        claims = [card_claim(other.name)]
        found = plan(served().carvings, snapshot(2, [other], claims, BOTH))
        assert said(found, "Ready", other.key) == ("False", "DevicesInUse")
        found = plan(found.carvings, snapshot(3, [other], claims, BOTH))
        assert listed(found) == {
            D0: False,
            D1: False,
            device(0, other.key): True,
            device(1, other.key): True,
        }

    @pytest.mark.parametrize("stage", [one for one in DrainStage if one is not DrainStage.LEAVING])
    def test_a_card_whose_shadow_pod_has_not_left_is_not_carved_again(
        self, stage: DrainStage
    ) -> None:
        """This holds also when the shadow pod is drained, since its drain may be called off. The
        kubelet may name the card for two pods while one replaces the other."""
        carving = replace(served().carvings[SHADOW], stage=stage, drain="t1")
        first, other = shadow(drain="t1"), shadow("shadow-2-bbbbb")
        claims = [card_claim(), card_claim(other.name)]
        found = plan({SHADOW: carving}, snapshot(9, [first, other], claims, NONE))
        assert other.key not in found.carvings
        assert said(found, "Ready", other.key) == ("False", "DevicesInUse")

    def test_nothing_is_carved_while_a_device_is_held_that_nobody_knows(self) -> None:
        """The agent has lost its carvings, and the device's shadow pod is gone: a new shadow pod
        may have got the same card."""
        other = shadow("shadow-2-bbbbb")
        claims = [card_claim(other.name), share_claim(D0)]
        found = plan({}, snapshot(1, [other, share()], claims))
        assert listed(found) == {D0: False}
        assert said(found, "Ready", other.key) == ("False", "DevicesInUse")
        found = plan(found.carvings, snapshot(2, [other], claims[:1]))
        assert said(found, "Ready", other.key) == ("False", "NotAdvertised")

    def test_held_devices_of_shadow_pods_that_are_there_are_known(self) -> None:
        """After a restart without carvings, in whatever order the shadow pods are carved again."""
        first, last = shadow("shadow-2-00000"), shadow("shadow-2-bbbbb")
        claims = [
            card_claim(first.name, card(3).uuid),
            card_claim(),
            card_claim(last.name, card(2).uuid),
            share_claim(D0),
        ]
        found = plan({}, snapshot(1, [first, shadow(), last, share()], claims))
        assert set(found.carvings) == {first.key, SHADOW, last.key}


class TestHolders:
    def test_a_holder_is_reported_and_ends_idleness(self) -> None:
        carvings = served().carvings
        found = plan(
            carvings, snapshot(2, [shadow(), share()], [card_claim(), share_claim(D1)], BOTH)
        )
        status = report(found)
        assert status.idle_since is None
        assert status.devices[0].holder is None
        assert status.devices[1].holder == Holder(
            namespace="team-a", name="share", container="main"
        )
        assert said(found, "PodInUsing") == ("True", "Held")

    @pytest.mark.parametrize("gone_at", [2.0, 2.5])
    def test_a_deleted_pod_holds_nothing_at_once(self, gone_at: float) -> None:
        """Also before the kubelet has been asked again."""
        carvings = served().carvings
        claims = [card_claim(), share_claim(D1)]
        seen = snapshot(2, [shadow()], claims, BOTH, gone_at={("team-a", "share"): gone_at})
        assert said(plan(carvings, seen), "PodInUsing") == ("False", "Idle")

    def test_an_ended_pod_holds_nothing(self) -> None:
        claims = [card_claim(), share_claim(D1)]
        seen = snapshot(2, [shadow(), share(ended=True)], claims, BOTH)
        assert said(plan(served().carvings, seen), "PodInUsing") == ("False", "Idle")

    def test_idleness_keeps_its_beginning(self) -> None:
        first = served(1)
        later = snapshot(50, [shadow()], [card_claim()], BOTH)
        later = replace(later, time=later.time.replace(hour=5))
        assert report(plan(first.carvings, later)).idle_since == report(first).idle_since

    def test_a_device_being_allocated_is_in_use(self) -> None:
        found = served()
        allocating = frozenset([found.carvings[SHADOW].ids[0]])
        seen = snapshot(2, [shadow()], [card_claim()], BOTH, allocating=allocating)
        assert said(plan(found.carvings, seen), "PodInUsing") == ("True", "Allocating")

    def test_a_held_device_of_an_unknown_shadow_is_listed_unhealthy(self) -> None:
        """After a restart without a checkpoint, the kubelet may report a held device that the agent
        does not know."""
        found = plan({}, snapshot(1, [share()], [share_claim(D0)]))
        assert listed(found) == {D0: False}


class TestHealth:
    def test_a_broken_card_makes_its_devices_unhealthy(self) -> None:
        carvings = served().carvings
        broken = {CARD: card(1, "the card reported XID 79")}
        found = plan(carvings, snapshot(2, [shadow()], [card_claim()], BOTH, cards=broken))
        assert listed(found) == {D0: False, D1: False}
        assert said(found, "Healthy") == ("False", "CardFailed")
        assert said(found, "Ready") == ("False", "Unhealthy")
        assert found.counts == {RESOURCE: Counts(2, 0)}

    def test_only_the_broken_cards_devices_are(self) -> None:
        four = carve(devices=4, cards=2, resource="team-a.mizar.share/gpu.4")
        pod = shadow(carve=four)
        facts = cards() | {card(2).uuid: card(2, "gone")}
        claims = [card_claim(SHADOW[1], CARD, card(2).uuid)]
        found = plan({}, snapshot(1, [pod], claims, cards=facts))
        assert listed(found, four.resource) == {
            device(0): True,
            device(1): True,
            device(2): False,
            device(3): False,
        }


class Drain:
    """A shadow pod that is being drained, step by step."""

    def __init__(self) -> None:
        self.carvings: dict[Key, Carving] = dict(served(0).carvings)
        self.last = served(0)

    def at(
        self,
        now: float,
        *,
        kubelet: dict[str, set[str]] | None = None,
        held: bool = False,
        drain: str = "t1",
        asked_at: float | None = None,
        **changes: object,
    ) -> DrainStage:
        """The stage after a plan at `now`; `asked_at`: when the kubelet was asked who holds what,
        if that was earlier."""
        claims = [card_claim(), *([share_claim(D0)] if held else [])]
        given = {"node": {RESOURCE: Counts(2, 0)}, "node_at": {RESOURCE: now}, **changes}
        pods = [shadow(drain=drain), *([share()] if held else [])]
        seen = snapshot(now, [*pods, *given.pop("more", [])], claims, kubelet or BOTH, **given)  # type: ignore[misc]
        if asked_at is not None:
            seen = replace(seen, claims=replace(seen.claims, asked_at=asked_at))
        self.last = plan(self.carvings, seen)
        self.carvings = self.last.carvings
        return self.carvings[SHADOW].stage


class TestDrain:
    def test_goes_its_way(self) -> None:
        drain = Drain()
        assert drain.at(1.0) is DrainStage.LOWERED
        assert listed(drain.last) == {D0: True, D1: True}
        assert drain.last.counts == {RESOURCE: Counts(2, 0)}
        assert drain.last.rewrite == {RESOURCE}
        assert said(drain.last, "Draining") == ("Unknown", "InProgress")
        assert drain.at(1.5) is DrainStage.LOWERED
        assert drain.at(2.1) is DrainStage.BLOCKED
        assert listed(drain.last) == {D0: False, D1: False}
        assert drain.at(2.2) is DrainStage.BLOCKED
        assert drain.at(2.3, kubelet=NONE) is DrainStage.BLOCKED
        assert drain.at(3.2, kubelet=NONE) is DrainStage.BLOCKED
        assert drain.at(3.4, kubelet=NONE) is DrainStage.DRAINED
        assert said(drain.last, "Draining") == ("True", "Drained")
        assert said(drain.last, "Ready") == ("False", "Drained")
        assert drain.at(99, kubelet=NONE) is DrainStage.DRAINED

    def test_a_holder_calls_it_off(self) -> None:
        drain = Drain()
        assert drain.at(1.0, held=True) is DrainStage.IN_USE
        assert listed(drain.last) == {D0: True, D1: True}
        assert drain.last.counts == {RESOURCE: Counts(2, 2)}
        assert said(drain.last, "Draining") == ("False", "InUse")
        # It stays so until the operator asks anew.
        assert drain.at(2.0) is DrainStage.IN_USE
        assert drain.at(3.0, drain="t2") is DrainStage.LOWERED

    @pytest.mark.parametrize("moment", [1.5, 2.1, 2.3])
    def test_somebody_who_gets_in_calls_it_off(self, moment: float) -> None:
        drain = Drain()
        drain.at(1.0)
        if moment > 2.0:
            assert drain.at(2.05) is DrainStage.BLOCKED
        assert drain.at(moment, held=True) is DrainStage.IN_USE
        assert listed(drain.last) == {D0: True, D1: True}

    def test_an_allocation_on_its_way_calls_it_off(self) -> None:
        drain = Drain()
        drain.at(1.0)
        drain.at(2.1)
        ids = frozenset(drain.carvings[SHADOW].ids[:1])
        assert drain.at(2.5, kubelet=NONE, allocating=ids) is DrainStage.IN_USE

    def test_waits_for_bound_pods_that_have_no_device_yet(self) -> None:
        drain = Drain()
        waiting = {"more": [share(admitted=False)]}
        drain.at(1.0)
        assert drain.at(5.0, **waiting) is DrainStage.LOWERED
        assert drain.at(9.0, **waiting) is DrainStage.LOWERED
        # For them the node's status offers a device, until now.
        assert drain.last.counts == {RESOURCE: Counts(2, 1)}
        assert drain.at(9.5) is DrainStage.LOWERED
        assert drain.last.counts == {RESOURCE: Counts(2, 0)}
        assert drain.at(10.6) is DrainStage.BLOCKED

    def test_waits_for_the_api_server_to_show_the_lower_count(self) -> None:
        drain = Drain()
        drain.at(1.0, node_at={})
        assert drain.at(5.0, node_at={RESOURCE: 0.5}) is DrainStage.LOWERED
        assert drain.at(6.0, node_at={RESOURCE: 5.5}) is DrainStage.BLOCKED

    def test_only_answers_from_after_a_step_tell_who_came_in_it(self) -> None:
        """Blocked a second after the count was lowered, and drained a second after no pod could get
        a device any more. What counts are answers that are that much later than the step, however
        late it is now."""
        drain = Drain()
        drain.at(1.0)
        assert drain.at(9.0, asked_at=1.9) is DrainStage.LOWERED
        assert drain.at(9.1, asked_at=2.1) is DrainStage.BLOCKED
        drain.at(9.2, kubelet=NONE)
        for asked_at in (2.1, 9.1, 10.1):
            assert drain.at(20.0, kubelet=NONE, asked_at=asked_at) is DrainStage.BLOCKED
        assert drain.at(20.1, kubelet=NONE, asked_at=10.3) is DrainStage.DRAINED

    def test_an_old_answer_of_the_kubelet_proves_nothing(self) -> None:
        drain = Drain()
        drain.at(1.0)
        drain.at(2.1)
        stale = {"kubelet": NONE, "kubelet_at": 2.0}
        assert drain.at(4.0, **stale) is DrainStage.BLOCKED  # type: ignore[arg-type]
        assert drain.carvings[SHADOW].quiet_since is None

    def test_a_kubelet_that_is_away_proves_nothing(self) -> None:
        drain = Drain()
        drain.at(1.0)
        drain.at(2.1)
        seen = snapshot(9, [shadow(drain="t1")], [card_claim()], kubelet_at=9.0)
        seen = replace(seen, kubelet=None)
        assert plan(drain.carvings, seen).carvings[SHADOW].stage is DrainStage.BLOCKED

    @pytest.mark.parametrize("until", [1.0, 2.1, 9.0])
    def test_called_off_it_is_served_again(self, until: float) -> None:
        drain = Drain()
        for moment in (1.0, 2.1, 2.3, 9.0):
            if moment <= until:
                drain.at(moment, kubelet=BOTH if moment < 2.2 else NONE)
        assert drain.at(10.0, drain="") is DrainStage.SERVING
        assert listed(drain.last) == {D0: True, D1: True}
        assert said(drain.last, "Draining") == ("False", "NotAsked")

    def test_found_in_a_drain_it_is_never_offered(self) -> None:
        """An agent without carvings doesn't know what the agent before it has promised."""
        found = plan({}, snapshot(1, [shadow(drain="t1")], [card_claim()]))
        assert found.carvings[SHADOW].stage is DrainStage.BLOCKED
        assert listed(found) == {D0: False, D1: False}

    def test_the_stage_survives_a_restart(self) -> None:
        drain = Drain()
        drain.at(1.0)
        drain.at(2.1)
        drain.at(2.2, kubelet=NONE)
        drain.at(4.0, kubelet=NONE)
        saved = drain.carvings[SHADOW].to_dict()
        loaded = Carving.from_dict(saved, now=0.0)
        found = plan({SHADOW: loaded}, snapshot(0.1, [shadow(drain="t1")]))
        assert found.carvings[SHADOW].stage is DrainStage.DRAINED
        assert listed(found) == {D0: False, D1: False}

    def test_a_report_without_its_promise_is_the_same_otherwise(self) -> None:
        whole = report(served())
        without = whole.without_promise()
        assert replace(without, conditions=whole.conditions) == whole
        pairs = list(zip(whole.conditions, without.conditions, strict=True))
        assert all(one.type == other.type for one, other in pairs)
        changed = [(other.type, other.status) for one, other in pairs if one != other]
        assert changed == [("Draining", "Unknown")]


def test_devices_on_each_card_say_what_a_container_gets() -> None:
    resource = "team-a.mizar.share/gpu.4"
    pod = shadow(carve=carve(resource=resource, devices=4, cards=2))
    found = plan({}, snapshot(1, [pod], [card_claim(SHADOW[1], CARD, card(2).uuid)]))
    assert [(one.card, one.memory_mib) for one in report(found).devices] == [
        (CARD, 8192),
        (CARD, 8192),
        (card(2).uuid, 8192),
        (card(2).uuid, 8192),
    ]


class TestCannotStart:
    """A shadow pod whose container cannot start, such as for want of its image, has its card."""

    def ready_message(self, pod: Pod) -> str:
        seen = snapshot(2, [pod], [card_claim()], BOTH, node={RESOURCE: Counts(2, 2)})
        found = plan(served().carvings, seen)
        assert listed(found) == {D0: True, D1: True}
        assert said(found, "Ready") == ("True", "Serving")
        return report(found).conditions[0].message

    def test_its_devices_are_offered_and_its_condition_says_so(self) -> None:
        plain = self.ready_message(shadow())
        message = self.ready_message(replace(shadow(), cannot_start=True))
        assert message.startswith(plain) and "its container does not start" in message


class TestReboot:
    """What an agent still knows after the node was started anew."""

    def unconfirmed(self) -> dict[Key, Carving]:
        (one,) = served().carvings.values()
        return {SHADOW: replace(one, confirmed=False)}

    def test_nobody_is_given_a_device_until_the_kubelet_has_confirmed_the_cards(self) -> None:
        found = plan(self.unconfirmed(), snapshot(2, [shadow()], [], NONE))
        assert listed(found) == {D0: False, D1: False}
        assert said(found, "Ready") == ("False", "Unconfirmed")
        found = plan(found.carvings, snapshot(3, [shadow()], [card_claim()], NONE))
        assert listed(found) == {D0: True, D1: True}

    def test_while_the_api_server_is_away_the_kubelet_suffices(self) -> None:
        found = plan(self.unconfirmed(), snapshot(2, None, [card_claim()], NONE))
        assert listed(found) == {D0: True, D1: True}

    def test_another_card_is_carved_instead(self) -> None:
        """As where the kubelet has lost its own checkpoint."""
        other = card(2).uuid
        claims = [card_claim(SHADOW[1], other)]
        found = plan(self.unconfirmed(), snapshot(2, [shadow()], claims, NONE))
        assert listed(found) == {D0: True, D1: True}
        assert [one.uuid for one in found.carvings[SHADOW].cards] == [other]

    def test_another_card_is_not_carved_while_a_device_is_held(self) -> None:
        claims = [card_claim(SHADOW[1], card(2).uuid), share_claim(D0)]
        found = plan(self.unconfirmed(), snapshot(2, [shadow(), share()], claims, NONE))
        assert listed(found) == {D0: False, D1: False}
        assert [one.uuid for one in found.carvings[SHADOW].cards] == [CARD]

    def test_a_card_that_another_pod_has_now_is_lost(self) -> None:
        taken = snapshot(2, [shadow()], [card_claim("trainer")], NONE)
        found = plan(plan(self.unconfirmed(), taken).carvings, replace(taken, now=4.0))
        found = plan(found.carvings, replace(taken, now=4.0, claims=Claims(taken.claims.all, 4.0)))
        assert said(found, "Ready") == ("False", "CardLost")

    def test_a_shadow_pod_that_the_kubelet_did_not_admit_again_is_gone(self) -> None:
        found = plan(self.unconfirmed(), snapshot(2, [shadow(ended=True)], [], NONE))
        assert found.carvings[SHADOW].stage is DrainStage.LEAVING

    def test_is_remembered_by_the_next_agent(self) -> None:
        (one,) = self.unconfirmed().values()
        assert not Carving.from_dict(json.loads(json.dumps(one.to_dict())), now=7.0).confirmed


class TestGoneCard:
    """A card that NVML no longer lists."""

    GONE = cards() | {CARD: replace(card(1, "the card is gone"), gone_since=10.0)}

    def after(self, now: float, **changes: object) -> Plan:
        pods, claims = [shadow(), share()], [card_claim(), share_claim(D0)]
        given = {"cards": self.GONE, "kubelet": NONE, **changes}
        return plan(served().carvings, snapshot(now, pods, claims, **given))  # type: ignore[arg-type]

    def test_is_unhealthy_and_after_a_while_lost(self) -> None:
        assert said(self.after(69.9), "Healthy") == ("False", "CardFailed")
        assert said(self.after(69.9), "Ready") == ("False", "Unhealthy")
        assert said(self.after(70.0), "Ready") == ("False", "CardLost")

    def test_is_not_lost_while_nvidias_plugin_calls_it_healthy(self) -> None:
        healthy = {RESOURCE: set[str](), "nvidia.com/gpu": {f"{CARD}::0"}}
        assert said(self.after(99.0, kubelet=healthy), "Ready") == ("False", "Unhealthy")

    def test_is_not_lost_while_the_kubelet_does_not_answer(self) -> None:
        found = plan(
            served().carvings,
            replace(
                snapshot(99.0, [shadow()], [card_claim()], NONE, cards=self.GONE), kubelet=None
            ),
        )
        assert said(found, "Ready")[1] != "CardLost"

    def test_is_told_without_a_field_that_older_crds_lack(self) -> None:
        """With these, the API server would refuse the whole status, and nobody would be evicted."""
        (one,) = report(self.after(70.0)).cards
        assert one.to_dict().keys() == {"uuid", "model", "memoryMiB", "index"}

    def test_stays_lost_for_the_next_agent(self) -> None:
        lost = self.after(70.0).carvings[SHADOW]
        assert Carving.from_dict(json.loads(json.dumps(lost.to_dict())), 0.0).gone == {CARD}

    def test_of_an_earlier_agents_checkpoint_means_that_all_are_lost(self) -> None:
        """Earlier agents kept one card, and gave up all."""
        saved = two_cards(1.0).to_dict()
        assert not Carving.from_dict(saved | {"gone": ""}, 0.0).gone
        assert Carving.from_dict(saved | {"gone": CARD}, 0.0).is_lost


FOUR = carve(devices=4, cards=2, resource="team-a.mizar.share/gpu.4")
CARD_2 = card(2).uuid
ON_1, ON_2 = {device(0), device(1)}, {device(2), device(3)}
SHARE_1, SHARE_2 = (share(name, requests=((FOUR.resource, 1),)) for name in ("share-1", "share-2"))


def two_cards(*when: Any, **changes: Any) -> Carving:
    """The carving after the plan that `planned` makes of these."""
    return planned(*when, **changes).carvings[SHADOW]


def planned(
    now: float,
    gone: tuple[str, ...] = (),
    users: tuple[Pod, ...] = (SHARE_1, SHARE_2),
    before: Carving | None = None,
    **changes: object,
) -> Plan:
    """The plan at `now` of a shadow pod with two cards: SHARE_1 has a device on the first one,
    SHARE_2 on the second. `gone`: UUIDs of cards that have not been in the node since second 10."""
    devices = {SHARE_1: device(0), SHARE_2: device(2)}
    held = [share_claim(devices[pod], pod=pod.name, resource=FOUR.resource) for pod in users]
    there = {uuid: replace(cards()[uuid], problem=GONE, gone_since=10.0) for uuid in gone}
    given = {"node": {FOUR.resource: Counts(4, 4)}, "kubelet": {FOUR.resource: ON_1 | ON_2}}
    seen = snapshot(
        now,
        [shadow(carve=FOUR), *users],
        [card_claim(SHADOW[1], CARD, CARD_2), *held],
        **{**given, "cards": cards() | there, **changes},  # type: ignore[arg-type]
    )
    return plan({} if before is None else {SHADOW: before}, seen)


class TestOneOfTwoCardsGone:
    """The devices of the other card are used as before."""

    LATER: ClassVar = {"node": {FOUR.resource: Counts(4, 2)}, "kubelet": {FOUR.resource: ON_2}}
    """What kubelet and node's status say once they know."""

    def test_only_its_own_devices_end(self) -> None:
        found = planned(70.0, (CARD,), before=two_cards(1.0), **self.LATER)
        assert listed(found, FOUR.resource) == dict.fromkeys(ON_1, False) | dict.fromkeys(
            ON_2, True
        )
        assert said(found, "Ready") == ("True", "Serving")
        assert said(found, "Healthy") == ("False", "CardFailed")
        assert found.counts == {FOUR.resource: Counts(4, 2)}
        assert [(one.uuid, one.lost) for one in report(found).cards] == [
            (CARD, True),
            (CARD_2, None),
        ]

    def test_it_is_not_lost_before_that_is_certain(self) -> None:
        assert two_cards(69.9, (CARD,), before=two_cards(1.0)).gone == set()

    def test_a_card_that_is_back_waits_for_those_who_use_it(self) -> None:
        """They are being evicted, and their limits there are gone."""
        lost = two_cards(70.0, (CARD,), before=two_cards(1.0))
        back = planned(71.0, before=lost)
        assert back.carvings[SHADOW].gone == {CARD}
        assert report(back).failed == {CARD: BACK}
        assert said(back, "Healthy") == ("False", "CardFailed")
        assert not any(listed(back, FOUR.resource)[one] for one in ON_1)
        assert refusal(back.carvings[SHADOW], DeviceID.parse(device(1)), snapshot(71.0))
        free = planned(72.0, users=(SHARE_2,), before=back.carvings[SHADOW])
        assert free.carvings[SHADOW].gone == set()
        assert all(listed(free, FOUR.resource).values())

    def test_a_device_that_is_being_allocated_counts_as_used(self) -> None:
        lost = two_cards(70.0, (CARD,), before=two_cards(1.0))
        allocating = frozenset({DeviceID.parse(device(1))})
        assert two_cards(71.0, users=(), before=lost, allocating=allocating).gone == {CARD}

    def test_all_are_lost_when_the_other_goes_too(self) -> None:
        one = two_cards(70.0, (CARD,), before=two_cards(1.0))
        found = planned(71.0, (CARD, CARD_2), before=one)
        assert said(found, "Ready") == ("False", "CardLost")
        assert [each.lost for each in report(found).cards] == [None, None]
        assert loss_reason(SHADOW, found.carvings[SHADOW], snapshot(71.0, [shadow()])) == (
            f"{CARD}, {CARD_2} are not in the node any more"
        )
        again = planned(72.0, users=(), before=found.carvings[SHADOW])
        assert said(again, "Ready") == ("False", "CardLost")


def test_a_card_that_an_agent_has_never_seen_is_gone() -> None:
    """The card fell off the bus while no agent ran."""
    others = cards(2, 3)
    (one,) = served().carvings.values()
    found = plan({SHADOW: one}, snapshot(2, [shadow()], [card_claim()], NONE, cards=others))
    assert said(found, "Healthy") == ("False", "CardFailed")
    unread = {"cards": {}, "cards_problem": "the cards have not been read yet"}
    found = plan({SHADOW: one}, snapshot(2, [shadow()], [card_claim()], NONE, **unread))
    assert said(found, "Healthy") == ("True", "CardsWell")


def test_what_is_remembered_comes_back_from_the_checkpoint() -> None:
    (first,) = served().carvings.values()
    held = replace(first.cards[0], numa=(0, 1))
    known = replace(
        first,
        cards=(held,),
        stage=DrainStage.IN_USE,
        drain="2026-01-01T00:00:00Z",
        idle_since=datetime(2026, 1, 1, 12, tzinfo=UTC),
        taken_by="team-b/trainer",
    )
    saved = json.loads(json.dumps(known.to_dict()))
    assert Carving.from_dict(saved, now=7.0) == replace(known, since=7.0, quiet_since=None)
    # A carving from before cards could be taken, when the numbers of device nodes were kept.
    del saved["takenBy"]
    saved["cards"][0]["minor"] = 3
    assert Carving.from_dict(saved, now=7.0).taken_by == ""


def test_the_kubelet_hears_near_which_processors_a_device_is() -> None:
    told = replace(card_claim(), numa={CARD: (1,)})
    found = plan({}, snapshot(1.0, [shadow()], [told], BOTH))
    assert {one.numa for one in found.lists[RESOURCE]} == {(1,)}


class TestTaken:
    """A card of a shadow pod that, by the kubelet's answer, another pod has."""

    MINE = card_claim()
    OTHERS = card_claim("trainer", namespace="team-b")

    def taken(self, *answers: tuple[float, Claim]) -> str:
        """The pod that has the card in the end, after these answers of the kubelet."""
        carvings = served().carvings
        for at, claim in answers:
            carvings = plan(carvings, snapshot(at, [shadow()], [claim], BOTH)).carvings
        return carvings[SHADOW].taken_by

    def test_is_taken_when_it_says_so_for_a_while(self) -> None:
        assert self.taken((2.0, self.OTHERS), (2.9, self.OTHERS)) == ""
        assert self.taken((2.0, self.OTHERS), (3.0, self.OTHERS)) == "team-b/trainer"

    def test_the_while_begins_anew_when_it_takes_that_back(self) -> None:
        answers = [(2.0, self.OTHERS), (2.5, self.MINE), (3.0, self.OTHERS), (3.9, self.OTHERS)]
        assert self.taken(*answers) == ""
        assert self.taken(*answers, (4.0, self.OTHERS)) == "team-b/trainer"

    def test_stays_taken(self) -> None:
        assert self.taken((2.0, self.OTHERS), (3.0, self.OTHERS), (4.0, self.MINE))


class TestLeaving:
    """Invariant 4: an ID turns unhealthy before it leaves the list."""

    def gone(self, now: float, carvings: dict[Key, Carving], **changes: object) -> Plan:
        return plan(carvings, snapshot(now, **{"pods": [], "kubelet": NONE, **changes}))  # type: ignore[arg-type]

    def test_ids_stay_unhealthy_for_a_safe_while(self) -> None:
        found = self.gone(1, served(0).carvings)
        assert listed(found) == {D0: False, D1: False}
        assert found.carvings[SHADOW].stage is DrainStage.LEAVING
        assert found.reports == ()
        found = self.gone(2, found.carvings)
        found = self.gone(11.9, found.carvings)
        assert listed(found) == {D0: False, D1: False}
        found = self.gone(12.1, found.carvings)
        assert found.lists == {} and found.carvings == {}

    def test_a_lost_shadow_pod_hears_of_its_holders_until_there_are_none(self) -> None:
        """Otherwise its ShadowPod would wait for its holders for ever, and its namespace with
        it."""
        carvings = served(0).carvings
        for now in (1, 2, 20):
            found = self.gone(now, carvings, pods=[share()], claims=[share_claim(D0)])
            carvings = found.carvings
        assert said(found, "PodInUsing") == ("True", "Held")
        found = self.gone(21, carvings)
        assert said(found, "PodInUsing") == ("False", "Idle")
        assert said(found, "Ready") == ("False", "Leaving")
        assert {one.holder for one in report(found).devices} == {None}

    def test_nothing_is_said_of_holders_that_nobody_was_asked_about(self) -> None:
        left = self.gone(1, served(0).carvings).carvings
        again = {SHADOW: Carving.from_dict(left[SHADOW].to_dict(), now=5.0)}
        assert plan(again, replace(snapshot(5.1, []), claims=Claims())).reports == ()

    def test_held_ids_stay_however_long(self) -> None:
        carvings = served(0).carvings
        for now in (1, 2, 20, 200):
            found = self.gone(now, carvings, pods=[share()], claims=[share_claim(D0)])
            carvings = found.carvings
            assert listed(found) == {D0: False, D1: False}
        for now in (201, 210):
            carvings = self.gone(now, carvings).carvings
            assert carvings
        assert self.gone(212, carvings).carvings == {}

    def test_ids_that_the_kubelet_takes_for_healthy_stay(self) -> None:
        carvings = served(0).carvings
        for now in (1, 2, 20):
            carvings = self.gone(now, carvings, kubelet=BOTH).carvings
            assert carvings[SHADOW].quiet_since is None

    def test_nothing_is_forgotten_while_the_api_server_is_silent(self) -> None:
        carvings = served(0).carvings
        found = plan(carvings, snapshot(100, None, kubelet=NONE))
        assert listed(found) == {D0: True, D1: True}

    def test_a_pod_that_is_being_deleted_offers_nothing(self) -> None:
        found = plan(
            served(0).carvings, snapshot(1, [shadow(terminating=True)], [card_claim()], BOTH)
        )
        assert listed(found) == {D0: False, D1: False}
        assert said(found, "Ready") == ("False", "Leaving")
        assert found.counts == {RESOURCE: Counts(2, 0)}

    def test_a_new_pod_of_the_same_name_waits_for_the_old_ones_devices(self) -> None:
        new = shadow(uid="uid-new")
        carvings = served(0).carvings
        pods, claims = [new, share()], [card_claim(), share_claim(D0)]
        found = plan(carvings, snapshot(1, pods, claims, NONE, seen_at={"uid-new": 0.5}))
        assert listed(found) == {D0: False, D1: False}
        assert said(found, "Ready") == ("False", "DevicesInUse")

    def test_a_new_pod_of_the_same_name_takes_over_ids_that_nobody_uses(self) -> None:
        new = shadow(uid="uid-new")
        gone = self.gone(1, served(0).carvings)
        found = plan(
            gone.carvings, snapshot(2, [new], [card_claim()], NONE, seen_at={"uid-new": 1.5})
        )
        assert listed(found) == {D0: True, D1: True}
        assert found.carvings[SHADOW].pod_uid == "uid-new"

    def test_the_node_shows_nothing_of_what_is_gone(self) -> None:
        found = plan({}, snapshot(1, [], node={RESOURCE: Counts(2, 0)}))
        assert found.counts == {RESOURCE: Counts(0, 0)}


def test_a_plan_is_the_same_in_any_order() -> None:
    first, second = shadow(), shadow("shadow-2-bbbbb")
    claims = [card_claim(), card_claim(second.name, card(2).uuid), share_claim(D0)]
    one = snapshot(1, [first, second, share()], claims, BOTH)
    other: NodeSnapshot = snapshot(1, [share(), second, first], claims[::-1], BOTH)
    assert plan({}, one) == plan({}, other)


@pytest.mark.parametrize("held", [False, True])
def test_what_has_not_changed_is_the_same_object(held: bool) -> None:
    """So what was derived from it, such as its limits, is not derived again at each plan."""
    claims = [card_claim(), *([share_claim(D0)] if held else [])]
    pods = [shadow(), *([share()] if held else [])]
    before = served().carvings
    for at in (2.0, 3.0):
        seen = snapshot(at, pods, claims, BOTH, node={RESOURCE: Counts(2, 2)})
        after = plan(before, seen).carvings
        assert at == 2.0 or after[SHADOW] is before[SHADOW]
        before = after
