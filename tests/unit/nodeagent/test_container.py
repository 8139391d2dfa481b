"""How cards get into a container, what is known of cards, and which devices are preferred."""

import asyncio
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import AsyncMock

import pytest

from mizar_core.device_ids import DeviceID
from mizar_core.models import Isolation
from mizar_core.names import SPOT_RESOURCE
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.card_health import KnownHealth, Readings
from mizar_nodeagent.cards import GONE, UNREAD_FOR, Card, CardInventory
from mizar_nodeagent.config import DEVICE_NODES, CardAccess, MountConfig, Strategy
from mizar_nodeagent.container import card_access
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.allocate import Allocator
from mizar_nodeagent.container.device_nodes import Minors
from mizar_nodeagent.container.prestart import Poll
from mizar_nodeagent.container.shim_install import Shim
from mizar_nodeagent.container.slots import Owner, Slots
from mizar_nodeagent.errors import AllocationRefused, CardsUnknown, KubeletAway
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.planning.carving import DrainStage
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from mizar_nodeagent.spot.allocate import SpotAllocator
from support.logs import logged
from unit.nodeagent.makers import (
    CARD,
    RESOURCE,
    SHADOW,
    card,
    card_claim,
    cards,
    carve,
    device,
    full_disk,
    shadow,
    share,
    share_claim,
    snapshot,
)

TWO = {"GPU-a": 0, "GPU-b": 3}


def given(strategy: Strategy, **how: object) -> pb.ContainerAllocateResponse:
    answer = pb.ContainerAllocateResponse()
    config = CardAccess(strategy=strategy, env={"X": "y"}, **how)  # type: ignore[arg-type]
    way = AccessChoice(config).answered
    parts = card_access.parts(way, [*TWO], TWO, config, look=there)
    card_access.add_parts(answer, parts)
    assert answer.envs["X"] == "y"
    return answer


def there(root: Path, pattern: str) -> list[Path]:
    """Files of a folder that has all device nodes except nvidia-modeset."""
    names = [*DEVICE_NODES, "nvidia-fs0", "nvidia-fs1", "gdrdrv", "infiniband/uverbs0"]
    found = [root / name for name in names if name != "nvidia-modeset"]
    return [path for path in found if path.match(f"{root}/{pattern}")]


def nodes(answer: pb.ContainerAllocateResponse) -> dict[str, str]:
    return {one.container_path: one.host_path for one in answer.devices}


