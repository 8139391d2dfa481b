"""Cards that NVIDIA's DRA driver allocates instead of NVIDIA's device plugin."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import grpc
import pytest

from mizar_kube.client import Listing
from mizar_kube.errors import Unavailable
from mizar_kube.kinds import Ref
from mizar_nodeagent import agent_base
from mizar_nodeagent.config import CardAccess
from mizar_nodeagent.container.access_doubts import NONE, doubts
from mizar_nodeagent.container.auto_strategy import best_way
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet import allocated_dra_cards, poller
from mizar_nodeagent.kubelet.allocated_dra_cards import LIST_AGAIN_S
from mizar_nodeagent.kubelet.claims import Claim, Claims, DraDevice, dra_devices, from_list
from mizar_nodeagent.kubelet.podresources import PodResources
from mizar_nodeagent.kubelet.poller import CARDS_WITHIN_S, KubeletPoller
from mizar_nodeagent.proto import podresources_pb2 as pb
from support.logs import logged
from support.waiting import until
from unit.nodeagent.fake_kubelet import Admission, KubePod
from unit.nodeagent.makers import (
    CARD,
    RESOURCE,
    SHADOW,
    card,
    device,
    shadow_object,
    share_object,
)
from unit.nodeagent.test_assembly import MIG, SHADOW_POD, SHARE, World, mig_device
from unit.nodeagent.test_assembly import world as world

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
OWNER = KubePod("team-b", "owner", "uid-owner")
ONE, TWO = DraDevice("a", "one", "node-1", "gpu-0"), DraDevice("a", "two", "node-1", "gpu-1")


@pytest.fixture(autouse=True)
def uptime(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """For how long the node has run: for long, unless a test says otherwise."""
    found = Mock(return_value=10 * allocated_dra_cards.SETTLES_S)
    monkeypatch.setattr(allocated_dra_cards, "seconds_since_boot", found)
    return found


def whole(number: int, *effects: str) -> dict[str, Any]:
    """A whole card as the driver announces it, with taints of these effects."""
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": card(number).uuid}}
    return {"attributes": attributes, "taints": [{"key": "x", "effect": one} for one in effects]}


def mig(profile: str = "1g.5gb", uuid: str = "MIG-1") -> dict[str, Any]:
    """A MIG device as the driver announces it."""
    words = {"type": "mig", "uuid": uuid, "profile": profile}
    return {"attributes": {name: {"string": word} for name, word in words.items()}}


def vfio() -> dict[str, Any]:
    """A card for virtual machines."""
    return {"attributes": {"type": {"string": "vfio"}, "uuid": {"string": "vfio-1"}}}


def named(*numbers: int) -> dict[str, dict[str, Any]]:
    """The driver's devices gpu-0, gpu-1, ...: cards with these numbers."""
    return {f"gpu-{place}": whole(number) for place, number in enumerate(numbers)}


def held(world: World, pod: KubePod, resource: str = "nvidia.com/gpu") -> set[str]:
    """The IDs of the cards that the pod holds, as the agent has it."""
    claims = world.app.poller.claims.of_pod(pod.namespace, pod.name, resource)
    return {one for claim in claims for one in claim.ids}


def add_shadow(world: World) -> None:
    """A shadow pod that was bound to the node, but has no card yet."""
    world.api.put_shadow(*SHADOW, f"owner-{SHADOW[1]}")
    world.api.put_pod(shadow_object())
    world.kubelet.add_pod(SHADOW_POD)


async def serve_shadow(world: World) -> None:
    """A shadow pod to which the driver has given card 1, which is its gpu-0."""
    world.api.put_slice(named(1, 2, 3, 4))
    add_shadow(world)
    world.kubelet.give_claim(SHADOW_POD, "gpu-0")
    world.app.poller.poll_soon()
    await until(lambda: world.ready() == ("True", "Serving"))


def cards_of_shadow(world: World) -> list[str]:
    return [one["uuid"] for one in world.api.status(*SHADOW)["cards"]]


async def believed(world: World) -> None:
    """Wait until the kubelet has been asked once more and answered completely."""
    await world.replanned()
    await until(lambda: world.app.poller.kubelet is not None)


# ---- whole agents ----


