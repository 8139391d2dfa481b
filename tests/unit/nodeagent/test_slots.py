"""Slots: made, found again, given an owner, and forgotten only when no container can use them."""

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest

from mizar_nodeagent import agent_checkpoint, files
from mizar_nodeagent.card_health import KnownHealth
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.shim_install import PRELOAD
from mizar_nodeagent.container.slot_gc import GRACE_S, unused_slots
from mizar_nodeagent.container.slots import Owner, Slots, slot_of_path
from mizar_nodeagent.container.spare_slots import SPARES
from mizar_nodeagent.container.used_slots import recorded_slots
from mizar_nodeagent.errors import ConfigRefused, KubeletAway
from mizar_nodeagent.kubelet import device_checkpoint
from mizar_nodeagent.kubelet.device_checkpoint import Entry
from mizar_nodeagent.planning.carving import DrainStage
from mizar_nodeagent.planning.plan import plan
from mizar_nodeagent.pods import Key
from mizar_nodeagent.regions import layout
from mizar_nodeagent.spot.loan import REST_MAX_S
from support.logs import logged
from support.waiting import until
from unit.nodeagent.makers import (
    CARD,
    RESOURCE,
    SHADOW,
    card,
    card_claim,
    device,
    full_disk,
    new_slots,
    shadow,
    share,
    share_claim,
    snapshot,
)

D0, D1 = device(0), device(1)
OWNER = Owner("team-a", "share", "uid-share", "main")


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    return new_slots(tmp_path)


def again(slots: Slots) -> Slots:
    """The slots that the next agent finds."""
    found = Slots(slots.root, slots.shim)
    found.load(99.0)
    return found


def test_a_slot_is_found_again_with_its_owner(slots: Slots) -> None:
    slot = slots.assign(slots.create(RESOURCE, [D1, D0], 5.0), OWNER)
    assert again(slots).of(RESOURCE, [D0, D1]) == [slot]
    assert again(slots).of(RESOURCE, [D0]) == []
    assert slot.name.startswith("shadow-2-aaaaa-0-") and len(slot.name) < 64


def test_the_folder_is_made_with_those_above_it_and_is_nobody_elses(tmp_path: Path) -> None:
    shim = tmp_path / "libmizar.so"
    shim.write_bytes(b"the shim")
    root = tmp_path / "lib" / "mizar" / "slots"
    for _ in range(2):
        Slots(root, shim_install.install(shim, tmp_path)).load(0.0)
    assert root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("shim", [True, False])
def test_whether_a_container_has_the_shim_is_remembered(slots: Slots, shim: bool) -> None:
    slots.create(RESOURCE, [D0], 5.0, shim=shim)
    assert [one.shim for one in again(slots).all()] == [shim]


def test_a_slot_of_before_there_was_a_choice_has_the_shim(slots: Slots) -> None:
    told = slots.create(RESOURCE, [D0], 5.0, shim=False).folder / "slot.json"
    body = json.loads(told.read_text())
    del body["shim"]
    told.write_text(json.dumps(body))
    assert [one.shim for one in again(slots).all()] == [True]


def test_names_of_long_shadow_pods_are_cut(slots: Slots) -> None:
    assert len(slots.create(RESOURCE, [f"team-a/{'x' * 200}-0"], 0.0).name) == 63


def test_a_slot_that_forgot_what_it_is_for_is_kept(slots: Slots) -> None:
    slot = slots.create(RESOURCE, [D0], 5.0)
    (slot.folder / "slot.json").write_text("")
    (found,) = again(slots).all()
    assert (found.ids, found.resource, found.created) == (frozenset(), "", 99.0)
    assert (found.name, found.folder, found.owner) == (slot.name, slot.folder, None)


def test_one_folder_for_each_allocation(slots: Slots) -> None:
    assert slots.create(RESOURCE, [D0], 1.0).name != slots.create(RESOURCE, [D0], 2.0).name


