"""MIG devices are carved like cards of their size; what NVML does not report for them is taken from
their card."""

from dataclasses import replace
from pathlib import Path

import pytest

from mizar_core.carve import limits_for
from mizar_core.names import SPOT_RESOURCE, spot_device_id
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.card_metrics import CardCollector
from mizar_nodeagent.cards import DIVIDED, CardInventory
from mizar_nodeagent.config import CardAccess
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.mig import NOBODYS, Instance
from mizar_nodeagent.planning.adopt_shadow_pod import Pending, adopt
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from unit.nodeagent.makers import CARD, card, card_claim, carve, shadow, snapshot

MIG = "MIG-00000000-0000-0000-0000-000000000002"
OTHER = "MIG-00000000-0000-0000-0000-000000000003"
SIZE = 4864 << 20
RESOURCE = "nvidia.com/mig-1g.5gb"
WHOLE = replace(card(), divided=True)
INSTANCE = replace(
    card(), uuid=MIG, memory_bytes=SIZE, model=f"{WHOLE.model} MIG 1g.5gb", numa=(1,)
)
INSTANCE = replace(INSTANCE, instance=Instance(CARD, 1, 0))
BESIDE = replace(INSTANCE, uuid=OTHER, instance=Instance(CARD, 2, 0))
CARDS = {one.uuid: one for one in (WHOLE, INSTANCE, BESIDE)}
LIST = """config 1
monitor 2
gpu3/gi1/access 417
gpu3/gi1/ci0/access 418
"""


def healthy(inventory: CardInventory) -> dict[str, float]:
    """The values of the metric mizar_card_healthy, by UUID."""
    state = AgentState()
    state.snapshot = snapshot(1.0, cards=inventory.cards())
    collector = CardCollector("node-1", state, dict)
    samples = (one for metric in collector.collect() for one in metric.samples)
    return {
        one.labels["device_uuid"]: one.value for one in samples if one.name == "mizar_card_healthy"
    }


def test_a_card_that_is_divided_and_made_whole_again_is_no_failure() -> None:
    """An alert looks at cards that are unhealthy: a divided card is not one of them, nor are the
    MIG devices that it had."""
    inventory = CardInventory(lambda: 1.0)
    inventory.update(CARDS)
    assert healthy(inventory) == {MIG: 1, OTHER: 1}
    inventory.fault(MIG, 79)
    assert healthy(inventory) == {MIG: 0, OTHER: 1}
    whole = replace(WHOLE, divided=False)
    inventory.update({CARD: whole})
    assert healthy(inventory) == {CARD: 1}
    inventory.problem = "NVML does not answer"
    assert healthy(inventory) == {CARD: 1}
    # MIG devices that are gone together with their card are missing.
    inventory.update({})
    assert healthy(inventory) == {CARD: 0, MIG: 0, OTHER: 0}


