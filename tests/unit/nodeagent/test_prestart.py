"""PreStartContainer: its checks, and the slots that it writes."""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from mizar_core.models import Isolation
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container import slots as slots_module
from mizar_nodeagent.container.limits_update import LimitsUpdater
from mizar_nodeagent.container.prestart import PreStart
from mizar_nodeagent.container.slots import Owner, Slot, Slots
from mizar_nodeagent.container.used_slots import slots_in_use
from mizar_nodeagent.cuda_context.costs import ContextCosts
from mizar_nodeagent.errors import KubeletAway, NotYet, RegionDamaged, StartRefused
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.kubelet.device_checkpoint import Entry
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.regions import layout, limits_file, usage_file, usage_snapshot
from unit.nodeagent.makers import (
    CARD,
    GIB,
    RESOURCE,
    card,
    card_claim,
    carve,
    device,
    full_disk,
    new_slots,
    shadow,
    share,
    share_claim,
    snapshot,
)

D0, D1 = device(0), device(1)
FOUR = "team-a.mizar.share/gpu.4"
WIDE = shadow("shadow-4-bbbbb", carve=carve(resource=FOUR, devices=4))
OWNER = Owner("team-a", "share", "uid-share", "main")


class Node:
    """A node with a shadow pod of profile 2 and one of profile 4; the test sets which pods hold
    what."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slots = new_slots(folder)
        self.recorded: tuple[Entry, ...] = ()
        self.records: Callable[[], tuple[Entry, ...]] = lambda: self.recorded
        self.told: list[str] = []
        self.warnings: list[str] = []
        self.minors = AsyncMock(side_effect=AssertionError("nobody was given a device node"))

    async def start(
        self,
        *claims: Claim,
        pod: Pod | None = None,
        isolation: Isolation | None = None,
        pods: Sequence[Pod] = (),
        ids: Sequence[str] = (),
        listed: bool = True,
        watched: bool = False,
    ) -> None:
        """Start a container; the first of the claims is that container's, unless its devices are
        named. `pods`: others beside the pod. `listed`: whether the API server has listed the pods
        since the agent's start, as the last plan knows; `watched`: as the watch knows."""
        state = AgentState()
        cards = [card_claim(), card_claim(WIDE.name, card(2).uuid)]
        first = shadow(carve=carve(isolation=isolation or Isolation()))
        state.replan(snapshot(1.0, [first, WIDE, pod or share(), *pods], cards))
        if not listed:
            state.replan(snapshot(2.0, None, cards))

        async def ask() -> Claims:
            return Claims(claims, 2.0)

        async def measure(uuid: str) -> int:
            return 0

        prestart = PreStart(
            state,
            self.slots,
            ask,
            lambda: self.records(),
            lambda owner, reason, note, warning=False: self.told.append(reason),
            lambda owner, reason, note: self.warnings.append(reason),
            ContextCosts(self.folder / "contexts", state, measure),
            self.minors,
            pods=(lambda: {one.key: one for one in (pod or share(), *pods)}) if watched else None,
        )
        await prestart.prepare(claims[0].resource, ids or sorted(claims[0].ids))

    def slot(self, owner: Owner | None = None, created: float = 0.0) -> Slot:
        """A slot of the first device."""
        made = self.slots.create(RESOURCE, [D0], created)
        return made if owner is None else self.slots.assign(made, owner)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def written(slot: Slot) -> str | None:
    """The UID of the pod whose limits are in the slot; None while no limits are."""
    try:
        return limits_file.read(slot.limits).pod_uid.decode()
    except RegionDamaged:
        return None


@pytest.mark.parametrize(
    "before",
    [
        Owner("team-a", "earlier", "uid-earlier", "main"),
        Owner("team-b", "share", "uid-share", "main"),
        # As a StatefulSet makes them: another pod of the same name.
        replace(OWNER, pod_uid="uid-of-the-last"),
    ],
)
async def test_a_start_fills_its_own_pods_slots_only(node: Node, before: Owner) -> None:
    """Slots of the same device that earlier pods had are still mounted in their containers."""
    theirs, own = node.slot(before), node.slot(created=1.0)
    await node.start(share_claim(D0))
    assert (written(theirs), written(own)) == (None, "uid-share")
    assert node.told == ["DeviceGranted"]