async def test_a_card_of_the_dra_driver_is_divided_into_devices(world: World) -> None:
    await serve_shadow(world)
    assert world.kubelet.healthy(RESOURCE) == {device(0), device(1)}
    assert cards_of_shadow(world) == [CARD]
    await world.start_share()
    await until(lambda: world.holders() == ["share"])
    assert "KubeletAway" not in str(world.api.writes)


async def test_slices_are_read_only_where_the_driver_has_allocated_something(world: World) -> None:
    """5,000 agents would watch them for nothing."""
    await world.serve_shadow()
    world.kubelet.give_claim(OWNER, "nic-0", driver="nic.example.com")
    await world.replanned()
    assert SLICES not in world.api.asked
    assert not (world.folder / "state" / allocated_dra_cards.FILE).exists()


async def test_a_whole_card_that_a_pod_has_claimed_itself_is_its_owners(world: World) -> None:
    """The pod requests no resource, so only its claims show that it may hold cards."""
    await serve_shadow(world)
    spec = {"nodeName": "node-1", "containers": [], "resourceClaims": [{"name": "cards"}]}
    meta = {"namespace": OWNER.namespace, "name": OWNER.name, "uid": OWNER.uid}
    world.api.put_pod({"metadata": meta, "spec": spec})
    world.kubelet.give_claim(OWNER, "gpu-1", "gpu-2", container="main")
    await believed(world)
    assert held(world, OWNER) == {card(2).uuid, card(3).uuid}

    def owned() -> dict[str, frozenset[str]]:
        return {one.pod.uid: one.cards for one in world.app.spot.lender.owners}

    await until(lambda: owned() == {OWNER.uid: held(world, OWNER)})


async def test_a_card_that_the_driver_gives_to_another_pod_is_lost(world: World) -> None:
    await serve_shadow(world)
    world.kubelet.dynamic.clear()
    world.kubelet.give_claim(OWNER, "gpu-0", container="main")
    world.app.poller.poll_soon()
    await until(lambda: world.ready() == ("False", "CardLost"))


async def test_a_claim_keeps_its_card_when_the_driver_numbers_its_cards_anew(world: World) -> None:
    """Containers that run keep theirs."""
    await serve_shadow(world)
    world.api.put_slice(named(2, 3, 4))
    await until(lambda: world.app.poller.kubelet["nvidia.com/gpu"] == uuids(2, 3, 4))
    await believed(world)
    assert held(world, SHADOW_POD) == {CARD}
    world.kubelet.give_claim(OWNER, "gpu-0", container="main")
    await believed(world)
    assert (held(world, SHADOW_POD), held(world, OWNER)) == ({CARD}, uuids(2))


async def test_a_card_that_has_another_name_in_a_later_claim_is_the_later_claims(
    world: World,
) -> None:
    """The driver would give two pods the same card, since it counts by names."""
    await serve_shadow(world)
    world.api.put_slice(named(2, 1))
    await until(lambda: world.app.poller.kubelet["nvidia.com/gpu"] == uuids(1, 2))
    world.kubelet.give_claim(OWNER, "gpu-1", container="main")
    await believed(world)
    await believed(world)
    assert held(world, OWNER) == {CARD}
    assert held(world, SHADOW_POD) == {"gpu.nvidia.com/node-1/gpu-0"}, "neither card 1 nor 2"
    await until(lambda: world.ready() == ("False", "CardLost"))


async def test_a_mig_device_of_the_driver_is_divided_into_devices(world: World) -> None:
    """By the resource of its size, whatever else a pod holds."""
    size = "nvidia.com/mig-1g.5gb"
    world.cards.present[MIG], world.cards.numbers[MIG] = mig_device(), 0
    world.api.put_slice(named(2) | {"gpu-0-mig-19-1-1": mig(uuid=MIG)})
    world.api.put_shadow(*SHADOW, f"owner-{SHADOW[1]}")
    world.api.put_pod(shadow_object(physical_resource=size))
    world.kubelet.add_pod(SHADOW_POD)
    world.kubelet.give_claim(SHADOW_POD, "gpu-0-mig-19-1-1")
    world.kubelet.give_claim(OWNER, "gpu-0", container="main")
    world.app.poller.poll_soon()
    await until(lambda: world.ready() == ("True", "Serving"))
    assert cards_of_shadow(world) == [MIG]
    assert (held(world, SHADOW_POD, size), held(world, SHADOW_POD)) == ({MIG}, set())
    assert held(world, OWNER) == uuids(2)
    await until(
        lambda: world.app.dra.usable == {"nvidia.com/gpu": uuids(2), size: frozenset({MIG})}
    )
    await world.stop_agent()
    world.api.down = True
    await world.start_agent()
    await until(lambda: held(world, SHADOW_POD, size) == {MIG})
    assert world.app.poller.kubelet[size] == {MIG}
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})


