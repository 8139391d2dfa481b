"""Shadow pods that lose their cards while pods share them, across the whole agent."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from mizar_core.models import Isolation
from mizar_nodeagent.card_health import Readings
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.regions.layout import COMPUTE_MODES, COMPUTE_STOPPED
from unit.nodeagent.fake_kubelet import Allocated, KubePod
from unit.nodeagent.makers import CARD, GIB, RESOURCE, SHADOW, card, shadow_object
from unit.nodeagent.test_assembly import QUICK, SHADOW_POD, SHARE, World, limits_of, until
from unit.nodeagent.test_assembly import world as world
from unit.nodeagent.test_limits_update import events, given

OTHER = KubePod("team-b", "trainer", "uid-trainer")


def is_stopped(held: Allocated) -> bool:
    card = given(held)
    return (card.compute_mode, card.core_share, card.memory_limit) == (COMPUTE_STOPPED, 0, 0)


def force_deleted(world: World) -> None:
    world.api.delete_pod(*SHADOW)


def deleted(world: World) -> None:
    pod = shadow_object()
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.api.put_pod(pod)


def ended(world: World) -> None:
    pod = shadow_object()
    pod["status"]["phase"] = "Failed"
    world.api.put_pod(pod)


def given_away(world: World) -> None:
    """The kubelet takes the shadow pod for ended and its card for free, and gives the card to
    another pod."""
    world.kubelet.physical[SHADOW_POD.uid] = {}
    world.kubelet.add_pod(OTHER, main=[CARD])
    assert world.app is not None
    world.app.poller.poll_soon()


def gone(world: World) -> None:
    """The card fell off the bus, and NVIDIA's plugin has noticed."""
    del world.cards.present[CARD]


WAYS = {
    force_deleted: "was deleted or evicted",
    deleted: "was deleted",
    ended: "has ended",
    given_away: "the kubelet gave it to pod team-b/trainer",
    gone: f"{CARD} is not in the node any more",
}


@pytest.mark.parametrize("how", WAYS, ids=lambda how: how.__name__)
@pytest.mark.parametrize("compute", ["None", "Hard"])
async def test_sharers_of_a_lost_card_are_stopped_and_told(
    world: World, how: Callable[[World], None], compute: str
) -> None:
    await world.serve_shadow(isolation=Isolation.from_dict({"compute": compute}))
    held = await world.start_share()
    await until(lambda: world.holders() == ["share"])
    how(world)
    await until(lambda: is_stopped(held))
    await until(lambda: events(world, "CardLost"))
    ((pod, note),) = events(world, "CardLost")
    assert pod == "share" and f"{SHADOW[1]} lost card {CARD}" in note and WAYS[how] in note
    with pytest.raises(grpc.aio.AioRpcError, match="has been deleted or is terminating"):
        await world.kubelet.start_container(SHARE, "main", RESOURCE)
    assert is_stopped(held)


async def test_a_deleted_shadow_pod_keeps_its_cards_for_its_grace(world: World) -> None:
    """Its users have that time to end; no other container starts on the card."""
    await world.serve_shadow()
    held = await world.start_share()
    await until(lambda: world.holders() == ["share"])
    pod = shadow_object()
    pod["metadata"]["deletionTimestamp"] = "2100-01-01T00:00:00Z"
    world.api.put_pod(pod)
    await until(lambda: world.ready() == ("False", "Leaving"))
    with pytest.raises(grpc.aio.AioRpcError, match="has been deleted or is terminating"):
        await world.kubelet.start_container(SHARE, "main", RESOURCE)
    assert not is_stopped(held)
    force_deleted(world)
    await until(lambda: is_stopped(held))


