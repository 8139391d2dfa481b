"""The changes that the agent requests in a container before the runtime creates it."""

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mizar_core.device_ids import DeviceID, devices_from_value
from mizar_core.errors import MizarError
from mizar_core.models import Isolation
from mizar_core.names import SPOT_RESOURCE, container_devices_from, container_devices_ids
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.config import CardAccess, MountConfig
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.auto_strategy import Discovery
from mizar_nodeagent.container.card_access import Parts
from mizar_nodeagent.container.missed_containers import MissedContainers
from mizar_nodeagent.container.nri_adjustment import adjustment
from mizar_nodeagent.container.nri_component import Counts, RuntimeComponent
from mizar_nodeagent.container.nri_grants import Grants
from mizar_nodeagent.container.shim_mounts import shim_mounts
from mizar_nodeagent.container.slots import Owner, Slot
from mizar_nodeagent.errors import ContainerRefused, NotYet, StartRefused
from mizar_nodeagent.planning.carving import DrainStage
from mizar_nodeagent.proto import nri_pb2 as pb
from unit.nodeagent.makers import (
    CARD,
    RESOURCE,
    SHADOW,
    card_claim,
    carve,
    device,
    new_slots,
    shadow,
    share,
    snapshot,
)

POD = pb.PodSandbox(id="p", name="share", namespace="team-a", uid="uid-share")
OWNER = Owner("team-a", "share", "uid-share", "main")
SHARES = {container_devices_from(): devices_from_value([DeviceID.parse(device(0))])}
SPOTS = {container_devices_ids(): f'{{"nvidia.com/gpu":["{CARD}"]}}'}
OTHER_SHARES = {container_devices_from(): devices_from_value([DeviceID.parse(device(1))])}
ALL_CARDS = ["NVIDIA_VISIBLE_DEVICES=all"]
NONSENSE = {**SHARES, **SPOTS}
DEV_NULL = Path("/dev/null").stat()