MONITOR = KubePod("gpu-operator", "monitor", "uid-monitor")


def give_monitor(world: World, *names: str) -> None:
    """A pod has these devices for administration only."""
    admin = [{"device": one, "adminAccess": True} for one in names]
    world.api.put_claim(MONITOR.namespace, f"{MONITOR.name}-cards", *admin)
    world.kubelet.give_claim(MONITOR, *names, container="main")


async def test_a_monitor_takes_its_cards_from_nobody(world: World) -> None:
    """Neither if it names them as the shadow pod does, nor by their later numbers."""
    world.api.put_slice(named(1, 2, 3, 4))
    give_monitor(world, "gpu-0", "gpu-1")
    await serve_shadow(world)
    assert (held(world, SHADOW_POD), held(world, MONITOR)) == ({CARD}, set())
    await world.stop_agent()
    world.api.claims_down = 503
    await world.start_agent()
    await until(lambda: held(world, SHADOW_POD) == {CARD})
    assert held(world, MONITOR) == set(), "the next agent knows it without the API server"
    world.api.claims_down = 0
    world.kubelet.dynamic.pop(MONITOR.uid)
    world.api.put_slice(named(2, 1))
    await until(lambda: world.app.poller.kubelet["nvidia.com/gpu"] == uuids(1, 2))
    await believed(world)
    give_monitor(world, "gpu-0", "gpu-1")
    await believed(world)
    await believed(world)
    assert (held(world, SHADOW_POD), held(world, MONITOR)) == ({CARD}, set())
    world.kubelet.dynamic.pop(SHADOW_POD.uid)
    await believed(world)
    assert world.app.agent.state.carvings[SHADOW].taken_by == "", "the monitor has not taken it"


async def test_a_claim_with_another_device_beside_those_it_watches_holds_that_one(
    world: World,
) -> None:
    """A claim may have a card both ways, and devices of other drivers."""
    world.api.put_slice(named(1, 2, 3))
    admin = {"adminAccess": True}
    world.api.put_claim(
        OWNER.namespace,
        f"{OWNER.name}-cards",
        {"device": "gpu-0"} | admin,
        {"device": "gpu-1"},
        {"device": "gpu-2"} | admin,
        {"device": "gpu-2", "adminAccess": False},
        {"device": "gpu-1", "driver": "nic.example.com"} | admin,
    )
    world.kubelet.give_claim(OWNER, "gpu-0", "gpu-1", "gpu-2", container="main")
    await believed(world)
    assert held(world, OWNER) == uuids(2, 3)


async def test_without_the_right_to_read_claims_a_monitor_counts_as_an_owner(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier chart's ClusterRole lacks the right."""
    world.api.put_slice(named(1, 2))
    world.api.claims_down = 403
    for number, pod in enumerate((MONITOR, OWNER)):
        world.kubelet.give_claim(pod, f"gpu-{number}", container="main")
        await believed(world)
    assert (held(world, MONITOR), held(world, OWNER)) == (uuids(1), uuids(2))
    told = [one for one in logged(caplog) if one["event"] == "a ResourceClaim cannot be read"]
    assert [one["level"] for one in told if one["level"] != "debug"] == ["warning"]


async def test_while_the_api_server_is_away_it_is_not_known_who_holds_a_card(world: World) -> None:
    world.api.put_slice(named(1, 2))
    world.api.claims_down = 503
    give_monitor(world, "gpu-0")
    before = world.app.poller.claims
    world.app.poller.poll_soon()
    await until(lambda: world.app.poller.kubelet is None)
    assert world.app.poller.claims is before
    world.api.claims_down = 0
    await until(lambda: world.app.poller.claims is not before)
    assert held(world, MONITOR) == set()


async def test_the_next_agent_knows_the_cards_of_claims_without_the_api_server(
    world: World,
) -> None:
    await serve_shadow(world)
    await world.stop_agent()
    world.api.put_slice(named(2, 3, 4))
    world.api.down = True
    await world.start_agent()
    await until(lambda: held(world, SHADOW_POD) == {CARD})
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})
    assert world.app.poller.kubelet["nvidia.com/gpu"] == {CARD}