async def test_another_agent_leaves_them_stopped_and_does_not_tell_again(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    await until(lambda: world.holders() == ["share"])
    force_deleted(world)
    await until(lambda: is_stopped(held) and events(world, "CardLost") != [])
    await world.stop_agent()
    await world.start_agent()
    await until(lambda: world.app is not None and world.app.agent.state.snapshot.pods is not None)
    # All events that were emitted earlier have been written when this one has.
    world.cards.tell(CARD, 79)
    await until(lambda: events(world, "DeviceUnhealthy"))
    assert is_stopped(held)
    assert len(events(world, "CardLost")) == 1


async def test_an_agent_that_lost_its_state_stops_them_too(world: World) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    await until(lambda: world.holders() == ["share"])
    await world.stop_agent()
    (world.config.state_dir / "checkpoint.json").unlink()
    world.api.delete_pod(*SHADOW)
    await world.start_agent()
    await until(lambda: is_stopped(held))


async def test_an_agent_that_lost_its_state_stops_no_container_whose_shadow_pod_lives(
    world: World,
) -> None:
    await world.serve_shadow()
    held = await world.start_share()
    await world.stop_agent()
    (world.config.state_dir / "checkpoint.json").unlink()
    seq = limits_file.read(limits_of(held)).seq
    await world.start_agent()
    await until(lambda: world.holders() == ["share"] and world.ready() == ("True", "Serving"))
    assert limits_file.read(limits_of(held)).seq == seq


async def test_a_pod_that_has_ended_and_is_still_listed_takes_nothing(world: World) -> None:
    """Kubelets before 1.34 list such pods, with the cards that they once had."""
    await world.serve_shadow()
    held = await world.start_share()
    world.kubelet.add_pod(OTHER, main=[CARD])
    asked = _asked_at(world)

    def is_clear() -> bool:
        """Whether the kubelet was asked for longer than it takes to believe its answers."""
        world.app.poller.poll_soon()  # type: ignore[union-attr]
        return _asked_at(world) > asked + 2 * QUICK.taken

    await until(is_clear)
    assert given(held).memory_limit == 8 * GIB
    assert world.ready() == ("True", "Serving")


def _asked_at(world: World) -> float:
    assert world.app is not None
    return world.app.agent.state.snapshot.claims.asked_at


async def test_the_status_names_the_pod_that_has_the_card(world: World) -> None:
    await world.serve_shadow()
    await world.start_share()
    given_away(world)
    await until(lambda: world.ready() == ("False", "CardLost"))
    # No other pod gets a device of it.
    await until(lambda: world.kubelet.healthy(RESOURCE) == set())


async def test_a_pod_on_a_card_that_fails_gets_an_event_and_runs_on(world: World) -> None:
    await world.serve_shadow(isolation=Isolation(compute="Hard"))
    held = await world.start_share()
    await until(lambda: world.holders() == ["share"])
    world.cards.tell(CARD, 79)
    await until(lambda: len(events(world, "DeviceUnhealthy")) == 2)
    told = dict(events(world, "DeviceUnhealthy"))
    assert set(told) == {"share", SHADOW[1]} and "XID 79" in told["share"]
    assert given(held).compute_mode == COMPUTE_MODES["Hard"]


def spoil(world: World) -> None:
    """A row of the card's memory could not be replaced, as NVML shows at every read."""
    world.cards.present[CARD] = replace(card(), readings=Readings(remap_failed=True))


@pytest.mark.parametrize("told", [True, False], ids=["by an earlier agent", "by nobody"])
async def test_a_card_that_has_failed_when_an_agent_starts(world: World, told: bool) -> None:
    """Its users are told, unless the earlier agent did."""
    await world.serve_shadow()
    await world.start_share()
    await until(lambda: world.holders() == ["share"])
    if told:
        spoil(world)
        await until(lambda: len(events(world, "DeviceUnhealthy")) == 2)
    await world.stop_agent()
    spoil(world)
    await world.start_agent()
    await until(lambda: world.api.condition(*SHADOW, "Healthy") == ("False", "CardFailed"))
    await until(lambda: len(events(world, "DeviceUnhealthy")) == 2)
    await world.replanned()
    assert {pod for pod, _ in events(world, "DeviceUnhealthy")} == {"share", SHADOW[1]}


CARD_2 = card(2).uuid
NEIGHBOUR = KubePod("team-a", "neighbour", "uid-neighbour")


async def share_two_cards(world: World, **carving: Any) -> tuple[Allocated, Allocated]:
    """A shadow pod with two cards, and a share pod on each; the first one's card goes."""
    await world.serve_shadow(cards=2, **carving)
    held = await world.start_share(), await world.start_share(NEIGHBOUR)
    await until(lambda: sorted(world.holders()) == ["neighbour", "share"])
    assert {given(one).uuid.decode() for one in held} == {CARD, CARD_2}
    return held if given(held[0]).uuid.decode() == CARD else (held[1], held[0])


async def test_one_gone_card_of_two_stops_those_who_use_it_only(world: World) -> None:
    loser, other = await share_two_cards(world)
    gone(world)
    await until(lambda: is_stopped(loser))
    await until(lambda: events(world, "CardLost"))
    (name,) = (pod.name for pod in (SHARE, NEIGHBOUR) if world.holds(pod, CARD))
    ((pod, note),) = events(world, "CardLost")
    assert pod == name and WAYS[gone] in note
    assert not is_stopped(other) and world.ready() == ("True", "Serving")
    await until(lambda: marks(world) == {CARD: True, CARD_2: None})


def marks(world: World) -> dict[str, bool | None]:
    """What the ShadowPod's status says of each card: True if it is lost."""
    return {one["uuid"]: one.get("lost") for one in world.api.status(*SHADOW)["cards"]}


async def test_a_container_on_both_cards_is_stopped_on_the_gone_one_only(world: World) -> None:
    await world.serve_shadow(cards=2, isolation=Isolation(compute="Hard"))
    held = await world.start_share(count=2)
    gone(world)
    await until(lambda: events(world, "CardLost"))
    limits = limits_file.read(limits_of(held))
    assert {uuid: limits_file.is_stopped(limits, uuid) for uuid in (CARD, CARD_2)} == {
        CARD: True,
        CARD_2: False,
    }


async def test_changed_limits_reach_the_other_card_and_leave_the_stopped_ones(
    world: World,
) -> None:
    loser, other = await share_two_cards(world, memory=2 * GIB)
    gone(world)
    await until(lambda: is_stopped(loser))
    world.api.put_pod(shadow_object(cards=2, memory=GIB))
    await until(lambda: given(other).memory_limit == GIB)
    assert is_stopped(loser)


async def test_the_next_agent_leaves_the_other_cards_pods_alone_too(world: World) -> None:
    loser, other = await share_two_cards(world)
    gone(world)
    await until(lambda: is_stopped(loser))
    # The agent writes its checkpoint at the end of the plan that has stopped it.
    await world.planned()
    seq = limits_file.read(limits_of(other)).seq
    await world.stop_agent()
    await world.start_agent()
    await until(lambda: world.ready() == ("True", "Serving"))
    await world.replanned()
    assert is_stopped(loser) and limits_file.read(limits_of(other)).seq == seq
    assert len(events(world, "CardLost")) == 1


async def test_the_card_is_shared_again_when_it_is_back_and_free(world: World) -> None:
    loser, _ = await share_two_cards(world)
    gone(world)
    await until(lambda: is_stopped(loser))
    await until(lambda: len(world.kubelet.healthy(RESOURCE)) == 1)
    user = SHARE if world.holds(SHARE, CARD) else NEIGHBOUR
    await until(lambda: len(events(world, "DeviceUnhealthy")) == 2)
    world.cards.present[CARD] = card()
    assert world.app is not None
    state = world.app.agent.state
    await until(lambda: not state.snapshot.cards[CARD].problem)
    for _ in range(3):
        await world.replanned()
    assert len(world.kubelet.healthy(RESOURCE)) == 1
    # All events that were emitted earlier have been written when this one has.
    world.cards.tell(CARD_2, 79)
    await until(lambda: len(events(world, "DeviceUnhealthy")) > 2)
    about = [note for _, note in events(world, "DeviceUnhealthy") if CARD in note]
    assert len(about) == 2 and not events(world, "DeviceHealthy")
    world.kubelet.remove_pod(user.uid)
    world.api.delete_pod(user.namespace, user.name)
    await until(lambda: len(world.kubelet.healthy(RESOURCE)) == 1)
    await until(lambda: events(world, "DeviceHealthy"))
    again = await world.start_share(KubePod("team-a", "again", "uid-again"))
    assert given(again).uuid.decode() == CARD and not is_stopped(again)


async def test_a_container_on_the_gone_card_does_not_start_again(world: World) -> None:
    """Its limits would be written anew, and permit work once the card is back."""
    loser, other = await share_two_cards(world)
    gone(world)
    await until(lambda: is_stopped(loser))
    await until(lambda: marks(world) == {CARD: True, CARD_2: None})
    users = sorted((SHARE, NEIGHBOUR), key=lambda pod: not world.holds(pod, CARD))
    with pytest.raises(grpc.aio.AioRpcError, match=f"has lost card {CARD}"):
        await world.kubelet.start_container(users[0], "main", RESOURCE)
    await world.kubelet.start_container(users[1], "main", RESOURCE)
    assert is_stopped(loser) and not is_stopped(other)