class Node:
    """A node where a share pod's container has passed PreStartContainer and is about to be made."""

    def __init__(self, folder: Path) -> None:
        self.slots = new_slots(folder)
        self.state = AgentState()
        self.warnings: list[tuple[str, str]] = []
        self.slot = self.slots.create(RESOURCE, [device(0)], 0.0, by_nri=True)
        self.own(OWNER)
        self.plan()

    def own(self, owner: Owner) -> None:
        self.slot = self.slots.assign(self.slot, owner)

    def plan(self, **carving: object) -> None:
        pods = [shadow(carve=carve(**carving)), share()]
        self.state.replan(snapshot(1.0, pods, [card_claim()]))

    async def minors(self, uuids: Collection[str]) -> dict[str, int]:
        return {uuid: 5 for uuid in uuids if uuid == CARD}

    def component(self, **access: object) -> RuntimeComponent:
        config = CardAccess(strategy="NRI", **access)  # type: ignore[arg-type]
        return self.component_of(AccessChoice(config))

    def component_of(self, access: AccessChoice) -> RuntimeComponent:
        return RuntimeComponent(
            Grants(self.state, self.slots),
            access,
            self.minors,
            MissedContainers(
                lambda owner, reason, message: self.warnings.append((reason, message))
            ),
        )

    def admit(self, **how: bool) -> None:
        """As if another answer to Allocate had made the slot."""
        self.slots.remove(self.slot)
        self.slot = self.slots.create(RESOURCE, [device(0)], 0.0, **how)
        self.own(OWNER)

    def mounts(self, slot: Slot | None = None) -> list[pb.Mount]:
        return [
            pb.Mount(destination=inside, source=str(outside), options=["rbind", "ro" * read_only])
            for inside, outside, read_only in shim_mounts(slot or self.slot)
        ]

    def container(self, annotations: dict[str, str] = SHARES, **changes: object) -> pb.Container:
        given: dict[str, object] = {"mounts": self.mounts(), "env": ["PATH=/bin"], **changes}
        return pb.Container(
            id="c",
            pod_sandbox_id="p",
            name="main",
            annotations=annotations,
            state=pb.CONTAINER_RUNNING,
            **given,  # type: ignore[arg-type]
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def without_nri(works_beside_cdi: bool = False, **access: object) -> AccessChoice:
    """A node where Auto gives cards by CDI in the answer to Allocate, since the container runtime
    drops CDI devices that NRI gives."""
    runtime = SimpleNamespace(problem="", connections=1, is_foreign=False)
    made = AccessChoice(CardAccess(strategy="Auto", **access), runtime)  # type: ignore[arg-type]
    made.settle(Discovery(nri=True, way="CDI"))
    made.cdi_dropped = "it drops CDI"
    made.works_beside_cdi = works_beside_cdi
    return made


def env_of(adjust: pb.ContainerAdjustment) -> dict[str, str]:
    return {one.key: one.value for one in adjust.env}


async def test_the_tenants_variable_is_replaced(node: Node) -> None:
    component = node.component(env={"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"})
    container = node.container(env=["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"])
    adjust = await component.create(POD, container)
    assert env_of(adjust) == {
        "NVIDIA_VISIBLE_DEVICES": CARD,
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    assert adjust.annotations == {"mizar.share/cards": CARD}
    assert component.counts.given == 1


@pytest.mark.parametrize("name", ["NVIDIA_VISIBLE_DEVICES", "OURS"])
async def test_what_could_not_be_replaced_is_refused(node: Node, name: str) -> None:
    """Of a variable that image and pod set, containerd replaces the first, and the last counts."""
    container = node.container(env=[f"{name}=void", "PATH=/bin", f"{name}=all"])
    with pytest.raises(ContainerRefused, match=f"its image and its pod both set {name}"):
        await node.component(env={"OURS": "1"}).create(POD, container)


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("NVIDIA_MIG_CONFIG_DEVICES", "give it access to cards beyond its share"),
        ("NVIDIA_MIG_MONITOR_DEVICES", "give it access to cards beyond its share"),
        ("NVIDIA_GPU_MEMORY_REQUEST", "reserve memory of its card that others have a share of"),
        ("NVIDIA_GPU_MEMORY_LIMIT", "reserve memory of its card that others have a share of"),
    ],
)
async def test_what_could_not_be_taken_away_is_refused(node: Node, name: str, effect: str) -> None:
    with pytest.raises(ContainerRefused, match=f"it sets {name}, which would {effect}"):
        await node.component().create(POD, node.container(env=[f"{name}="]))