async def test_a_container_whose_device_another_pod_had_waits_until_the_api_server_lists_pods(
    node: Node,
) -> None:
    """A kubelet that has lost its record gives devices of containers that run to others."""
    node.slot(Owner("team-a", "earlier", "uid-earlier", "main"))
    own = node.slot(created=1.0)
    with pytest.raises(NotYet, match="pod team-a/earlier had a device"):
        await node.start(share_claim(D0), listed=False)
    assert written(own) is None
    await node.start(share_claim(D0))
    assert written(own) == "uid-share"


@pytest.mark.parametrize(("had", "waits"), [([D0, D1], True), ([D1], False)])
async def test_a_container_waits_for_the_earlier_users_of_its_own_devices_only(
    node: Node, had: list[str], waits: bool
) -> None:
    earlier = node.slots.create(RESOURCE, had, 0.0)
    node.slots.assign(earlier, Owner("team-a", "earlier", "uid-earlier", "main"))
    own = node.slot(created=1.0)
    with pytest.raises(NotYet, match="team-a/earlier had") if waits else nullcontext():
        await node.start(share_claim(D0), listed=False)
    assert (written(own) is None) == waits


async def test_once_the_api_server_has_told_no_start_waits_for_the_next_plan(node: Node) -> None:
    node.slot(Owner("team-a", "earlier", "uid-earlier", "main"))
    own = node.slot(created=1.0)
    await node.start(share_claim(D0), listed=False, watched=True)
    assert written(own) == "uid-share"


async def test_a_container_that_starts_again_needs_no_api_server(node: Node) -> None:
    slots = node.slot(OWNER), node.slot(replace(OWNER, container="prepare"))
    await node.start(share_claim(D0), listed=False)
    assert None not in [written(one) for one in slots]


async def test_a_start_fills_all_slots_of_its_pod(node: Node) -> None:
    """An init container had the device before, and nothing has told which slot is whose."""
    first, second = node.slot(replace(OWNER, container="prepare")), node.slot(created=1.0)
    await node.start(share_claim(D0))
    assert (written(first), written(second)) == ("uid-share", "uid-share")
    assert limits_file.read(first.limits).container == b"prepare"


async def test_a_container_starts_when_the_disk_has_room_for_its_slot(node: Node) -> None:
    """The kubelet tries again; an error in Allocate would have failed the pod for good."""
    with full_disk():
        slot = node.slot()
        with pytest.raises(NotYet, match=r"cannot be made: .*No space left"):
            await node.start(share_claim(D0))
    await node.start(share_claim(D0))
    assert written(slot) == "uid-share"