class TestAccess:
    def test_by_variable(self) -> None:
        answer = given("EnvVar")
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
        assert not answer.devices and not answer.mounts

    def test_by_device_nodes_and_mounts(self) -> None:
        mount = MountConfig(host_path=Path("/h/driver"), container_path=Path("/usr/local/nvidia"))
        answer = given("Mounts", dev_root=Path("/h/dev"), mounts=(mount,))
        assert {one.container_path: one.host_path for one in answer.devices} == {
            "/dev/nvidia0": "/h/dev/nvidia0",
            "/dev/nvidia3": "/h/dev/nvidia3",
            "/dev/nvidiactl": "/h/dev/nvidiactl",
            "/dev/nvidia-uvm": "/h/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools": "/h/dev/nvidia-uvm-tools",
        }
        assert [one.container_path for one in answer.mounts] == ["/usr/local/nvidia"]
        assert answer.mounts[0].read_only
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"

    def test_by_volume_mounts(self) -> None:
        answer = given("VolumeMounts")
        assert [one.container_path for one in answer.mounts] == [
            "/var/run/nvidia-container-devices/GPU-a",
            "/var/run/nvidia-container-devices/GPU-b",
        ]
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"

    def test_by_cdi(self) -> None:
        answer = given("CDI")
        assert [one.name for one in answer.cdi_devices] == [
            "nvidia.com/gpu=GPU-a",
            "nvidia.com/gpu=GPU-b",
        ]
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "void", "the image's is overridden"

    def test_by_cdi_in_an_annotation(self) -> None:
        answer = given("CDIAnnotations")
        names = "nvidia.com/gpu=GPU-a,nvidia.com/gpu=GPU-b"
        assert answer.annotations == {"cdi.k8s.io/mizar_cards": names}
        assert not answer.cdi_devices and answer.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
        other = given("CDIAnnotations", cdi_annotation_prefix="cdi.example.com/")
        assert other.annotations == {"cdi.example.com/mizar_cards": names}

    def test_in_several_ways(self) -> None:
        answer = given("CDI", also=("VolumeMounts",))
        assert len(answer.cdi_devices) == 2 and len(answer.mounts) == 2
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
        answer = given("CDI", also=("EnvVar", "VolumeMounts"))
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
        assert "/dev/nvidia3" in nodes(given("EnvVar", also=("Mounts",)))

    def test_device_nodes_beside_another_way(self) -> None:
        mount = MountConfig(host_path=Path("/h/driver"), container_path=Path("/usr/local/nvidia"))
        answer = given("CDI", pass_device_specs=True, dev_root=Path("/h/dev"), mounts=(mount,))
        assert nodes(answer).items() >= {("/dev/nvidia3", "/h/dev/nvidia3")}
        assert "/dev/nvidiactl" in nodes(answer) and len(answer.cdi_devices) == 2
        assert not answer.mounts and answer.envs["NVIDIA_VISIBLE_DEVICES"] == "void"

    def test_the_agent_looks_where_the_nodes_folder_is_mounted(self, tmp_path: Path) -> None:
        """The runtime, however, gets the paths on the node."""
        dev = tmp_path / "h" / "dev"
        (dev / "infiniband").mkdir(parents=True)
        for name in ("nvidiactl", "infiniband/uverbs0"):
            (dev / name).touch()
        access = CardAccess(
            strategy="Mounts", dev_root=Path("/h/dev"), host_root=tmp_path, mofed=True
        )
        assert card_access.parts("Mounts", ["GPU-b"], TWO, access).devices == {
            "/dev/nvidia3": Path("/h/dev/nvidia3"),
            "/dev/nvidiactl": Path("/h/dev/nvidiactl"),
            "/dev/infiniband/uverbs0": Path("/h/dev/infiniband/uverbs0"),
        }
        assert card_access.missing_nodes(access) == ["nvidia-uvm", "infiniband/rdma_cm"]

    def test_what_was_asked_for_and_is_not_there_is_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "nvidiactl").touch()
        for names, missing in (
            ({}, {"nvidia-uvm"}),
            ({"device_nodes": ("nvidia-modeset",)}, {"nvidia-modeset"}),
            ({"device_nodes": (), "gds": True}, {"nvidia-fs*"}),
        ):
            caplog.clear()
            access = CardAccess(strategy="Mounts", dev_root=tmp_path, **names)  # type: ignore[arg-type]
            card_access.parts("Mounts", ["GPU-b"], TWO, access)
            assert {Path(line["path"]).name for line in logged(caplog)} == missing

    def test_extras_in_every_way(self) -> None:
        extras = {"gds": True, "mofed": True, "gdrcopy": True}
        answer = given("EnvVar", **extras)
        for name in ("GDS", "MOFED", "GDRCOPY"):
            assert answer.envs[f"NVIDIA_{name}"] == "enabled"
        assert [one.name for one in given("CDI", **extras).cdi_devices][2:] == [
            "nvidia.com/gds=all",
            "nvidia.com/mofed=all",
            "nvidia.com/gdrcopy=all",
        ]
        named = {"/dev/nvidia-fs0", "/dev/nvidia-fs1", "/dev/infiniband/uverbs0", "/dev/gdrdrv"}
        assert nodes(given("Mounts", **extras)).keys() >= named
        assert nodes(given("Mounts", gds=True)).keys() & named == {
            "/dev/nvidia-fs0",
            "/dev/nvidia-fs1",
        }
        assert not {one for one in given("EnvVar").envs if one.endswith(("GDS", "MOFED", "COPY"))}

    def test_by_nri_the_kubelet_is_told_of_no_card(self) -> None:
        """Nor of a variable: the runtime could not replace both Mizar's variable and one of the
        pod's own."""
        config = CardAccess(strategy="NRI", nri_gives="Mounts", env={"X": "y"})
        answer = pb.ContainerAllocateResponse()
        parts = card_access.parts(AccessChoice(config).answered, [*TWO], TWO, config)
        card_access.add_parts(answer, parts)
        assert answer == pb.ContainerAllocateResponse()