async def test_marks_of_the_tenants_own_are_taken_away(node: Node) -> None:
    """NVIDIA's runtime takes the names of what is mounted there for names of cards."""
    marks = [
        "/var/run/nvidia-container-devices/all",
        "/run/nvidia-container-devices",
        "/run/app/../nvidia-container-devices/1",
    ]
    others = [pb.Mount(destination=path) for path in [*marks, "/var/run/nvidia"]]
    container = node.container(mounts=[*node.mounts(), *others])
    adjust = await node.component(nri_gives="VolumeMounts").create(POD, container)
    ours = f"/var/run/nvidia-container-devices/{CARD}"
    assert [one.destination for one in adjust.mounts] == [*(f"-{one}" for one in marks), ours]
    assert adjust.mounts[-1].source == "/dev/null"
    assert env_of(adjust)["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"


async def test_what_allocate_has_given_is_left_alone(node: Node) -> None:
    """With strategy Auto and a runtime that drops CDI devices which are given by NRI."""
    node.admit()
    component = node.component_of(without_nri())
    for annotations in (SHARES, NONSENSE):
        assert not (await component.create(POD, node.container(annotations))).ListFields()
    assert component.counts == Counts()


class TestAutoWithoutNRI:
    """Auto has given up NRI while containers of pods exist whose cards only NRI gives: a variable
    of their image or pod would give them all cards of the node."""

    @pytest.mark.parametrize("annotations", [SHARES, OTHER_SHARES, NONSENSE])
    async def test_one_that_was_admitted_by_nri_is_refused(
        self, node: Node, annotations: dict[str, str]
    ) -> None:
        component = node.component_of(without_nri())
        with pytest.raises(MizarError) as found:
            await component.create(POD, node.container(annotations, env=ALL_CARDS))
        assert component.counts == Counts(refused=1)
        if annotations == SHARES:
            assert "admitted while containers got cards by NRI, which is not" in str(found.value)
            assert "since it drops CDI: delete the pod" in str(found.value)

    async def test_or_gets_its_card_in_another_way(self, node: Node) -> None:
        component = node.component_of(without_nri(works_beside_cdi=True))
        adjust = await component.create(POD, node.container(env=ALL_CARDS))
        assert env_of(adjust) == {"NVIDIA_VISIBLE_DEVICES": CARD}
        assert not adjust.CDI_devices and adjust.annotations == {"mizar.share/cards": CARD}

    async def test_also_in_one_that_is_configured_besides(self, node: Node) -> None:
        access = without_nri(works_beside_cdi=True, nri_gives="CDI", also=["EnvVar"])
        adjust = await node.component_of(access).create(POD, node.container(env=ALL_CARDS))
        assert env_of(adjust) == {"NVIDIA_VISIBLE_DEVICES": CARD}

    async def test_another_of_the_pod_that_has_its_card_is_left_alone(self, node: Node) -> None:
        """Auto changed its mind between two answers to the kubelet."""
        node.slots.assign(node.slots.create(RESOURCE, [device(1)], 1.0, by_cdi=True), OWNER)
        component = node.component_of(without_nri())
        adjust = await component.create(POD, node.container(OTHER_SHARES))
        assert not adjust.ListFields() and component.counts == Counts()


@pytest.mark.parametrize("pods", [[], ALL_CARDS])
async def test_a_container_that_has_its_card_by_cdi_is_left_alone(
    node: Node, pods: list[str]
) -> None:
    """The container runtime was upgraded to one that does not drop CDI devices of NRI, and the
    kubelet repeats the answer that names them. That answer sets a variable too, besides the pod's
    own: NRI cannot replace both, and the container would never start again."""
    node.admit(by_cdi=True)
    container = node.container(env=pods)
    container.env.append("NVIDIA_VISIBLE_DEVICES=void")
    component = node.component(nri_gives="CDI")
    adjust = await component.create(POD, container)
    assert not adjust.ListFields() and component.counts == Counts()


async def test_a_container_that_has_it_by_the_variable_gets_cdi_devices(node: Node) -> None:
    node.admit(by_cdi=False)
    adjust = await node.component(nri_gives="CDI").create(POD, node.container(env=ALL_CARDS))
    assert [one.name for one in adjust.CDI_devices] == [f"nvidia.com/gpu={CARD}"]
    assert env_of(adjust) == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_by_cdi_the_variable_names_none(node: Node) -> None:
    adjust = await node.component(nri_gives="CDI").create(POD, node.container())
    assert [one.name for one in adjust.CDI_devices] == [f"nvidia.com/gpu={CARD}"]
    assert env_of(adjust) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_device_nodes_and_mounts() -> None:
    mount = MountConfig(host_path=Path("/h/driver"), container_path=Path("/usr/local/nvidia"))
    parts = Parts({}, {"/dev/nvidia5": Path("/h/dev/nvidia5")}, (mount,))
    seen = []

    def look(path: Path) -> os.stat_result:
        seen.append(path)
        return DEV_NULL

    adjust = adjustment(pb.Container(), [CARD], parts, look)
    assert seen == [Path("/h/dev/nvidia5")]
    (found,) = adjust.linux.devices
    assert (found.path, found.type, found.major, found.minor) == ("/dev/nvidia5", "c", 1, 3)
    assert found.file_mode.value == 0o666
    (mounted,) = adjust.mounts
    assert (mounted.destination, mounted.source) == ("/usr/local/nvidia", "/h/driver")
    assert mounted.type == "bind" and "ro" in mounted.options and "rbind" in mounted.options


async def test_device_nodes_by_todays_number(node: Node, tmp_path: Path) -> None:
    """The card's minor number is asked for now: it is 5, whatever it was at Allocate."""
    with pytest.raises(ContainerRefused, match="nvidia5"):
        await node.component(nri_gives="Mounts", dev_root=tmp_path).create(POD, node.container())
    (tmp_path / "nvidia5").touch()
    with pytest.raises(ContainerRefused, match="nvidia5 on the node is no device node"):
        await node.component(nri_gives="Mounts", dev_root=tmp_path).create(POD, node.container())


async def test_device_nodes_are_looked_at_where_the_nodes_folder_is_mounted(
    node: Node, tmp_path: Path
) -> None:
    (tmp_path / "h" / "dev").mkdir(parents=True)
    for name in ("nvidia5", "nvidiactl"):
        (tmp_path / "h" / "dev" / name).symlink_to("/dev/null")
    access = {"nri_gives": "Mounts", "dev_root": Path("/h/dev"), "host_root": tmp_path}
    adjust = await node.component(**access).create(POD, node.container())
    found = {one.path: (one.major, one.minor) for one in adjust.linux.devices}
    assert found == {"/dev/nvidia5": (1, 3), "/dev/nvidiactl": (1, 3)}


async def test_other_containers_are_left_alone(node: Node) -> None:
    component = node.component()
    container = node.container(annotations={"a": "b"}, env=["NVIDIA_VISIBLE_DEVICES=all"])
    assert await component.create(POD, container) == pb.ContainerAdjustment()
    assert component.counts.given == 0


OTHERS = {
    "another pod": {"name": "other"},
    "another namespace": {"namespace": "team-b"},
    "an earlier pod of that name": {"uid": "uid-earlier"},
}


@pytest.mark.parametrize("who", OTHERS)
async def test_an_annotation_alone_grants_nothing(node: Node, who: str) -> None:
    pod = pb.PodSandbox()
    pod.CopyFrom(POD)
    for field, value in OTHERS[who].items():
        setattr(pod, field, value)
    component = node.component()
    with pytest.raises(ContainerRefused, match="the kubelet has not said"):
        await component.create(pod, node.container())
    assert component.counts.refused == 1


async def test_no_card_before_prestart(node: Node) -> None:
    node.slots.remove(node.slot)
    node.slot = node.slots.create(RESOURCE, [device(0)], 0.0, by_nri=True)
    with pytest.raises(ContainerRefused, match=r"team-a/share holds shadow-2-aaaaa-0"):
        await node.component().create(POD, node.container())


async def test_devices_of_another_slot_of_the_pod(node: Node) -> None:
    """The annotation says device 1, but PreStartContainer was called for device 0."""
    with pytest.raises(ContainerRefused, match="shadow-2-aaaaa-1"):
        await node.component().create(POD, node.container(OTHER_SHARES))


async def test_a_static_pod_has_two_uids(node: Node) -> None:
    pods = [shadow(), share(static_uid="file-uid")]
    node.state.replan(snapshot(1.0, pods, [card_claim()]))
    pod = pb.PodSandbox(name="share", namespace="team-a", uid="file-uid")
    assert (await node.component().create(pod, node.container())).env


@pytest.mark.parametrize(
    "annotations",
    [
        {container_devices_from(): "nonsense"},
        {container_devices_from(): '{"a": 1}'},
        {container_devices_ids(): '[["x"]]'},
        {**SHARES, **SPOTS},
    ],
)
async def test_nonsense_is_refused(node: Node, annotations: dict[str, str]) -> None:
    with pytest.raises(MizarError):
        await node.component().create(POD, node.container(annotations))


async def test_a_shadow_pod_that_goes_gives_no_card(node: Node) -> None:
    carving = node.state.carvings[SHADOW]
    node.state.carvings[SHADOW] = replace(carving, stage=DrainStage.LEAVING)
    with pytest.raises(ContainerRefused, match="has been deleted or is terminating"):
        await node.component().create(POD, node.container())
    del node.state.carvings[SHADOW]
    with pytest.raises(ContainerRefused, match="is not known yet"):
        await node.component().create(POD, node.container())


class TestShim:
    """A container with limits must have its own files of the shim."""

    async def refused(self, node: Node, mounts: list[pb.Mount]) -> str:
        with pytest.raises(ContainerRefused) as found:
            await node.component().create(POD, node.container(mounts=mounts))
        return str(found.value)

    @pytest.mark.parametrize("at", range(4))
    async def test_each_must_be_there(self, node: Node, at: int) -> None:
        mounts = node.mounts()
        gone = mounts.pop(at)
        assert f"{gone.destination} is not mounted" in await self.refused(node, mounts)

    @pytest.mark.parametrize("at", range(4))
    async def test_each_must_be_its_own(self, node: Node, at: int) -> None:
        other = node.slots.create(RESOURCE, [device(1)], 0.0)
        mounts = node.mounts()
        mounts[at] = node.mounts(other)[at]
        assert f"{mounts[at].destination} is another file" in await self.refused(node, mounts)

    @pytest.mark.parametrize("path", ["/etc/ld.so.preload", "/etc//./ld.so.preload"])
    async def test_nothing_may_lie_over_one(self, node: Node, path: str) -> None:
        over = pb.Mount(destination=path, source="/tmp/empty", options=["ro"])
        problem = await self.refused(node, [*node.mounts(), over])
        assert "/etc/ld.so.preload is another file" in problem

    async def test_the_limits_must_be_read_only(self, node: Node) -> None:
        mounts = node.mounts()
        for one in mounts:
            one.options[:] = ["rbind", "rw"]
        assert "libmizar.so is another file" in await self.refused(node, mounts)

    async def test_an_earlier_containers_slot_does_not_help(self, node: Node) -> None:
        """An init container had the same device; this container has its own slot."""
        node.slots.assign(node.slots.create(RESOURCE, [device(0)], 1.0, by_nri=True), OWNER)
        assert (await node.component().create(POD, node.container())).env
        assert "not mounted" in await self.refused(node, [])

    async def test_without_limits_it_needs_none(self, node: Node) -> None:
        node.plan(isolation=Isolation(backend="None"))
        assert (await node.component().create(POD, node.container(mounts=[]))).env


class TestSpot:
    """Whole cards that are lent, which another annotation names."""

    def lend(self, node: Node, owner: Owner = OWNER, uuid: str = CARD) -> Slot:
        """A container's slot after PreStartContainer."""
        made = node.slots.create(SPOT_RESOURCE, [f"{uuid}-spot"], 0.0, by_nri=True)
        return node.slots.assign(made, owner)

    async def test_a_card_that_is_lent_to_the_pod(self, node: Node) -> None:
        container = node.container(SPOTS, mounts=node.mounts(self.lend(node)))
        adjust = await node.component().create(POD, container)
        assert env_of(adjust) == {"NVIDIA_VISIBLE_DEVICES": CARD}

    @pytest.mark.parametrize(
        ("owner", "uuid"),
        [(replace(OWNER, pod="other"), CARD), (OWNER, "GPU-other")],
    )
    async def test_and_no_other(self, node: Node, owner: Owner, uuid: str) -> None:
        container = node.container(SPOTS, mounts=node.mounts(self.lend(node, owner, uuid)))
        with pytest.raises(ContainerRefused, match=f"has not said that .* holds {CARD}-spot"):
            await node.component().create(POD, container)

    async def test_it_is_limited_too(self, node: Node) -> None:
        self.lend(node)
        with pytest.raises(ContainerRefused, match="would run without its limits"):
            await node.component().create(POD, node.container(SPOTS, mounts=[]))

    async def test_a_pod_may_have_both(self, node: Node) -> None:
        """One in each of two containers."""
        lent = self.lend(node)
        assert (await node.component().create(POD, node.container())).env
        assert (
            await node.component().create(POD, node.container(SPOTS, mounts=node.mounts(lent)))
        ).env

    def test_one_that_was_missed_is_told(self, node: Node) -> None:
        self.lend(node)
        node.component().look([POD], [node.container(SPOTS, mounts=[])])
        assert [reason for reason, _ in node.warnings] == ["NoCardAccess"]


class TestMissed:
    """Containers that were made while the runtime did not ask."""

    def test_the_pod_is_told(self, node: Node) -> None:
        component = node.component()
        component.look([POD], [node.container()])
        ((reason, message),) = node.warnings
        assert reason == "NoCardAccess" and "container main was created without" in message
        assert component.counts.missed == 1
        component.look([POD], [node.container()])
        assert component.counts.missed == len(node.warnings) == 1, "the runtime was restarted"

    def test_an_annotation_of_the_pods_own_hides_nothing(self, node: Node) -> None:
        """CRI-O passes a pod's annotations, which its tenant writes, on to its containers."""
        cards = {"mizar.share/cards": CARD}
        pod = pb.PodSandbox(annotations=cards)
        pod.MergeFrom(POD)
        node.component().look([pod], [node.container({**SHARES, **cards})])
        ((reason, _),) = node.warnings
        assert reason == "NoCardAccess"

    @pytest.mark.parametrize(
        "changes",
        [
            {"annotations": {**SHARES, "mizar.share/cards": CARD}},
            {"annotations": {"a": "b"}},
            {"annotations": {container_devices_from(): "nonsense"}},
            {"annotations": {container_devices_from(): "[" * 100_000}},
            {"annotations": {container_devices_ids(): '{"a":' * 50_000}},
            {"pod_sandbox_id": "another"},
            {"state": pb.CONTAINER_STOPPED},
        ],
    )
    def test_others_are_not(self, node: Node, changes: dict[str, object]) -> None:
        container = node.container(changes.get("annotations", SHARES))  # type: ignore[arg-type]
        for field in changes.keys() - {"annotations"}:
            setattr(container, field, changes[field])
        component = node.component()
        component.look([POD], [container])
        assert not node.warnings and not component.counts.missed

    def test_those_that_got_their_card_by_allocate_are_not(self, node: Node) -> None:
        """They were made before NRI was asked for."""
        node.slots.remove(node.slot)
        node.slot = node.slots.create(RESOURCE, [device(0)], 0.0)
        node.own(OWNER)
        node.component().look([POD], [node.container()])
        assert not node.warnings


class TestChoice:
    """Whether a container may start, by how its card would come."""

    async def check(self, strategy: str, by_nri: bool, *problems: str) -> None:
        """`problems`: the runtime's problems, before and after the wait for it; none without
        NRI."""
        slot = Slot("s", Path("s"), RESOURCE, frozenset(), 0.0, by_nri=by_nri)
        runtime = SimpleNamespace(problem=problems[0]) if problems else None

        async def wait(within: float) -> None:
            runtime.problem = problems[-1]

        if runtime:
            runtime.wait = wait
        access = CardAccess(strategy=strategy)  # type: ignore[arg-type]
        await AccessChoice(access, runtime).check([slot])

    @pytest.mark.parametrize("by_nri", [True, False])
    async def test_it_waits_for_the_runtime(self, by_nri: bool) -> None:
        await self.check("NRI", by_nri, "")
        await self.check("NRI", by_nri, "socket gone", "")
        with pytest.raises(NotYet, match="is not connected to Mizar: socket gone"):
            await self.check("NRI", by_nri, "socket gone")

    async def test_one_whose_card_came_by_nri_does_not_start_without(self) -> None:
        await self.check("EnvVar", False)
        with pytest.raises(StartRefused, match=r"strategy EnvVar does not use: delete the pod"):
            await self.check("EnvVar", True)