async def test_a_slot_of_which_the_disk_has_a_part_is_tried_again_while_the_disk_is_full(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet was told of an error of Python, and the agent logged a traceback at each try."""
    slot = node.slot()
    (slot.folder / "slot.json").unlink()
    node.slots.load(0.0)
    node.recorded = (
        Entry("uid-share", "main", RESOURCE, frozenset({D0}), frozenset({str(slot.limits)})),
    )
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "No space left on device")
        patch.setattr(slots_module, "write_atomically", Mock(side_effect=full))
        with pytest.raises(NotYet, match=r"cannot be written: .*No space left"):
            await node.start(share_claim(D0))
    await node.start(share_claim(D0))
    assert written(slot) == "uid-share"


@pytest.mark.parametrize("starts", [0, 1])
async def test_a_container_has_devices_of_one_profile(node: Node, starts: int) -> None:
    """The container has one slot: the mounts of a second answer would replace those of the
    first."""
    slots = node.slot(), node.slots.create(FOUR, [device(0, WIDE.key)], 0.0)
    both = [share_claim(D0), share_claim(device(0, WIDE.key), resource=FOUR)]
    first, second = both[starts], both[1 - starts]
    with pytest.raises(StartRefused, match="a container can have devices of one profile only"):
        await node.start(first, second)
    assert node.warnings == ["IsolationNotEnforced"]
    assert [written(slot) for slot in slots] == [None, None]


async def test_containers_of_one_pod_may_have_different_profiles(node: Node) -> None:
    slot = node.slot()
    other = replace(share_claim(device(0, WIDE.key), resource=FOUR), container="side")
    await node.start(share_claim(D0), other)
    assert written(slot) == "uid-share"


@pytest.mark.parametrize("left", [0, 100, 4096, 9000])
async def test_limits_of_another_size_are_mended_before_a_start(node: Node, left: int) -> None:
    """A power cut may leave an empty file, and the kubelet starts the container again with it."""
    slot = node.slot()
    await node.start(share_claim(D0))
    before = limits_file.read(slot.limits)
    os.truncate(slot.limits, left)
    os.truncate(slot.usage, 0)
    await node.start(share_claim(D0))
    found = limits_file.read(slot.limits)
    assert limits_file.card_limits(found) == limits_file.card_limits(before)
    for path, size in ((slot.limits, layout.LIMITS_SIZE), (slot.usage, layout.USAGE_SIZE)):
        status = path.stat()
        assert (status.st_size, status.st_blocks * 512 >= size) == (size, True), "SIGBUS later"


async def test_a_damaged_account_is_mended_before_a_start(node: Node) -> None:
    """Otherwise the shim would refuse every CUDA program of the container that starts again."""
    slot = node.slot(OWNER)
    with slot.usage.open("r+b") as file:
        file.write(b"NONSENSE")
    with pytest.raises(RegionDamaged):
        usage_snapshot.card_usage(slot.usage, 1)
    await node.start(share_claim(D0))
    assert usage_snapshot.card_usage(slot.usage, 1)[0].bytes == 0


async def test_a_container_with_files_of_an_unserved_version_does_not_start_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = node.slot(OWNER)
    await node.start(share_claim(D0))
    before = slot.limits.read_bytes()
    monkeypatch.setattr(layout, "SERVED", frozenset({layout.VERSION + 1}))
    with pytest.raises(StartRefused, match="until its pod is deleted and created again"):
        await node.start(share_claim(D0))
    assert slot.limits.read_bytes() == before
    assert node.warnings == ["IsolationNotEnforced"]


async def test_a_container_with_files_of_the_previous_version_starts_again_with_them(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = node.slot(OWNER)
    header = slot.usage.read_bytes()[: usage_file.HEADER_SIZE]
    with slot.usage.open("r+b") as file:
        file.write(b"NONSENSE")
    monkeypatch.setattr(layout, "SERVED", frozenset({layout.VERSION, layout.VERSION + 1}))
    monkeypatch.setattr(layout, "VERSION", layout.VERSION + 1)
    await node.start(share_claim(D0))
    assert slot.usage.read_bytes()[: usage_file.HEADER_SIZE] == header
    assert limits_file.version(slot.limits) == layout.VERSION - 1


class TestRecovery:
    """A container starts again with the paths that Allocate once returned and the kubelet keeps;
    invariant 5."""

    def _recorded(self, node: Node, name: str, *ids: str, uid: str = "uid-share") -> None:
        mounts = frozenset([f"{node.slots.root}/{name}/limits"])
        node.recorded = (*node.recorded, Entry(uid, "main", RESOURCE, frozenset(ids), mounts))

    async def test_another_folder_than_at_the_first_start_is_told(self, node: Node) -> None:
        """The kubelet mounts the files of the folder that the agent had at the first start."""
        mounts = frozenset({"/srv/before/slots/a-slot/limits", "/srv/driver"})
        node.recorded = (Entry("uid-share", "main", RESOURCE, frozenset([D0]), mounts),)
        with pytest.raises(StartRefused, match=r"/srv/before/slots/a-slot: .*stateDir was changed"):
            await node.start(share_claim(D0))
        assert node.warnings == ["IsolationNotEnforced"]

    async def test_a_slot_that_was_lost_is_made_again_under_its_name(self, node: Node) -> None:
        self._recorded(node, "lost", D0)
        await node.start(share_claim(D0))
        (slot,) = node.slots.all()
        assert (slot.name, slot.resource, slot.ids) == ("lost", RESOURCE, {D0})
        assert slot.owner == OWNER
        assert slot.created == 0.0
        assert limits_file.read(slot.limits).cards[0].memory_limit > 0

    async def test_a_slot_that_forgot_its_devices_is_told_them(self, node: Node) -> None:
        made = node.slot()
        (made.folder / "slot.json").unlink()
        node.slots = Slots(node.slots.root, node.slots.shim)
        node.slots.load(9.0)
        self._recorded(node, made.name, D0)
        await node.start(share_claim(D0))
        (slot,) = node.slots.all()
        assert (slot.name, slot.resource, slot.ids, slot.owner) == (
            made.name,
            RESOURCE,
            {D0},
            OWNER,
        )

    @pytest.mark.parametrize("left", ["a part", "nothing"])
    async def test_a_slot_that_another_pod_of_that_name_had_is_not_taken_for_a_lost_one(
        self, node: Node, left: str
    ) -> None:
        """The agent was killed while it made the files of the pod's own slot, on a full disk. The
        pod before, of which the UID was not known, had the same devices: the new one started with
        limits that nobody had written, and was refused all of its memory until it restarted."""
        before = node.slot(replace(OWNER, pod_uid=""), created=7.0)
        made = node.slot(created=8.0)
        (made.folder / "slot.json").unlink()
        if left == "nothing":
            shutil.rmtree(made.folder)
        node.slots = Slots(node.slots.root, node.slots.shim)
        node.slots.load(9.0)
        self._recorded(node, made.name, D0)
        await node.start(share_claim(D0))
        assert (written(made), written(before)) == ("uid-share", "uid-share")
        assert {slot.name: slot.ids for slot in node.slots.all()}[made.name] == {D0}
        used = slots_in_use(node.slots.all(), snapshot(3.0, [share()], [share_claim(D0)]))
        assert [slot.name for slot in used] == [made.name]

    async def test_a_slot_that_is_certainly_the_pods_needs_no_record(self, node: Node) -> None:
        """Most starts: the record is as long as the kubelet has pods."""
        node.slot(OWNER)
        node.slots = Slots(node.slots.root, node.slots.shim)
        node.slots.load(9.0)
        node.records = Mock(side_effect=AssertionError("the record was read"))
        await node.start(share_claim(D0))
        made = node.slots.create(RESOURCE, [D1], 0.0)
        await node.start(share_claim(D1))
        assert written(made) == "uid-share"

    @pytest.mark.parametrize(
        ("ids", "uid"), [((device(1),), "uid-share"), ((D0, device(1)), "uid-share"), ((D0,), "x")]
    )
    async def test_what_is_recorded_of_others_is_left_alone(
        self, node: Node, ids: tuple[str, ...], uid: str
    ) -> None:
        self._recorded(node, "others", *ids, uid=uid)
        with pytest.raises(NotYet):
            await node.start(share_claim(D0))
        assert node.slots.all() == []

    async def test_a_kubelet_whose_record_cannot_be_read_is_asked_again(self, node: Node) -> None:
        def away() -> tuple[Entry, ...]:
            raise KubeletAway("the record is damaged")

        node.records = away
        with pytest.raises(NotYet, match="the record is damaged"):
            await node.start(share_claim(D0))


class TestDeviceNodes:
    """The kubelet restarts a container with the device nodes of its first start."""

    def slot(self, node: Node, owner: Owner | None = None) -> Slot:
        made = node.slots.create(RESOURCE, [D0], 0.0, minors={CARD: 1})
        return made if owner is None else node.slots.assign(made, owner)

    @pytest.mark.parametrize("owner", [None, OWNER])
    async def test_that_are_still_the_cards_own(self, node: Node, owner: Owner | None) -> None:
        slot = self.slot(node, owner)
        node.minors = AsyncMock(return_value={CARD: 1})
        await node.start(share_claim(D0))
        assert written(slot) == "uid-share"

    @pytest.mark.parametrize("owner", [None, OWNER])
    async def test_that_are_another_cards_by_now_are_not_used(
        self, node: Node, owner: Owner | None
    ) -> None:
        slot = self.slot(node, owner)
        node.minors = AsyncMock(return_value={CARD: 0})
        node.slots.load(0.0)  # as an agent that was started again in between
        with pytest.raises(StartRefused, match=r"/dev/nvidia1, which .* to another card"):
            await node.start(share_claim(D0))
        assert (written(slot), node.warnings) == (None, ["CardRenumbered"])

    async def test_wait_while_the_card_does_not_answer(self, node: Node) -> None:
        self.slot(node)
        node.minors = AsyncMock(return_value={})
        with pytest.raises(NotYet, match=f"NVML does not know card {CARD}"):
            await node.start(share_claim(D0))

    async def test_of_an_init_container_do_not_keep_another(self, node: Node) -> None:
        self.slot(node, replace(OWNER, container="prepare"))
        slot = node.slots.create(RESOURCE, [D0], 1.0, minors={CARD: 0})
        node.minors = AsyncMock(return_value={CARD: 0})
        await node.start(share_claim(D0))
        assert written(slot) == "uid-share"


class TestOptOut:
    POD = share(without_limits=frozenset({"main"}))
    MAY = Isolation(may_opt_out=True)

    async def test_nothing_loads_the_shim(self, node: Node) -> None:
        node.slot()
        await node.start(share_claim(D0), pod=self.POD, isolation=self.MAY)
        (slot,) = node.slots.all()
        assert slot.preload.read_bytes() == b""
        assert slot.opted_out and not slot.shim, "nobody takes its processes for escaped ones"
        assert slot.library.exists() and node.warnings == []
        again = Slots(node.slots.root, node.slots.shim)
        again.load(0.0)
        assert again.all()[0].opted_out, "the next agent knows it"
        # When the container starts again.
        await node.start(share_claim(D0), pod=self.POD, isolation=self.MAY)
        assert node.told == ["DeviceGranted"]

    async def test_other_containers_keep_it(self, node: Node) -> None:
        node.slot()
        pod = share(without_limits=frozenset({"side"}))
        await node.start(share_claim(D0), pod=pod, isolation=self.MAY)
        assert node.slots.all()[0].preload.read_bytes() == shim_install.PRELOAD

    async def test_only_where_the_quota_permits_it(self, node: Node) -> None:
        node.slot()
        await node.start(share_claim(D0), pod=self.POD)
        (slot,) = node.slots.all()
        assert slot.shim and slot.preload.read_bytes() == shim_install.PRELOAD
        assert node.warnings == ["OptOutRefused"]

    async def test_a_start_after_that_has_ended_has_limits_again(self, node: Node) -> None:
        node.slot()
        await node.start(share_claim(D0), pod=self.POD, isolation=self.MAY)
        await node.start(share_claim(D0), pod=self.POD)
        (slot,) = node.slots.all()
        assert slot.shim and not slot.opted_out
        assert slot.preload.read_bytes() == shim_install.PRELOAD

    async def test_what_was_made_without_the_shim_is_no_opt_out(self, node: Node) -> None:
        node.slots.create(RESOURCE, [D0], 0.0, shim=False)
        with pytest.raises(StartRefused, match="run without Mizar's shim"):
            await node.start(share_claim(D0))
        assert not node.slots.all()[0].opted_out


async def test_a_slot_without_the_shim_that_was_lost_is_made_again(node: Node) -> None:
    """With backend None the kubelet's record names no file of the slot."""
    node.recorded = (Entry("uid-share", "main", RESOURCE, frozenset([D0]), frozenset()),)
    await node.start(share_claim(D0), isolation=Isolation(backend="None"))
    (slot,) = node.slots.all()
    assert (slot.shim, slot.owner) == (False, OWNER)
    with pytest.raises(StartRefused, match="without Mizar's shim"):
        await node.start(share_claim(D0))


@pytest.mark.parametrize("lost", [True, False])
async def test_what_a_plan_changes_during_a_start_holds(node: Node, lost: bool) -> None:
    """A container starts again. While its start waits, say for the container runtime, a plan lowers
    its limits, or finds that its card is lost."""
    slot, state = node.slot(OWNER), AgentState()
    said: list[str] = []

    def ignore(owner: Owner, reason: str, note: str, warning: bool = False) -> None:
        said.append(reason)

    updater = LimitsUpdater(state, node.slots, ignore, ignore, lambda uuid: 0)
    held = Claims((share_claim(D0),), 2.0)

    async def ask() -> Claims:
        return held

    def plan(now: float, *pods: Pod) -> None:
        state.replan(snapshot(now, [*pods, share()], [card_claim(), *held.all]))
        updater.update()

    async def check(slots: object, uuids: object) -> None:
        plan(3.0, *([] if lost else [shadow(carve=carve(memory=GIB))]))

    plan(1.0, shadow())
    prestart = PreStart(
        state,
        node.slots,
        ask,
        lambda: (),
        ignore,
        ignore,
        ContextCosts(node.folder / "contexts", state, AsyncMock(return_value=0)),
        node.minors,
        check,
    )
    if lost:
        with pytest.raises(StartRefused, match="so its card is lost"):
            await prestart.prepare(RESOURCE, [D0])
    else:
        await prestart.prepare(RESOURCE, [D0])
    updater.update()
    found = limits_file.read(slot.limits).cards[0]
    if lost:
        assert (found.compute_mode, found.memory_limit) == (layout.COMPUTE_STOPPED, 0)
    else:
        assert found.memory_limit == GIB


async def test_no_start_overtakes_another_one_with_the_same_device(node: Node) -> None:
    """A container with two devices is found alone, and waits, say for the container runtime. Then
    the kubelet gives one of its devices to another pod, which nothing would replace."""
    first, second = share("first", controller="ReplicaSet"), share("second")
    claims = [share_claim(D0, D1, pod="first")]
    state = AgentState()
    held = [share_claim(D0, D1, pod="first"), share_claim(D1, pod="second")]
    state.replan(snapshot(1.0, [shadow(), first, second], [card_claim(), *held]))
    for one in held:
        node.slots.create(RESOURCE, one.ids, 0.0)

    async def ask() -> Claims:
        return Claims(tuple(claims), 2.0)

    async def check(slots: object, uuids: object) -> None:
        if len(claims) == 1:
            claims.append(held[1])
            with pytest.raises(NotYet, match="is just starting"):
                await prestart.prepare(RESOURCE, [D1])

    told: list[str] = []

    def tell(owner: Owner, reason: str, note: str, warning: bool = False) -> None:
        told.append(f"{owner.pod} {reason}")

    prestart = PreStart(
        state,
        node.slots,
        ask,
        lambda: (),
        tell,
        tell,
        ContextCosts(node.folder / "contexts", state, AsyncMock(return_value=0)),
        node.minors,
        check,
    )
    await prestart.prepare(RESOURCE, [D0, D1])
    with pytest.raises(StartRefused, match="pod team-a/second gives way"):
        await prestart.prepare(RESOURCE, [D1])
    assert told == ["first DeviceGranted", "second DeviceGivenTwice"]


class TestInitContainersOfOthers:
    """Only the kubelet's record names them."""

    POD = share(init_containers=frozenset({"prepare"}))

    def away(self) -> tuple[Entry, ...]:
        raise KubeletAway("not in the format that is known")

    @pytest.mark.parametrize("before", [None, OWNER, replace(OWNER, container="prepare")])
    async def test_are_not_looked_for_where_the_device_was_given_once(
        self, node: Node, before: Owner | None
    ) -> None:
        """The record is large where many containers are, and its format may change."""
        node.records = self.away
        node.slot(before)
        if before is not None and before != OWNER:
            node.slot(created=1.0)
        await node.start(share_claim(D0), pod=self.POD)
        assert node.warnings == []

    async def test_are_left_out_while_the_record_cannot_be_read(self, node: Node) -> None:
        """An earlier pod's slot is still there."""
        node.records = self.away
        node.slot(Owner("team-a", "earlier", "uid-earlier", "main"))
        node.slot(created=1.0)
        await node.start(share_claim(D0), pod=self.POD)
        assert node.told == ["DeviceGranted"]

    @pytest.mark.parametrize("started", [True, False])
    async def test_take_turns_with_several_of_their_own_pod(
        self, node: Node, started: bool
    ) -> None:
        """Also when the pod's sandbox was lost, and all its containers start again."""
        node.recorded = tuple(
            Entry("uid-share", name, RESOURCE, frozenset(ids), frozenset())
            for name, ids in {"prepare": [D0, D1], "main": [D0], "side": [D1]}.items()
        )
        for entry in node.recorded:
            made = node.slots.create(RESOURCE, entry.ids, 0.0)
            if started:
                node.slots.assign(made, replace(OWNER, container=entry.container))
        claims = share_claim(D0), replace(share_claim(D1), container="side")
        await node.start(*claims, pod=self.POD, ids=[D0, D1])
        assert node.warnings == []


async def test_none_of_two_starts_whom_only_the_kubelets_record_names(node: Node) -> None:
    node.slot()
    node.recorded = tuple(
        Entry(uid, "main", RESOURCE, frozenset([D0]), frozenset()) for uid in ("uid-a", "uid-b")
    )
    with pytest.raises(StartRefused, match="pod team-a/b gives way"):
        await node.start(share_claim(D1, pod="c"), pods=[share("a"), share("b")], ids=[D0])


async def test_two_pods_of_one_name_are_two(node: Node) -> None:
    """A static pod and one from the API server, of which the watch has one."""
    node.slot()
    with pytest.raises(StartRefused, match="to 2 containers: pod team-a/share gives way"):
        await node.start(share_claim(D0), share_claim(D0))