class TestCardInventory:
    def problems(self, inventory: CardInventory) -> dict[int, str]:
        return {int(one[-1]) - 1: card.problem for one, card in inventory.cards().items()}

    def test_a_card_that_is_gone_is_missed_until_it_is_back(self) -> None:
        inventory = CardInventory()
        inventory.update(cards(1, 2))
        assert self.problems(inventory) == {0: "", 1: ""}
        inventory.update(cards(1))
        assert self.problems(inventory)[1] == "the card is gone"
        inventory.update(cards(1, 2))
        assert self.problems(inventory) == {0: "", 1: ""}

    def test_a_fault_lasts_until_the_card_was_away(self) -> None:
        inventory = CardInventory()
        inventory.update(cards(1))
        inventory.fault(CARD, 43)
        assert self.problems(inventory) == {0: ""}
        inventory.fault(CARD, 79)
        inventory.update(cards(1))
        assert "XID 79" in self.problems(inventory)[0]
        for _ in range(UNREAD_FOR):
            inventory.update({})
        inventory.update(cards(1))
        assert self.problems(inventory) == {0: ""}

    def test_a_fault_survives_the_agent(self) -> None:
        inventory = CardInventory()
        inventory.update(cards(1))
        inventory.fault(CARD, 79)
        another = CardInventory()
        another.restore(inventory.faults)
        another.update(cards(1))
        assert "XID 79" in self.problems(another)[0]

    def linked(self, *up: bool) -> dict[str, Card]:
        return {CARD: replace(card(), readings=Readings(links=up))}

    def test_links_survive_the_agent(self) -> None:
        """A link that was up and is now down is found, even where the agent did not see it go
        down."""
        now = 100.0

        def clock() -> float:
            return now

        inventory = CardInventory(clock)
        inventory.update(self.linked(True, True))
        for restarts in range(2):
            another = CardInventory(clock)
            another.restore({}, health=inventory.health)
            another.update(self.linked(True, False))
            said = "" if restarts == 0 else "one of its NVLinks is down"
            assert another.cards()[CARD].problem == said, "at once, if it counted before"
            now += 10.0
            another.update(self.linked(True, False))
            assert another.cards()[CARD].problem == "one of its NVLinks is down"
            inventory = another

    def test_links_are_forgotten_when_the_card_was_repaired(self) -> None:
        inventory = CardInventory(lambda: 100.0)
        inventory.restore({}, health={CARD: KnownHealth(2, ("LinkDown", "of a later version"))})
        inventory.update(self.linked(True, False))
        assert inventory.cards()[CARD].problem == "one of its NVLinks is down"
        inventory.repaired(CARD)
        inventory.update(self.linked(True, False))
        assert inventory.cards()[CARD].problem == ""
        assert inventory.health == {CARD: KnownHealth(1)}

    def test_a_fault_ends_where_the_card_was_away_when_the_agent_came(self) -> None:
        inventory = CardInventory()
        inventory.restore({CARD: 79})
        for _ in range(UNREAD_FOR):
            inventory.update(cards(2))
        inventory.update(cards(1, 2))
        assert self.problems(inventory) == {0: "", 1: ""}
        assert not inventory.faults

    def test_while_nvml_is_away_cards_keep_their_health_and_none_gets_lost(self) -> None:
        inventory = CardInventory()
        inventory.update(cards(1, 2))
        inventory.update(cards(2))
        inventory.problem = "no driver"
        assert self.problems(inventory) == {0: GONE, 1: ""}
        assert inventory.cards()[CARD].gone_since is None


@pytest.fixture
def state() -> AgentState:
    """Two shadow pods of two devices each; one device of the second is held."""
    made = AgentState()
    second = shadow("shadow-2-bbbbb")
    pods = [shadow(), second, share()]
    claims = [card_claim(), card_claim(second.name, card(2).uuid)]
    made.replan(snapshot(1, pods, [*claims, share_claim(device(0, second.key))]))
    return made