def test_a_slot_for_which_the_disk_has_no_room_comes_later(slots: Slots) -> None:
    with full_disk():
        slot = slots.create(RESOURCE, [D0], 1.0, minors={"GPU-1": 3}, by_nri=True, by_cdi=True)
        with pytest.raises(OSError, match="No space left"):
            slots.complete(slot)
        assert list(slots.root.iterdir()) == [], "a try that failed leaves nothing"
    slots.complete(slot)
    (found,) = again(slots).all()
    assert (found, found.minors) == (slot, {"GPU-1": 3})
    assert {path.name for path in slot.folder.iterdir()} == {
        *("limits", "usage", "libmizar.so", "ld.so.preload", "slot.json")
    }


def test_a_slot_gets_files_that_were_made_before(slots: Slots) -> None:
    """The kubelet waits for the slot, and each new file may take half a millisecond."""
    asyncio.run(slots.spares.fill())
    spare = slots.shim.library.parent / "spare"
    made = {path.stat().st_ino for path in (*spare.iterdir(), *spare.glob("*/*"))}
    both = [slots.create(RESOURCE, [one], 1.0) for one in (D0, D1)]
    used = [p.stat().st_ino for one in both for p in (one.folder, *one.folder.iterdir())]
    assert len(set(used)) == len(used) == 12
    assert set(used) <= made
    assert again(slots).all() == both


def test_files_that_were_made_before_are_as_a_container_needs_them(slots: Slots) -> None:
    asyncio.run(slots.spares.fill())
    slot = slots.create(RESOURCE, [D0], 1.0)
    modes = {path.name: path.stat().st_mode & 0o777 for path in slot.folder.iterdir()}
    assert (slot.library.read_bytes(), slot.folder.stat().st_mode & 0o777) == (b"the shim", 0o755)
    assert modes | {"slot.json": 0} == {
        **{"limits": 0o644, "usage": 0o666, "libmizar.so": 0o755, "ld.so.preload": 0o644},
        "slot.json": 0,
    }


async def test_files_that_an_earlier_agent_made_before_are_of_no_use(slots: Slots) -> None:
    """They may be of another version."""
    await slots.spares.fill()
    spare = slots.shim.library.parent / "spare"
    old = {path.name for path in spare.iterdir()}
    running = asyncio.create_task(again(slots).spares.run())

    def all_are_new() -> bool:
        names = {path.name for path in spare.iterdir()} if spare.exists() else set()
        return len(names) == SPARES and not names & old

    await until(all_are_new)
    running.cancel()


def test_a_slot_gets_the_shim_when_nothing_made_before_is_left(slots: Slots) -> None:
    asyncio.run(slots.spares.fill())
    made = [slots.create(RESOURCE, [D0], 1.0) for _ in range(SPARES + 1)]
    assert {one.library.read_bytes() for one in made} == {b"the shim"}


@pytest.mark.parametrize("lost", ["limits", "usage", "libmizar.so", "ld.so.preload"])
@pytest.mark.parametrize("folder", [False, True])
def test_a_file_that_an_agent_did_not_live_to_make_is_made_before_a_start(
    slots: Slots, lost: str, folder: bool
) -> None:
    """For a path that is not there, the runtime makes a folder to mount."""
    slot = slots.create(RESOURCE, [D0], 1.0)
    whole = {path.name: path.read_bytes() for path in slot.folder.iterdir()}
    (slot.folder / lost).unlink()
    if folder:
        (slot.folder / lost).mkdir()
    next_agents = again(slots)
    next_agents.complete(next_agents.all()[0])
    assert {path.name: path.read_bytes() for path in slot.folder.iterdir()} == whole


@pytest.mark.parametrize("left", [b"", b"the "])
def test_a_shim_of_which_a_power_cut_left_the_beginning_is_made_again(
    slots: Slots, left: bytes
) -> None:
    """The dynamic loader skips a library that is cut off, and the program runs without limits."""
    slot = slots.create(RESOURCE, [D0], 1.0)
    slot.library.write_bytes(left)
    next_agents = again(slots)
    next_agents.complete(next_agents.all()[0])
    assert (slot.library.read_bytes(), slot.library.stat().st_mode & 0o777) == (b"the shim", 0o755)