class TestAdoption:
    POD = shadow(carve=carve(physical_resource=RESOURCE))
    CLAIM = replace(card_claim(POD.name, MIG), resource=RESOURCE)

    @pytest.mark.parametrize("resource", [RESOURCE, "nvidia.com/gpu"])
    def test_by_either_strategy(self, resource: str) -> None:
        pod = shadow(carve=carve(physical_resource=resource))
        claim = replace(self.CLAIM, resource=resource)
        found = adopt(pod, snapshot(1.0, [pod], [claim], cards=CARDS), {})
        assert isinstance(found, Carving)
        (held,) = found.cards
        assert (held.uuid, held.numa) == (MIG, (1,))
        (limit,) = limits_for(found.carve, found.cards, [0])
        assert (limit.uuid, limit.memory_bytes, limit.core_share) == (MIG, SIZE // 2, 5000)

    def test_one_that_the_agent_does_not_see(self) -> None:
        found = adopt(self.POD, snapshot(1.0, [self.POD], [self.CLAIM]), {})
        assert isinstance(found, Pending)
        assert found.message.startswith(f"card {MIG} is not known: NVML does not list it")
        assert "nvidia-smi -L" in found.message and "NVIDIA_VISIBLE_DEVICES" in found.message

    def test_near_which_processors_it_is_the_plugin_knows_better(self) -> None:
        told = replace(self.CLAIM, numa={MIG: (0,)})
        found = adopt(self.POD, snapshot(1.0, [self.POD], [told], cards=CARDS), {})
        assert isinstance(found, Carving) and found.cards[0].numa == (0,)


class TestHealth:
    @pytest.fixture
    def inventory(self) -> CardInventory:
        made = CardInventory()
        made.update(CARDS)
        return made

    def problems(self, inventory: CardInventory) -> list[str]:
        cards = inventory.cards()
        return [cards[one].problem for one in (CARD, MIG, OTHER)]

    def test_a_divided_card_is_for_nobody(self, inventory: CardInventory) -> None:
        assert self.problems(inventory) == [DIVIDED, "", ""]

    def test_a_fault_of_the_card_is_all_its_instances(self, inventory: CardInventory) -> None:
        inventory.fault(CARD, 79)
        said = "the card reported XID 79"
        assert self.problems(inventory) == [f"{said}; {DIVIDED}", said, said]

    def test_a_fault_of_an_instance_is_its_own(self, inventory: CardInventory) -> None:
        inventory.fault(MIG, 48)
        assert self.problems(inventory) == [DIVIDED, "the card reported XID 48", ""]

    def test_an_instance_has_the_faults_that_name_it_or_no_compute_instance(self) -> None:
        place = Instance(CARD, 1, 0)
        assert place.has(1, 0) and place.has(1, NOBODYS)
        assert not place.has(1, 1) and not place.has(2, 0) and not place.has(NOBODYS, NOBODYS)

    def test_one_that_is_no_more(self, inventory: CardInventory) -> None:
        inventory.update({CARD: WHOLE, OTHER: BESIDE})
        assert self.problems(inventory) == [DIVIDED, "the card is gone", ""]


class TestAccess:
    def answer(self, folder: Path, strategy: str, minor: int = 3) -> pb.ContainerAllocateResponse:
        listed = folder / "mig-minors"
        listed.write_text(LIST)
        config = CardAccess(strategy=strategy, dev_root=folder, mig_minors=listed)  # type: ignore[arg-type]
        choice = AccessChoice(config, instance_of=lambda uuid: CARDS[uuid].instance)
        answer = pb.ContainerAllocateResponse()
        minors = {MIG: minor} if strategy == "Mounts" else {}
        choice.add_cards(answer, [MIG], minors)
        return answer

    def test_by_name(self, tmp_path: Path) -> None:
        assert self.answer(tmp_path, "EnvVar").envs["NVIDIA_VISIBLE_DEVICES"] == MIG
        (mark,) = self.answer(tmp_path, "VolumeMounts").mounts
        assert mark.container_path == f"/var/run/nvidia-container-devices/{MIG}"
        (named,) = self.answer(tmp_path, "CDI").cdi_devices
        assert named.name == f"nvidia.com/gpu={MIG}"

    def test_by_device_nodes(self, tmp_path: Path) -> None:
        """The device nodes of its card, and those that give the right to the MIG device."""
        names = ["nvidia3", "nvidia-caps/nvidia-cap417", "nvidia-caps/nvidia-cap418"]
        found = {
            one.container_path: one.host_path for one in self.answer(tmp_path, "Mounts").devices
        }
        assert found == {f"/dev/{name}": str(tmp_path / name) for name in names}

    def test_a_capability_that_the_driver_does_not_list(self, tmp_path: Path) -> None:
        with pytest.raises(CardsUnknown, match=r"gpu0/gi1/ci0 cannot be told from .*migMinors"):
            self.answer(tmp_path, "Mounts", minor=0)


def test_instances_come_and_go_and_cards_are_expected_back() -> None:
    """Which of an earlier agent's carvings are of instances is not known before they are read."""
    inventory = CardInventory()
    inventory.restore({}, [card(), INSTANCE.lasting()])
    assert inventory.expected == {CARD, MIG}
    inventory.update({MIG: INSTANCE})
    assert inventory.expected == {CARD}


def test_the_cards_that_containers_hold() -> None:
    held = frozenset({"GPU-a::3", MIG, "rdma0"})
    lent = frozenset({spot_device_id("GPU-b")})
    claims = Claims(
        (
            Claim("team-a", "pod", "main", "nvidia.com/gpu", held),
            Claim("team-b", "train", "main", SPOT_RESOURCE, lent),
        )
    )
    assert claims.cards() == {"GPU-a", MIG}