def allocator_of(
    state: AgentState,
    folder: Path,
    strategy: Strategy = "EnvVar",
    minors: Minors | None = None,
    one_each: bool = False,
    poll: Poll | None = None,
    **access: Any,
) -> Allocator:
    shim = Shim(folder / "lib")
    shim.library.touch()
    slots = Slots(folder / "slots", shim)
    slots.load(0.0)
    choice = AccessChoice(CardAccess(strategy=strategy, **access))
    ask = minors or no_minors
    return Allocator(
        state,
        slots,
        choice,
        ask,
        poll or no_kubelet,
        lambda: 2.0,
        lambda: 0.0,
        lambda: None,
        one_each=one_each,
    )


async def no_minors(uuids: Collection[str]) -> dict[str, int]:
    """For strategies that need none."""
    raise AssertionError("the numbers of device nodes are asked for")


async def no_kubelet() -> Claims:
    """The kubelet does not answer."""
    raise KubeletAway("it does not answer")


@pytest.fixture
def allocator(state: AgentState, tmp_path: Path) -> Allocator:
    return allocator_of(state, tmp_path)


A0, A1 = device(0), device(1)
B0, B1 = (device(index, ("team-a", "shadow-2-bbbbb")) for index in (0, 1))


class TestPreferred:
    async def test_the_shadow_pod_that_is_used_already(self, allocator: Allocator) -> None:
        assert await allocator.preferred(RESOURCE, [A0, A1, B1], [], 1) == [B1]

    async def test_both_of_one_shadow_pod(self, allocator: Allocator) -> None:
        assert await allocator.preferred(RESOURCE, [B1, A1, A0], [], 2) == [A0, A1]

    async def test_one_being_drained_is_the_last_resort(
        self, allocator: Allocator, state: AgentState
    ) -> None:
        second = shadow("shadow-2-bbbbb", drain="now")
        claims = [card_claim(), card_claim(second.name, card(2).uuid)]
        state.replan(snapshot(2, [shadow(), second], claims))
        assert await allocator.preferred(RESOURCE, [B0, B1, A0], [], 1) == [A0]
        assert await allocator.preferred(RESOURCE, [B0, B1], [], 1) == [B0]

    async def test_one_that_a_container_has_is_the_last_resort(self, allocator: Allocator) -> None:
        """A kubelet that is asked for its pods while it allocates a device forgets that it does,
        if a pod has ended before: it calls the device free, and would give it to two pods."""
        await allocator.allocate(RESOURCE, [A0])
        assert await allocator.preferred(RESOURCE, [A0, A1], [], 1) == [A1]
        assert await allocator.preferred(RESOURCE, [A0], [], 1) == [A0]
        assert await allocator.preferred(RESOURCE, [A0, A1], [A0], 2) == [A0, A1]

    async def test_one_being_drained_comes_before_one_that_a_container_has(
        self, allocator: Allocator, state: AgentState
    ) -> None:
        second = shadow("shadow-2-bbbbb", drain="now")
        claims = [card_claim(), card_claim(second.name, card(2).uuid)]
        state.replan(snapshot(2, [shadow(), second], claims))
        await allocator.allocate(RESOURCE, [A0])
        assert await allocator.preferred(RESOURCE, [A0, B0], [], 1) == [B0]

    async def test_the_kubelet_says_whose_pod_has_ended_since_the_last_plan(
        self, state: AgentState, tmp_path: Path
    ) -> None:
        """By the last plan, containers have both devices."""

        async def poll() -> Claims:
            return Claims((share_claim(A0),), 3.0)

        allocator = allocator_of(state, tmp_path, poll=poll)
        await allocator.allocate(RESOURCE, [A0])
        assert state.snapshot.holders().keys() == {DeviceID.parse(B0)}
        assert await allocator.preferred(RESOURCE, [A0, B0], [], 1) == [B0]
        assert await allocator.preferred(RESOURCE, [A0], [], 1) == [A0]

    @pytest.mark.parametrize("available", [["nonsense"], [A0]])
    async def test_no_good_answer_is_no_error(
        self, allocator: Allocator, available: list[str]
    ) -> None:
        assert await allocator.preferred(RESOURCE, available, [], 2) == []