async def test_after_a_reboot_a_claim_has_the_card_that_its_device_is_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serve_shadow(world)
    await world.stop_agent()
    monkeypatch.setattr(agent_base, "boot_id", lambda: "next")
    world.api.put_slice(named(2, 1))
    await world.start_agent()
    await until(lambda: held(world, SHADOW_POD) == uuids(2))
    await until(lambda: cards_of_shadow(world) == [card(2).uuid])
    await until(lambda: world.ready() == ("True", "Serving"))


async def test_slices_of_before_a_reboot_do_not_count_once_there_are_new_ones(
    world: World, uptime: Mock
) -> None:
    """A kubelet that starts names the claims at once, but deletes the slices only when the API
    server answers. Cards may have other numbers then."""
    uptime.return_value = 60.0
    await serve_shadow(world)
    world.kubelet.give_claim(OWNER, "gpu-1", container="main")
    await believed(world)
    assert (held(world, SHADOW_POD), held(world, OWNER)) == ({CARD}, uuids(2))
    world.api.put_slice({})
    await until(lambda: not world.app.dra.usable)
    await believed(world)
    assert (held(world, SHADOW_POD), held(world, OWNER)) == ({CARD}, uuids(2))
    uptime.return_value = 10 * allocated_dra_cards.SETTLES_S
    world.api.put_slice(named(2, 1))
    await until(lambda: held(world, OWNER) == {CARD})
    assert held(world, SHADOW_POD) == uuids(2)
    saved = allocated_dra_cards.AllocatedDraCards(
        Mock(), "node-1", world.folder / "state", agent_base.boot_id()
    )
    assert {one.claim: uuid for one, uuid in saved._kept.items()} == {
        f"{SHADOW_POD.name}-cards": card(2).uuid,
        f"{OWNER.name}-cards": CARD,
    }


async def test_an_agent_that_ends_on_an_empty_node_leaves_no_file(world: World) -> None:
    await serve_shadow(world)
    file = world.folder / "state" / allocated_dra_cards.FILE
    assert file.exists()
    world.kubelet.remove_pod(SHADOW_POD.uid)
    world.api.delete_pod(*SHADOW)
    await until(lambda: world.node() == ("0", "0"))
    await world.stop_agent()
    assert not file.exists()
    await world.start_agent()
    await world.planned()