def test_the_shim_of_an_earlier_agent_stays(slots: Slots) -> None:
    """It belongs to the version of the slot's other files, and a container may have it mounted."""
    slot = slots.create(RESOURCE, [D0], 1.0)
    slot.library.write_bytes(b"old one")
    slots.complete(slot)
    assert slot.library.read_bytes() == b"old one"


@pytest.mark.parametrize("out", [False, True])
def test_what_loads_the_shim_is_as_the_slot_says(slots: Slots, out: bool) -> None:
    """An agent may end between writing the one and the other."""
    slot = slots.opt_out(slots.create(RESOURCE, [D0], 1.0), out)
    before, node = slot.preload.read_bytes(), slot.preload.stat().st_ino
    slot.preload.write_bytes(PRELOAD if out else b"")
    slots.complete(slot)
    assert slot.preload.read_bytes() == before == (b"" if out else PRELOAD)
    assert slot.preload.stat().st_ino == node, "a container may have it mounted"


def test_half_a_copy_of_the_shim_is_none(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(source: Path, target: Path) -> None:
        target.write_bytes(b"the")
        raise OSError(28, "No space left")

    monkeypatch.setattr(shutil, "copyfile", half)
    with pytest.raises(OSError, match="No space left"):
        slots.shim.copy_library(slots.root / "libmizar.so")
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(slots.spares.fill())
    assert list(slots.root.iterdir()) == []
    assert list((slots.shim.library.parent / "spare").iterdir()) == []


def test_a_lease_on_what_loads_the_shim_holds_up_no_start(slots: Slots) -> None:
    """Root in the container could hold one, and the agent would wait for 45 s."""
    slot = slots.create(RESOURCE, [D0], 1.0)
    tenant = os.open(slot.preload, os.O_RDONLY)
    fcntl.fcntl(tenant, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with pytest.raises(BlockingIOError):
            slots.complete(slot)
    finally:
        os.close(tenant)


def test_a_slot_that_is_whole_is_left_alone(slots: Slots) -> None:
    slot = slots.create(RESOURCE, [D0], 1.0)
    with full_disk():
        slots.complete(slot)
    assert slots.of(RESOURCE, [D0]) == [slot]


def test_files_that_are_mapped_have_all_their_blocks(slots: Slots) -> None:
    """If the disk is full by then, the kernel ends a process that writes to a block that is not
    there."""
    slot = slots.create(RESOURCE, [D0], 1.0)
    for path, size in ((slot.usage, layout.USAGE_SIZE), (slot.limits, layout.LIMITS_SIZE)):
        status = path.stat()
        assert (status.st_size, status.st_blocks * 512 >= size) == (size, True)


def entry(slot: str, root: Path, uid: str = "uid-share") -> Entry:
    return Entry(uid, "main", RESOURCE, frozenset([D0]), frozenset([f"{root}/{slot}/limits"]))


class TestForgetting:
    def left(
        self, slots: Slots, claims: list[object], known: dict[str, Entry] | None = None
    ) -> int:
        later = GRACE_S + 10
        return len(unused_slots(slots.all(), known or {}, claims, later))  # type: ignore[arg-type]

    def test_nobody_speaks_for_it(self, slots: Slots) -> None:
        slots.create(RESOURCE, [D0], 1.0)
        assert self.left(slots, []) == 1

    def test_not_while_it_is_young(self, slots: Slots) -> None:
        slots.create(RESOURCE, [D0], GRACE_S)
        assert self.left(slots, []) == 0

    def test_not_while_its_pod_holds_a_device_of_it(self, slots: Slots) -> None:
        slots.assign(slots.create(RESOURCE, [D0], 1.0), OWNER)
        assert self.left(slots, [share_claim(D0)]) == 0

    def test_not_while_it_may_be_the_holders(self, slots: Slots) -> None:
        slots.create(RESOURCE, [D0], 1.0)
        assert self.left(slots, [share_claim(D0, pod="other")]) == 0

    @pytest.mark.parametrize("other", [{"pod": "other"}, {"namespace": "team-b"}])
    def test_when_another_pod_holds_its_devices(self, slots: Slots, other: dict[str, Any]) -> None:
        slots.assign(slots.create(RESOURCE, [D0], 1.0), OWNER)
        assert self.left(slots, [replace(share_claim(D0), **other)]) == 1

    def test_not_while_it_is_young_and_its_boot_is_not_known(self, slots: Slots) -> None:
        """An agent that did not know the boot made it."""
        slots.create(RESOURCE, [D0], 1.0)
        assert unused_slots(slots.all(), {}, [], 2.0, boot="now") == []

    def test_when_any_recorded_slot_of_the_device_is_the_holders(self, slots: Slots) -> None:
        """Such as an init container's, beside that of a container that has not started yet."""
        left, prepare, main = (slots.create(RESOURCE, [D0], float(at)) for at in range(3))
        left, prepare = slots.assign(left, OWNER), slots.assign(prepare, OWNER)
        entries = [entry(one.name, slots.root) for one in (prepare, main)]
        recorded = recorded_slots(entries, [share()], slots.root)
        assert unused_slots(slots.all(), recorded, [share_claim(D0)], 3.0) == [left]

    def test_not_while_the_kubelets_record_names_it_for_a_living_pod(self, slots: Slots) -> None:
        slot = slots.create(RESOURCE, [D0], 1.0)
        entries = [entry(slot.name, slots.root)]
        recorded = recorded_slots(entries, [share()], slots.root)
        assert self.left(slots, [], recorded) == 0
        assert recorded_slots(entries, [share(ended=True)], slots.root) == {}
        assert recorded_slots(entries, [], slots.root) == {}


def test_only_a_slots_own_limits_tell_its_name() -> None:
    root = Path("/var/lib/mizar/slots")
    assert slot_of_path(root, "/var/lib/mizar/slots/a/limits") == "a"
    assert slot_of_path(root, "/var/lib/mizar/slots/a/usage") is None
    assert slot_of_path(root, "/elsewhere/a/limits") is None


def test_the_kubelets_record_may_be_missing_or_damaged(tmp_path: Path) -> None:
    for content in (None, "", "{}", '{"Data": {"PodDeviceEntries": [1]}}'):
        if content is not None:
            (tmp_path / device_checkpoint.FILE).write_text(content)
        with pytest.raises(KubeletAway):
            device_checkpoint.read(tmp_path)
    (tmp_path / device_checkpoint.FILE).write_text('{"Data": {"PodDeviceEntries": null}}')
    assert device_checkpoint.read(tmp_path) == ()


def without_reserve(folder: Path) -> None:
    """The disk had no room to reserve."""
    for file in folder.glob("checkpoint.reserve-*"):
        file.unlink()


class TestCheckpoint:
    CARVINGS = plan({}, snapshot(1, [shadow()], [card_claim()])).carvings
    HEALTH: ClassVar = {CARD: KnownHealth(links=4, signs=("LinkDown",))}
    KNOWN = agent_checkpoint.Checkpoint(CARVINGS, {CARD: 79}, {CARD: (3.0, 5.5)}, HEALTH)

    def written(self, folder: Path, boot: str = "this", **body: Any) -> Path:
        path = folder / "checkpoint.json"
        content = json.loads(agent_checkpoint.to_bytes(self.KNOWN, boot))
        path.write_text(json.dumps(content | body))
        return path

    async def test_is_removed_if_it_is_outdated_and_cannot_be_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another agent would at once offer devices of a shadow pod whose card is another one's by
        now, and leave held devices out of its first lists."""
        path, full = self.written(tmp_path), OSError(errno.ENOSPC, "No space left on device")
        kept = agent_checkpoint.CheckpointFile(
            path, "this", agent_checkpoint.load(path, 7.0, "this")
        )
        with monkeypatch.context() as patch:
            patch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=full))
            await kept.keep(replace(self.KNOWN, faults={}))
            await kept.write()
            assert path.exists(), "it names the same shadow pods and cards"
            other = replace(self.CARVINGS[SHADOW], pod_uid="uid-of-another")
            await kept.keep(replace(self.KNOWN, carvings={SHADOW: other}))
            await kept.write()
            assert not path.exists()
        await kept.write()
        loaded = agent_checkpoint.load(path, other.since, "this")
        assert loaded.carvings == {SHADOW: other}

    @pytest.mark.parametrize("change", [{"pod_uid": "uid-of-another"}, {"cards": (card(2),)}])
    async def test_is_written_again_after_it_was_removed(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        change: dict[str, Any],
    ) -> None:
        path, full = tmp_path / "checkpoint.json", OSError(errno.ENOSPC, "No space left on device")
        kept = agent_checkpoint.CheckpointFile(path, "this")
        longer = replace(self.KNOWN, taken_back={CARD: (1.0, 2.0, 3.0, 4.0)})
        other = replace(longer, carvings={SHADOW: replace(self.CARVINGS[SHADOW], **change)})
        for _ in range(2):
            await kept.keep(self.KNOWN)
            await kept.write()
            assert agent_checkpoint.load(path, 7.0, "this").faults == self.KNOWN.faults
            without_reserve(tmp_path)
            with monkeypatch.context() as patch:
                patch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=full))
                for known, stays in ((longer, True), (other, False)):
                    await kept.keep(known)
                    await kept.write()
                    assert path.exists() == stays
        assert [one.levelname for one in caplog.records].count("ERROR") == 2, "one each time"

    async def test_is_rewritten_where_it_is_if_it_is_outdated_and_the_disk_is_full(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The disk was full already when this agent started and found no room to reserve. Its
        carvings are needed if the kubelet has lost its record: only they know the cards."""
        other = replace(self.CARVINGS[SHADOW], name="other", pod_uid="uid-other")
        kept = agent_checkpoint.CheckpointFile(tmp_path / "checkpoint.json", "this")
        await kept.keep(replace(self.KNOWN, carvings={**self.CARVINGS, other.key: other}))
        await kept.write()
        without_reserve(tmp_path)
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=full))
        await kept.keep(self.KNOWN)
        await kept.write()
        loaded = agent_checkpoint.load(tmp_path / "checkpoint.json", 7.0, "this")
        assert loaded.carvings == {SHADOW: replace(self.CARVINGS[SHADOW], since=7.0)}
        assert loaded.faults == self.KNOWN.faults

    async def test_saves_a_promise_where_it_is_if_that_has_its_size(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also a power cut leaves it then."""
        drained = replace(self.CARVINGS[SHADOW], stage=DrainStage.DRAINED)
        other = replace(drained, pod_uid=drained.pod_uid[::-1])
        kept = agent_checkpoint.CheckpointFile(tmp_path / "checkpoint.json", "this")
        await kept.keep(replace(self.KNOWN, carvings={SHADOW: drained}))
        without_reserve(tmp_path)
        path, full = tmp_path / "checkpoint.json", OSError(errno.ENOSPC, "No space left on device")
        synced = list[bytes]()
        monkeypatch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=full))
        monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_bytes()))
        assert not await kept.keep(replace(self.KNOWN, carvings={SHADOW: other}))
        assert synced == [path.read_bytes()]
        loaded = agent_checkpoint.load(path, other.since, "this")
        assert loaded.carvings == {SHADOW: other}

    async def test_that_was_replaced_in_spite_of_an_error_is_written_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The folder could not be synced, after which all is as it was before the replacement."""
        kept = agent_checkpoint.CheckpointFile(tmp_path / "checkpoint.json", "this")
        kept.reserve()
        await kept.keep(self.KNOWN)
        await kept.write()
        with monkeypatch.context() as patch:
            patch.setattr(files, "_sync_folder", Mock(side_effect=OSError(errno.EIO, "no")))
            await kept.keep(replace(self.KNOWN, faults={}))
            await kept.write()
        await kept.keep(self.KNOWN)
        await kept.write()
        loaded = agent_checkpoint.load(tmp_path / "checkpoint.json", 7.0, "this")
        assert loaded.faults == self.KNOWN.faults

    async def test_goes_on_growing_on_a_full_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A shadow pod comes, another one's drain is completed. What there was no room for is lost
        if agent and kubelet's record are: running shadow pods were never carved again."""
        path = tmp_path / "checkpoint.json"
        kept = agent_checkpoint.CheckpointFile(path, "this")
        kept.reserve()
        await kept.keep(self.KNOWN)
        await kept.write()
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=full))
        known = dict(self.CARVINGS)
        for number in range(8):
            other = replace(known[SHADOW], name=f"other-{number}", stage=DrainStage.DRAINED)
            known[other.key] = other
            assert not await kept.keep(replace(self.KNOWN, carvings=dict(known)))
            assert agent_checkpoint.load(path, other.since, "this").carvings == known
        assert [line["event"] for line in logged(caplog)] == [
            "the checkpoint is written into its reserved room"
        ]

    async def test_has_room_from_the_first_one_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also one that has grown larger than what the agent reserved when it started."""
        path = tmp_path / "checkpoint.json"
        kept = agent_checkpoint.CheckpointFile(path, "this")
        many = {f"GPU-{number:0200}": 79 for number in range(1000)}
        await kept.keep(replace(self.KNOWN, faults=many))
        await kept.write()
        full = OSError(errno.EDQUOT, "Disk quota exceeded")
        monkeypatch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=full))
        more = many | {f"MIG-{number:0200}": 79 for number in range(500)}
        await kept.keep(replace(self.KNOWN, faults=more))
        await kept.write()
        assert agent_checkpoint.load(path, 7.0, "this").faults == more

    async def test_whose_removal_breaks_no_promise_and_allows_new_ones(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a file, another agent offers nothing of a shadow pod whose drain is asked for: a
        completed drain stays reported, and others are completed on a full disk."""
        drained = replace(self.CARVINGS[SHADOW], stage=DrainStage.DRAINED)
        before = replace(self.KNOWN, carvings={SHADOW: drained})
        path = tmp_path / "checkpoint.json"
        kept = agent_checkpoint.CheckpointFile(path, "this")
        assert not await kept.keep(before)
        without_reserve(tmp_path)
        write = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        monkeypatch.setattr(agent_checkpoint, "write_atomically", write)
        other = replace(drained, name="other", stage=DrainStage.BLOCKED)
        await kept.keep(replace(before, carvings={SHADOW: drained, other.key: other}))
        await kept.write()
        assert not path.exists()
        both = {SHADOW: drained, other.key: replace(other, stage=DrainStage.DRAINED)}
        assert not await kept.keep(replace(before, carvings=both))

    async def test_promises_what_it_has_and_no_more_if_it_cannot_be_changed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also not the same of another pod of the shadow pod, nor a drain that is not complete."""
        drained = replace(self.CARVINGS[SHADOW], stage=DrainStage.DRAINED)
        path, broken = tmp_path / "checkpoint.json", OSError(errno.EROFS, "Read-only file system")
        before = replace(self.KNOWN, carvings={SHADOW: drained})
        path.write_bytes(agent_checkpoint.to_bytes(before, "this"))
        kept = agent_checkpoint.CheckpointFile(
            path, "this", agent_checkpoint.load(path, 7.0, "this")
        )
        monkeypatch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=broken))
        for name in ("open", "unlink"):
            monkeypatch.setattr(Path, name, Mock(side_effect=broken))
        assert not await kept.keep(replace(before, faults={}))
        other = replace(drained, pod_uid="uid-of-another")
        for stage, unsaved in ((DrainStage.BLOCKED, set[Key]()), (DrainStage.DRAINED, {SHADOW})):
            carvings = {SHADOW: replace(other, stage=stage)}
            assert await kept.keep(replace(before, carvings=carvings)) == unsaved

    async def test_logs_once_that_it_cannot_be_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Such as on a file system that the kernel made read-only: each plan tries again while a
        drain is to be completed."""
        path, broken = self.written(tmp_path), OSError(errno.EROFS, "Read-only file system")
        kept = agent_checkpoint.CheckpointFile(
            path, "this", agent_checkpoint.load(path, 7.0, "this")
        )
        monkeypatch.setattr(agent_checkpoint, "write_atomically", Mock(side_effect=broken))
        monkeypatch.setattr(Path, "unlink", Mock(side_effect=broken))
        other = replace(self.CARVINGS[SHADOW], pod_uid="uid-of-another", stage=DrainStage.DRAINED)
        for _ in range(3):
            assert await kept.keep(replace(self.KNOWN, carvings={SHADOW: other})) == {SHADOW}
        assert [one.levelname for one in caplog.records].count("ERROR") == 2

    def test_is_read_as_written(self, tmp_path: Path) -> None:
        loaded = agent_checkpoint.load(self.written(tmp_path), 7.0, "this")
        assert loaded.carvings == {SHADOW: replace(self.CARVINGS[SHADOW], since=7.0)}
        assert loaded.faults == {CARD: 79}
        assert loaded.taken_back == {CARD: (3.0, 5.5)}
        assert loaded.health == self.HEALTH

    def test_no_card_rests_for_longer_than_any_does(self, tmp_path: Path) -> None:
        loaded = agent_checkpoint.load(self.written(tmp_path), 4.0 - REST_MAX_S, "this")
        assert loaded.taken_back == {CARD: (3.0, 4.0)}

    @pytest.mark.parametrize(("then", "now"), [("that", "this"), ("", "")])
    def test_of_another_boot_nothing_is_certain(self, tmp_path: Path, then: str, now: str) -> None:
        loaded = agent_checkpoint.load(self.written(tmp_path, then), 7.0, now)
        assert not loaded.carvings[SHADOW].confirmed
        assert not loaded.faults
        assert not loaded.taken_back
        assert not loaded.health

    @pytest.mark.parametrize("version", [2, 3])
    def test_one_of_a_version_before_is_read(self, tmp_path: Path, version: int) -> None:
        """As agents wrote it that did not keep when cards were taken back, or the cards' health."""
        saved = {
            "boot": "this",
            "carvings": [one.to_dict() for one in self.CARVINGS.values()],
            "faults": {CARD: 79},
        }
        if version == 3:
            saved["takenBack"] = {CARD: [1.0]}
        digest = hashlib.sha256(json.dumps(saved, sort_keys=True).encode()).hexdigest()
        path = tmp_path / "checkpoint.json"
        path.write_text(json.dumps({"version": version, "checksum": digest, **saved}))
        loaded = agent_checkpoint.load(path, 7.0, "this")
        assert loaded.carvings[SHADOW].confirmed
        taken_back = {CARD: (1.0,)} if version == 3 else {}
        assert (loaded.faults, loaded.taken_back, loaded.health) == ({CARD: 79}, taken_back, {})

    def test_one_of_the_first_version_is_read(self, tmp_path: Path) -> None:
        saved = [one.to_dict() for one in self.CARVINGS.values()]
        for one in saved:
            del one["confirmed"]
            one["cards"][0]["minor"] = 0
        digest = hashlib.sha256(json.dumps(saved, sort_keys=True).encode()).hexdigest()
        path = tmp_path / "checkpoint.json"
        path.write_text(json.dumps({"version": 1, "checksum": digest, "carvings": saved}))
        loaded = agent_checkpoint.load(path, 7.0, "this")
        assert loaded.carvings[SHADOW].cards == self.CARVINGS[SHADOW].cards
        assert not loaded.carvings[SHADOW].confirmed

    @pytest.mark.parametrize(
        "damage", ["{", "{}", "[]", "7", "null", '{"version": 5}', '{"version": 1}', "[" * 10**5]
    )
    def test_a_damaged_one_is_set_aside(
        self, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "checkpoint.json"
        path.write_text(damage)
        assert agent_checkpoint.load(path, 0.0, "this") == agent_checkpoint.Checkpoint()
        aside = path.with_suffix(".damaged")
        assert aside.read_text() == damage and not path.exists()
        (line,) = logged(caplog)
        assert (line["path"], line["copy"]) == (path, aside)

    @pytest.mark.parametrize(
        "carving", [{"cards": [1]}, {"idleSince": 7}, {"carve": None}, {"stage": "?"}, "?", None]
    )
    def test_what_is_whole_but_means_nothing_is_set_aside(
        self, tmp_path: Path, carving: Any
    ) -> None:
        known = self.CARVINGS[SHADOW].to_dict()
        saved = {
            "boot": "this",
            "carvings": [known | carving if isinstance(carving, dict) else carving],
            "faults": {},
            "health": {},
            "takenBack": {},
        }
        digest = hashlib.sha256(json.dumps(saved, sort_keys=True).encode()).hexdigest()
        path = self.written(tmp_path, checksum=digest, **saved)
        assert agent_checkpoint.load(path, 0.0, "this") == agent_checkpoint.Checkpoint()
        assert path.with_suffix(".damaged").exists() and not path.exists()

    def test_that_cannot_be_set_aside_keeps_nobody_from_starting(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint.json"
        path.write_text("{")
        path.with_suffix(".damaged").mkdir()
        assert agent_checkpoint.load(path, 0.0, "this") == agent_checkpoint.Checkpoint()

    @pytest.mark.parametrize(
        ("one", "other"),
        [(b"Serving", b"Drained"), (b" 79", b" 48"), (b"this", b"that"), (b"5.5", b"5.6")],
    )
    def test_a_changed_byte_is_noticed(self, tmp_path: Path, one: bytes, other: bytes) -> None:
        path = self.written(tmp_path)
        path.write_bytes(path.read_bytes().replace(one, other))
        assert agent_checkpoint.load(path, 0.0, "this") == agent_checkpoint.Checkpoint()


class TestShim:
    def test_no_two_containers_share_a_file(self, slots: Slots) -> None:
        one, two = (slots.create(RESOURCE, [D0], 1.0) for _ in range(2))
        for slot in (one, two):
            assert slot.library.read_bytes() == b"the shim"
            assert slot.preload.read_bytes() == shim_install.PRELOAD
            modes = [path.stat().st_mode & 0o777 for path in (slot.library, slot.preload)]
            assert modes == [0o755, 0o644]
        assert not one.library.samefile(two.library)
        assert not one.preload.samefile(two.preload)

    def test_each_version_is_a_file_of_its_own(self, tmp_path: Path) -> None:
        source = tmp_path / "libmizar.so"
        paths = []
        for content in (b"one", b"two", b"one"):
            source.write_bytes(content)
            paths.append(shim_install.install(source, tmp_path / "state").library)
        assert paths[0] == paths[2] != paths[1]
        assert [path.read_bytes() for path in paths[:2]] == [b"one", b"two"]

    def test_what_is_mounted_is_not_replaced(self, tmp_path: Path) -> None:
        source = tmp_path / "libmizar.so"
        source.write_bytes(b"one")
        first = shim_install.install(source, tmp_path / "state")
        before = first.library.stat().st_ino
        again = shim_install.install(source, tmp_path / "state")
        assert again.library.stat().st_ino == before

    def test_a_missing_shim_is_an_error_at_start(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigRefused, match="shimPath"):
            shim_install.install(tmp_path / "none", tmp_path)