@pytest.mark.parametrize(
    ("access", "by_nri", "by_cdi"),
    [
        ({"strategy": "EnvVar"}, False, False),
        ({"strategy": "EnvVar", "also": ["CDI"]}, False, True),
        ({"strategy": "CDI"}, False, True),
        ({"strategy": "CDIAnnotations"}, False, True),
        ({"strategy": "NRI", "nri_gives": "CDI"}, True, False),
    ],
)
@pytest.mark.parametrize("spot", [False, True])
async def test_a_slot_knows_how_its_card_was_given(
    allocator: Allocator, access: dict[str, Any], by_nri: bool, by_cdi: bool, spot: bool
) -> None:
    """Until its container ends, whatever the agent gives then: the kubelet repeats the answer."""
    slots, choice = allocator._slots, AccessChoice(CardAccess(**access))
    lender: Any = SimpleNamespace(allocated=lambda uuids: {})
    allocator._access = choice
    if spot:
        borrows = SpotAllocator(lender, slots, choice, no_minors, no_kubelet, lambda: 0.0)
        await borrows.allocate(SPOT_RESOURCE, [f"{CARD}-spot"])
    else:
        await allocator.allocate(RESOURCE, [A0])
    (slot,) = slots.all()
    slots.complete(slot)
    slots.assign(slot, Owner("team-a", "share", "uid-share", "main"))
    again = Slots(slots.root, slots.shim)
    again.load(0.0)
    assert [(one.by_nri, one.by_cdi) for one in again.all()] == [(by_nri, by_cdi)]


@pytest.mark.parametrize(
    ("held", "must", "size", "preferred"),
    [
        ([], [], 1, ["GPU-a-spot"]),
        (["GPU-a-spot"], [], 1, ["GPU-b-spot"]),
        (["GPU-a-spot"], ["GPU-c-spot"], 2, ["GPU-c-spot", "GPU-b-spot"]),
        (["GPU-a-spot", "GPU-b-spot"], [], 2, ["GPU-c-spot"]),
    ],
)
async def test_a_borrowed_card_is_not_lent_again(
    allocator: Allocator, held: list[str], must: list[str], size: int, preferred: list[str]
) -> None:
    """Although the kubelet calls it free."""

    async def poll() -> Claims:
        of_another_kind = Claim("team-a", "web", "main", RESOURCE, frozenset(["GPU-b-spot"]))
        held_now = Claim("team-b", "train", "main", SPOT_RESOURCE, frozenset(held))
        return Claims((of_another_kind, held_now), 3.0)

    lender: Any = None
    slots, access = allocator._slots, allocator._access
    borrows = SpotAllocator(lender, slots, access, no_minors, poll, lambda: 0.0)
    available = ["GPU-c-spot", "GPU-b-spot", "GPU-a-spot"]
    assert await borrows.preferred(SPOT_RESOURCE, available, must, size) == preferred


async def test_a_kubelet_that_does_not_answer_chooses_among_spot_cards(
    allocator: Allocator,
) -> None:
    lender: Any = None
    slots, access = allocator._slots, allocator._access
    borrows = SpotAllocator(lender, slots, access, no_minors, no_kubelet, lambda: 0.0)
    assert await borrows.preferred(SPOT_RESOURCE, ["GPU-a-spot"], [], 1) == []


