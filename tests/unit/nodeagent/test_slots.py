"""Slots: made, found again, given an owner, and forgotten only when nobody can use them."""

import json
from pathlib import Path

import pytest

from mizar_nodeagent import checkpoint
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.slot_gc import GRACE_S, recorded_slots, unused_slots
from mizar_nodeagent.container.slots import Owner, Slots, is_slot_path
from mizar_nodeagent.errors import ConfigRefused, KubeletAway
from mizar_nodeagent.kubelet import checkpoint_file
from mizar_nodeagent.kubelet.checkpoint_file import Entry
from mizar_nodeagent.planning.plan import plan
from unit.nodeagent.makers import (
    RESOURCE,
    SHADOW,
    card_claim,
    device,
    shadow,
    share,
    share_claim,
    snapshot,
)

D0, D1 = device(0), device(1)
OWNER = Owner("team-a", "share", "uid-share", "main")


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    source = tmp_path / "libmizar.so"
    source.write_bytes(b"the shim")
    made = Slots(tmp_path / "slots", shim_install.install(source, tmp_path))
    made.load(0.0)
    return made


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

    def test_when_another_pod_holds_its_devices(self, slots: Slots) -> None:
        slots.assign(slots.create(RESOURCE, [D0], 1.0), OWNER)
        assert self.left(slots, [share_claim(D0, pod="other")]) == 1

    def test_not_while_the_kubelets_record_names_it_for_a_living_pod(self, slots: Slots) -> None:
        slot = slots.create(RESOURCE, [D0], 1.0)
        entries = [entry(slot.name, slots.root)]
        recorded = recorded_slots(entries, [share()], slots.root)
        assert self.left(slots, [], recorded) == 0
        assert recorded_slots(entries, [share(ended=True)], slots.root) == {}
        assert recorded_slots(entries, [], slots.root) == {}


def test_only_a_slots_own_limits_tell_its_name() -> None:
    root = Path("/var/lib/mizar/slots")
    assert is_slot_path(root, "/var/lib/mizar/slots/a/limits") == "a"
    assert is_slot_path(root, "/var/lib/mizar/slots/a/usage") is None
    assert is_slot_path(root, "/elsewhere/a/limits") is None


def test_the_kubelets_record_may_be_missing_or_damaged(tmp_path: Path) -> None:
    for content in (None, "", "{}", '{"Data": {"PodDeviceEntries": [1]}}'):
        if content is not None:
            (tmp_path / checkpoint_file.FILE).write_text(content)
        with pytest.raises(KubeletAway):
            checkpoint_file.read(tmp_path)
    (tmp_path / checkpoint_file.FILE).write_text('{"Data": {"PodDeviceEntries": null}}')
    assert checkpoint_file.read(tmp_path) == ()


class TestCheckpoint:
    def test_is_read_as_written(self, tmp_path: Path) -> None:
        carvings = plan({}, snapshot(1, [shadow()], [card_claim()])).carvings
        path = tmp_path / "checkpoint.json"
        path.write_bytes(checkpoint.to_bytes(carvings))
        loaded = checkpoint.load(path, 7.0)
        assert loaded[SHADOW].cards == carvings[SHADOW].cards
        assert loaded[SHADOW].since == 7.0
        assert checkpoint.to_bytes(loaded) == checkpoint.to_bytes(carvings)

    @pytest.mark.parametrize("damage", ["{", "{}", '{"version": 9}', '{"version": 1}'])
    def test_a_damaged_one_is_set_aside(self, tmp_path: Path, damage: str) -> None:
        path = tmp_path / "checkpoint.json"
        path.write_text(damage)
        assert checkpoint.load(path, 0.0) == {}
        assert path.with_suffix(".damaged").exists() and not path.exists()

    def test_a_changed_byte_is_noticed(self, tmp_path: Path) -> None:
        carvings = plan({}, snapshot(1, [shadow()], [card_claim()])).carvings
        path = tmp_path / "checkpoint.json"
        path.write_bytes(checkpoint.to_bytes(carvings).replace(b"Serving", b"Drained"))
        assert checkpoint.load(path, 0.0) == {}


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
        before = [path.stat().st_ino for path in (first.library, first.preload)]
        again = shim_install.install(source, tmp_path / "state")
        assert [path.stat().st_ino for path in (again.library, again.preload)] == before

    def test_a_missing_shim_is_an_error_at_start(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigRefused, match="shimPath"):
            shim_install.install(tmp_path / "none", tmp_path)