async def test_a_device_that_no_slice_names_is_not_taken_for_a_free_card(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is concluded from the answer for a while, in which the slice comes; then the pod
    holds something that is no card."""
    monkeypatch.setattr(poller, "RETRY_S", 0.01)
    await serve_shadow(world)
    before, asked = world.app.poller.claims, world.kubelet.asked
    world.kubelet.give_claim(OWNER, "gpu-7", container="main")
    world.app.poller.poll_soon()
    await until(lambda: world.kubelet.asked > asked + 3)
    assert world.app.poller.claims is before and world.app.poller.kubelet is None
    (line,) = (one for one in logged(caplog) if "which pods hold" in one["event"])
    assert "device gpu-7 of pool node-1 (ResourceClaim team-b/owner-cards)" in str(line["error"])
    monkeypatch.setattr(poller, "CARDS_WITHIN_S", 0.0)
    await believed(world)
    assert held(world, OWNER) == {"gpu.nvidia.com/node-1/gpu-7"}
    assert world.app.poller.claims.cards() == {CARD}
    world.api.put_slice(named(1, 2, 3, 4) | {"gpu-7": whole(2)})
    await until(lambda: held(world, OWNER) == uuids(2))


async def test_a_shadow_pod_whose_card_no_slice_names_says_what_to_look_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "CARDS_WITHIN_S", 0.0)
    add_shadow(world)
    world.kubelet.give_claim(SHADOW_POD, "gpu-0")
    world.app.poller.poll_soon()
    await until(lambda: world.ready() == ("False", "CardFactsUnknown"))
    told = str(world.api.status(*SHADOW)["conditions"])
    assert "which card gpu.nvidia.com/node-1/gpu-0 is: kubectl get" in told
    world.api.put_slice(named(1))
    await until(lambda: world.ready() == ("True", "Serving"))


async def test_an_agent_that_cannot_read_the_slices_it_needs_is_not_ready(
    world: World,
) -> None:
    assert "resourceslices" not in str(list(world.app.unready()))
    world.api.slices_down = True
    add_shadow(world)
    world.kubelet.give_claim(SHADOW_POD, "gpu-0")
    world.app.poller.poll_soon()

    def told() -> bool:
        found = [one for one in world.app.unready() if "resourceslices: not listed yet" in one]
        return any(one.endswith("not allowed") for one in found)

    await until(told)


async def test_a_card_is_gone_only_if_the_driver_says_so_too(world: World) -> None:
    """The grace period for NVML is zero here."""
    await serve_shadow(world)
    del world.cards.present[CARD]
    await until(lambda: world.app.agent.inventory.cards()[CARD].gone_since is not None)
    await world.replanned()
    assert world.ready() == ("False", "Unhealthy")
    devices = named(1, 2, 3, 4) | {"gpu-0": whole(1, "NoExecute")}
    world.api.put_slice(devices)
    await until(lambda: world.ready() == ("False", "CardLost"))


CLAIMS = "k8s.gpu.nvidia.com/claim"


def write_claim(world: World, pod: KubePod, **nodes: str) -> None:
    """The CDI file of the pod's claim, as the driver writes it: a device node for each device."""
    devices = [
        {
            "name": f"{pod.uid}-{name.replace('_', '-')}",
            "containerEdits": {"deviceNodes": [{"path": node}]},
        }
        for name, node in nodes.items()
    ]
    body = {"cdiVersion": "0.5.0", "kind": CLAIMS, "devices": devices}
    (world.folder / f"k8s.gpu.nvidia.com-claim_{pod.uid}.json").write_text(json.dumps(body))


async def restart_with(world: World, **access: Any) -> None:
    """Start an agent that gives cards by the CDI devices of claims."""
    await world.stop_agent()
    world.access = CardAccess(cdi_kind=CLAIMS, cdi_dirs=(world.folder,), **access)
    await world.start_agent()
    await until(lambda: world.kubelet.healthy(RESOURCE) == {device(0), device(1)})


async def test_containers_get_their_card_by_the_cdi_device_of_the_shadow_pods_claim(
    world: World,
) -> None:
    """Nodes with NVIDIA's DRA driver alone have no CDI files that name cards by UUID."""
    world.api.put_slice(named(2, 1))
    add_shadow(world)
    world.kubelet.give_claim(SHADOW_POD, "gpu-1")
    world.kubelet.give_claim(OWNER, "gpu-0")
    world.app.poller.poll_soon()
    await until(lambda: world.ready() == ("True", "Serving"))
    await restart_with(world, strategy="CDI")
    assert not world.app.access.problem
    world.api.put_pod(share_object())
    await world.knows(SHARE)
    allocated = await world.kubelet.allocate(SHARE, "main", RESOURCE, 1)
    (given,) = (one.name for one in allocated.answer.cdi_devices)
    assert given == f"{CLAIMS}={SHADOW_POD.uid}-gpu-1"
    assert allocated.answer.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
    with pytest.raises(grpc.aio.AioRpcError, match=f"no CDI file .* the device {given}"):
        await world.kubelet.start_container(SHARE, "main", RESOURCE)
    write_claim(world, SHADOW_POD, gpu_1="/dev/nvidia1")
    with pytest.raises(grpc.aio.AioRpcError, match=r"nvidia1 for .* nvidia0 now: .* new claim"):
        await world.kubelet.start_container(SHARE, "main", RESOURCE)
    write_claim(world, SHADOW_POD, gpu_1="/dev/nvidia0")
    await world.kubelet.start_container(SHARE, "main", RESOURCE)


async def test_a_card_that_no_claim_has_by_that_kind_is_not_given(world: World) -> None:
    await serve_shadow(world)
    world.kubelet.dynamic[SHADOW_POD.uid]["pause"][0].claim_resources[0].ClearField("cdi_devices")
    await believed(world)
    (world.folder / "state" / allocated_dra_cards.FILE).unlink()
    await restart_with(world, strategy="CDI")
    with pytest.raises(Admission, match=rf"of the kind {CLAIMS} .* names no claim of it"):
        await world.start_share()


async def test_the_next_agent_knows_the_cdi_devices_before_it_has_asked(world: World) -> None:
    """The kubelet may ask it for an allocation first."""
    await serve_shadow(world)
    client = Mock()
    state, boot = world.folder / "state", agent_base.boot_id()
    found = allocated_dra_cards.AllocatedDraCards(client, "node-1", state, boot)
    assert found.cdi_names(CARD) == (f"{CLAIMS}={SHADOW_POD.uid}-gpu-0",)
    assert (
        allocated_dra_cards.AllocatedDraCards(client, "node-1", state, "next").cdi_names(CARD) == ()
    )
    (state / allocated_dra_cards.FILE).write_text("damaged")
    assert (
        allocated_dra_cards.AllocatedDraCards(client, "node-1", state, boot).cdi_names(CARD) == ()
    )


def test_auto_gives_cards_by_claims_if_that_is_configured(tmp_path: Path) -> None:
    """Their files exist only while cards are allocated, and say nothing before that."""
    access = CardAccess(strategy="Auto", cdi_kind=CLAIMS, cdi_dirs=(tmp_path,))
    assert best_way(access, "containerd://2.2.9") == "CDI"
    assert best_way(access, "containerd://1.6.9") == "EnvVar"
    assert doubts({"CDI"}, access, "containerd://2.2.9", reads_variable=False) == NONE


def uuids(*numbers: int) -> set[str]:
    return {card(one).uuid for one in numbers}


# ---- the kubelet's answer ----


def answer(*resources: pb.ClaimResource, claim: str = "one") -> pb.ListPodResourcesResponse:
    dynamic = pb.DynamicResource(claim_name=claim, claim_namespace="a", claim_resources=resources)
    main = pb.ContainerResources(name="main", dynamic_resources=[dynamic])
    return pb.ListPodResourcesResponse(
        pod_resources=[pb.PodResources(name="pod", namespace="a", containers=[main])]
    )


def claimed(name: str, driver: str = "gpu.nvidia.com", **fields: Any) -> pb.ClaimResource:
    return pb.ClaimResource(driver_name=driver, pool_name="node-1", device_name=name, **fields)


def ids(claims: Iterable[Claim]) -> set[str]:
    return {one for claim in claims for one in claim.ids}


def test_devices_of_claims_are_held_like_those_of_the_device_plugin() -> None:
    found = from_list(answer(claimed("gpu-0"), claimed("gpu-1")), 1.0, {ONE: "GPU-1"})
    assert found.all == (Claim("a", "pod", "main", "nvidia.com/gpu", frozenset({"GPU-1"})),)
    assert found.all[0].numa["GPU-1"] == (), "NVML knows better"
    assert from_list(answer(claimed("gpu-0")), 1.0).all == ()


def test_a_device_has_its_own_cdi_devices_only() -> None:
    """The kubelet lists with a claim's second device those of the first too."""
    names = [pb.CDIDevice(name=f"k8s.gpu.nvidia.com/claim=1-{one}") for one in ("gpu-0", "gpu-10")]
    second = claimed("gpu-10", cdi_devices=names)
    found = {one.name: one.cdi for one in dra_devices(answer(claimed("gpu-0"), second))}
    assert found == {"gpu-0": (), "gpu-10": (names[1].name,)}


def test_a_part_of_a_card_is_told_from_the_whole() -> None:
    """As of a card that NVIDIA's device plugin gives to several pods."""
    part = DraDevice("a", "one", "node-1", "gpu-0", "s1")
    found = from_list(answer(claimed("gpu-0", share_id="s1")), 1.0, {part: "GPU-1"})
    assert ids(found.all) == {"GPU-1::s1"} and found.cards() == {"GPU-1"}


def test_a_device_that_is_no_whole_card_is_left_out_and_an_unknown_one_is_not() -> None:
    found = from_list(answer(claimed("gpu-0"), claimed("gpu-1")), 1.0, {ONE: "", TWO: None})
    assert ids(found.all) == set()
    unknown = DraDevice("a", "one", "node-1", "gpu-1")
    found = from_list(answer(claimed("gpu-0"), claimed("gpu-1")), 1.0, {ONE: "", unknown: None})
    assert ids(found.all) == {"gpu.nvidia.com/node-1/gpu-1"} and found.cards() == set()


# ---- slices ----


def slice_of(devices: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    listed = [{"name": name, **fields} for name, fields in devices.items()]
    pool = {"name": "node-1", "generation": generation}
    return {"metadata": {}, "spec": {"pool": pool, "devices": listed}}


def test_a_slice_says_which_devices_are_cards_that_can_be_used() -> None:
    full = {"attributes": {"gpu.nvidia.com/type": {"string": "gpu"}, "uuid": {"string": "GPU-9"}}}
    found = allocated_dra_cards.trim(
        slice_of(
            {
                "gpu-0": whole(1),
                "gpu-1": whole(2, "NoSchedule"),
                "gpu-2": whole(3, "None"),
                "gpu-3": {"attributes": {"type": {"string": "gpu"}}},
                "gpu-4": full,
                "gpu-0-mig-1": mig(),
                "gpu-0-mig-2": mig("1g.5gb+me", "MIG-2"),
                "gpu-0-mig-3": {"attributes": {"type": {"string": "mig"}}},
                "gpu-vfio-1": vfio(),
                "other": {},
            }
        )
    )
    assert {name: (one.uuid, one.usable) for name, one in found.devices.items()} == {
        "gpu-0": (card(1).uuid, True),
        "gpu-1": (card(2).uuid, False),
        "gpu-2": (card(3).uuid, True),
        "gpu-4": ("GPU-9", True),
        "gpu-0-mig-1": ("MIG-1", True),
        "gpu-0-mig-2": ("MIG-2", True),
        "gpu-0-mig-3": ("", True),
        "gpu-vfio-1": ("", True),
        "other": ("", True),
    }
    resources = {one.uuid: one.resource for one in found.devices.values() if one.uuid}
    assert resources["GPU-9"] == "nvidia.com/gpu"
    assert resources["MIG-1"] == "nvidia.com/mig-1g.5gb"
    assert resources["MIG-2"] == "nvidia.com/mig-1g.5gb.me"


async def test_slices_of_an_earlier_generation_are_outdated(world: World) -> None:
    world.api.put_slice(named(2, 1), "new", 2)
    world.api.put_slice(named(1, 2), "old", 1)
    add_shadow(world)
    world.kubelet.give_claim(SHADOW_POD, "gpu-0")
    await believed(world)
    assert held(world, SHADOW_POD) == uuids(2)


async def test_slices_are_listed_for_each_new_claim_and_for_no_other(world: World) -> None:
    """A watch may be late: it would tell of an earlier numbering. A device for virtual machines is
    no card that Mizar knows."""
    world.api.put_slice(named(1, 2, 3) | {"gpu-vfio-1": vfio()})
    add_shadow(world)
    world.kubelet.give_claim(SHADOW_POD, "gpu-0", "gpu-vfio-1")
    await believed(world)
    await until(lambda: world.app.dra.problem() is None)
    before = world.api.asked.count(SLICES)
    await believed(world)
    assert world.api.asked.count(SLICES) == before
    with patch.object(world.api._slice_watches, "tell"):
        world.api.put_slice(named(3, 1, 2))
    world.kubelet.give_claim(OWNER, "gpu-0", container="main")
    await believed(world)
    assert (held(world, SHADOW_POD), held(world, OWNER)) == ({CARD}, uuids(3))
    assert world.api.asked.count(SLICES) == before + 1


async def test_a_claim_that_comes_back_under_its_name_is_looked_up_again(tmp_path: Path) -> None:
    """Claims that users make have the same name again, and perhaps the same device, which may be
    another card by then."""
    slices = [slice_of(named(1, 2)), slice_of(named(2, 1))]
    listings = [Listing([one], "1") for one in slices]
    client: Any = Mock(list=AsyncMock(side_effect=listings), get=AsyncMock(return_value={}))
    dra = allocated_dra_cards.AllocatedDraCards(client, "node-1", tmp_path, "boot")
    asked = PodResources(tmp_path / "socket", dra=dra)
    answers = [answer(claimed("gpu-0")), pb.ListPodResourcesResponse(), answer(claimed("gpu-0"))]
    found = list[set[str]]()
    with patch.object(asked, "_call", AsyncMock(side_effect=answers)):
        for _ in answers:
            claims = await asked.list()
            dra.keep(claims)
            found.append(ids(claims.all))
    assert found == [uuids(1), set(), uuids(2)]


async def test_a_claim_that_cannot_be_read_keeps_no_other_cards_unknown(tmp_path: Path) -> None:
    """As one that the API server cannot decode, or that comes too late of many."""
    unread = {ONE.claim}

    async def get(ref: Ref, **_: object) -> dict[str, Any]:
        if ref.name in unread:
            raise Unavailable("GET resourceclaims/one: timed out")
        return {}

    now = 0.0
    client: Any = Mock(list=AsyncMock(return_value=Listing([slice_of(named(1, 2))], "1")), get=get)
    dra = allocated_dra_cards.AllocatedDraCards(
        client, "node-1", tmp_path, "boot", clock=lambda: now
    )
    assert await dra.cards_of([ONE, TWO]) == {ONE: None, TWO: card(2).uuid}
    unread.clear()
    now = LIST_AGAIN_S
    assert await dra.cards_of([ONE, TWO]) == {ONE: card(1).uuid, TWO: card(2).uuid}


async def test_for_a_device_that_stays_unknown_slices_are_listed_ever_more_rarely(
    tmp_path: Path,
) -> None:
    """A driver may be away for long, on many nodes."""
    now, listed = 0.0, list[float]()

    async def list_slices(*_: object, **__: object) -> Listing:
        listed.append(now)
        return Listing([], "1")

    client: Any = Mock(list=list_slices)
    dra = allocated_dra_cards.AllocatedDraCards(
        client, "node-1", tmp_path, "boot", clock=lambda: now
    )
    while now < 200:
        assert await dra.cards_of([ONE]) == {ONE: None}
        now += 0.5
    assert listed == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    await dra.cards_of([TWO])
    assert listed[-1] == 200, "another device is looked up at once"


# ---- the poller ----


async def test_for_how_long_an_unknown_card_is_waited_for() -> None:
    now = 0.0
    unknown = Claims((), 1.0, {ONE: None})
    podresources = Mock(started_at=float("-inf"), restarted_at=float("-inf"))
    asking = KubeletPoller(podresources, lambda: None, clock=lambda: now)
    with pytest.raises(KubeletAway, match="device gpu-0 of pool node-1"):
        asking._check_cards(unknown)
    now = CARDS_WITHIN_S - 1
    both = Claims((), 2.0, {ONE: None, TWO: None})
    with pytest.raises(KubeletAway, match="gpu-0"):
        asking._check_cards(both)
    now = CARDS_WITHIN_S
    with pytest.raises(KubeletAway, match="gpu-1"):
        asking._check_cards(both)
    asking._check_cards(unknown)
    asking._check_cards(Claims((), 3.0, {ONE: "GPU-1"}))
    with pytest.raises(KubeletAway):
        asking._check_cards(unknown)


async def test_whoever_asks_for_devices_gets_an_answer_in_which_a_card_is_not_known() -> None:
    """Otherwise a share pod would fail; but the answer is not kept."""

    async def list_claims(urgent: bool) -> Claims:
        await asyncio.sleep(0)
        return Claims((), 1.0, {ONE: None})

    podresources = Mock(started_at=float("-inf"), restarted_at=float("-inf"), list=list_claims)
    asking = KubeletPoller(podresources, lambda: None)
    assert (await asking.poll_claims()).dra == {ONE: None}
    assert not asking.claims.are_known