class TestShareVariables:
    def answered(self, tmp_path: Path, ids: list[str], **carving: Any) -> dict[str, str]:
        """The variables about its share that a container with these devices gets."""
        state = AgentState()
        pods = [shadow(carve=carve(**carving)), share()]
        claims = [card_claim(SHADOW[1], *(card(one + 1).uuid for one in range(carving["cards"])))]
        state.replan(snapshot(1, pods, claims))
        answer = asyncio.run(allocator_of(state, tmp_path).allocate(carving["resource"], ids))
        known = ("CUDA_", "MIZAR_")
        return {name: value for name, value in answer.envs.items() if name.startswith(known)}

    FOUR: ClassVar = {"resource": "team-a.mizar.share/gpu.4", "devices": 4, "cards": 2}

    def test_none_unless_the_pool_says_so(self, tmp_path: Path) -> None:
        assert self.answered(tmp_path, [A0], **self.FOUR) == {}

    def test_as_hamis_programs_read_them(self, tmp_path: Path) -> None:
        """A whole card and half of another."""
        how = {**self.FOUR, "variables": ("HAMi",), "isolation": Isolation(compute="Hard")}
        assert self.answered(tmp_path, [device(0), device(1), device(2)], **how) == {
            "CUDA_DEVICE_MEMORY_LIMIT_0": "16384m",
            "CUDA_DEVICE_MEMORY_LIMIT_1": "8192m",
            "CUDA_DEVICE_SM_LIMIT": "50",
        }

    def test_time_that_is_not_limited_is_not_told(self, tmp_path: Path) -> None:
        how = {**self.FOUR, "variables": ("HAMi",)}
        assert self.answered(tmp_path, [A0], **how) == {"CUDA_DEVICE_MEMORY_LIMIT_0": "8192m"}

    def test_fractions(self, tmp_path: Path) -> None:
        how = {**self.FOUR, "devices": 6, "resource": "team-a.mizar.share/gpu.6"}
        assert self.answered(tmp_path, [A0], **how, variables=("Fractions",)) == {
            "MIZAR_MEMORY_FRACTION": "0.3333",
            "MIZAR_COMPUTE_FRACTION": "0.3333",
        }

    def test_fractions_of_a_card_add_up_to_no_more_than_it(self, tmp_path: Path) -> None:
        how = {**self.FOUR, "devices": 6, "resource": "team-a.mizar.share/gpu.6"}
        assert self.answered(tmp_path, [A0, A1], **how, variables=("Fractions",)) == {
            "MIZAR_MEMORY_FRACTION": "0.6666",
            "MIZAR_COMPUTE_FRACTION": "0.6666",
        }

    def test_what_cannot_be_limited_fails_later(self, tmp_path: Path) -> None:
        """An error in Allocate would fail the pod for good."""
        how = {**self.FOUR, "variables": ("HAMi",), "isolation": Isolation(backend="MPS")}
        assert self.answered(tmp_path, [A0], **how) == {}


class TestAllocate:
    async def test_device_nodes_beside_another_way_are_known_by_their_numbers(
        self, state: AgentState, tmp_path: Path
    ) -> None:
        """Before each start they are compared: the driver may have renumbered its cards."""
        minors = AsyncMock(return_value={CARD: 3})
        access = {"pass_device_specs": True, "dev_root": tmp_path}
        allocator = allocator_of(state, tmp_path, "CDI", minors, **access)
        answer = await allocator.allocate(RESOURCE, [A0])
        assert nodes(answer) == {"/dev/nvidia3": str(tmp_path / "nvidia3")}
        (slot,) = allocator._slots.all()
        assert slot.minors == {CARD: 3}

    async def test_a_full_disk_fails_no_pod(self, allocator: Allocator) -> None:
        """Any tenant may fill the disk for a moment; the slot's files are written before the start
        instead."""
        with full_disk():
            answer = await allocator.allocate(RESOURCE, [A0])
        (slot,) = allocator._slots.all()
        assert str(slot.limits) in {one.host_path for one in answer.mounts}

    async def test_one_device_each_where_the_node_says_so(
        self, state: AgentState, tmp_path: Path
    ) -> None:
        allocator = allocator_of(state, tmp_path, one_each=True)
        with pytest.raises(AllocationRefused, match=r"asks for 2 of .*failRequestsGreaterThanOne"):
            await allocator.allocate(RESOURCE, [A0, A1])
        assert (await allocator.allocate(RESOURCE, [A0])).mounts

    async def test_marks_devices_until_the_kubelet_shows_them(
        self, allocator: Allocator, state: AgentState
    ) -> None:
        await allocator.allocate(RESOURCE, [A1])
        assert [str(one) for one in state.allocating] == [A1]
        pods = [shadow(), share()]
        state.replan(snapshot(1.9, pods, [card_claim()]))
        assert state.allocating
        state.replan(snapshot(2.1, pods, [card_claim(), share_claim(A1)]))
        assert not state.allocating

    async def test_what_the_kubelet_never_shows_is_forgotten(
        self, allocator: Allocator, state: AgentState
    ) -> None:
        await allocator.allocate(RESOURCE, [A1])
        state.replan(snapshot(6.9, [shadow()], [card_claim()]))
        assert state.allocating
        state.replan(snapshot(7.1, [shadow()], [card_claim()]))
        assert not state.allocating

    @pytest.mark.parametrize(
        ("resource", "ids", "sentence"),
        [
            (RESOURCE, ["nonsense"], "is not a virtual device"),
            (RESOURCE, [A0, A0], "named twice"),
            (RESOURCE, [], "no device"),
            (RESOURCE, [device(2)], "is no device of"),
            ("team-b.mizar.share/gpu.2", [A0], "is no device of"),
        ],
    )
    async def test_misuse_is_refused(
        self, allocator: Allocator, resource: str, ids: list[str], sentence: str
    ) -> None:
        with pytest.raises(AllocationRefused, match=sentence):
            await allocator.allocate(resource, ids)

    async def test_a_broken_card_is_refused(self, allocator: Allocator, state: AgentState) -> None:
        broken = cards() | {CARD: card(1, "the card is gone")}
        state.replan(snapshot(2, [shadow()], [card_claim()], cards=broken))
        with pytest.raises(AllocationRefused, match="cannot be used: the card is gone"):
            await allocator.allocate(RESOURCE, [A0])

    @pytest.mark.parametrize("stage", list(DrainStage))
    async def test_what_is_drained_or_leaves_is_given_to_nobody(
        self, allocator: Allocator, state: AgentState, stage: DrainStage
    ) -> None:
        """Other parts rely on it. In an earlier stage of a drain, a pod that comes ends the
        drain."""
        state.carvings[SHADOW] = replace(state.carvings[SHADOW], stage=stage)
        if stage not in (DrainStage.DRAINED, DrainStage.LEAVING):
            assert (await allocator.allocate(RESOURCE, [A0])).mounts
            return
        with pytest.raises(AllocationRefused, match="is about to be deleted"):
            await allocator.allocate(RESOURCE, [A0])
        assert not state.allocating


class TestDeviceNodes:
    """With strategy Mounts, a container gets /dev/nvidia{minor}, and minors move."""

    def nodes(self, answer: pb.ContainerAllocateResponse) -> list[str]:
        names = {one.container_path for one in answer.devices}
        return sorted(one for one in names if re.fullmatch(r"/dev/nvidia\d+", one))

    async def test_the_number_is_the_cards_own_when_the_device_is_given(
        self, state: AgentState, tmp_path: Path
    ) -> None:
        """After the adoption another card dropped out, and the driver numbered the others anew."""
        now = {CARD: 0, card(2).uuid: 1}
        allocator = allocator_of(state, tmp_path, "Mounts", AsyncMock(side_effect=lambda _: now))
        assert self.nodes(await allocator.allocate(RESOURCE, [A0])) == ["/dev/nvidia0"]
        now = {CARD: 1, card(2).uuid: 0}
        assert self.nodes(await allocator.allocate(RESOURCE, [A1])) == ["/dev/nvidia1"]

    @pytest.mark.parametrize(
        "answer", [{}, CardsUnknown("NVML does not know card: it has not answered")]
    )
    async def test_a_card_that_nvml_does_not_know_is_refused(
        self, state: AgentState, tmp_path: Path, answer: object
    ) -> None:
        ask = AsyncMock(side_effect=[answer])
        allocator = allocator_of(state, tmp_path, "Mounts", ask)
        with pytest.raises(AllocationRefused, match="NVML does not know card"):
            await allocator.allocate(RESOURCE, [A0])
        assert not state.allocating

    async def test_a_drain_that_is_completed_meanwhile_wins(
        self, state: AgentState, tmp_path: Path
    ) -> None:
        async def slow(uuids: Collection[str]) -> dict[str, int]:
            carving = state.carvings[SHADOW]
            state.carvings[SHADOW] = replace(carving, stage=DrainStage.DRAINED)
            return dict.fromkeys(uuids, 0)

        with pytest.raises(AllocationRefused, match="is about to be deleted"):
            await allocator_of(state, tmp_path, "Mounts", slow).allocate(RESOURCE, [A0])
        assert not state.allocating
