"""How the agent learns that the owners of a card come, go, work or sleep."""

import ctypes
import os
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import Mock

import pytest

from mizar_nodeagent.cards import ProcessLoad
from mizar_nodeagent.container.slots import Owner, Slot
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.regions import layout, usage_file, usage_snapshot
from mizar_nodeagent.spot.detectors.card_processes import (
    BLIND_QUERIES,
    BLIND_S,
    SAMPLED_S,
    ProcessDetector,
)
from mizar_nodeagent.spot.detectors.owner_pods import OwnerPodDetector
from mizar_nodeagent.spot.detectors.pod_starts import PodStartDetector
from mizar_nodeagent.spot.detectors.usage_files import QUIET_S, UsageDetector
from mizar_nodeagent.spot.owner_events import OwnerEvent, PodIdentity
from mizar_nodeagent.spot.owners import CardOwner
from unit.nodeagent.makers import CARD, CONTAINER_ID, GIB, UID, card, card_claim, snapshot
from unit.nodeagent.test_audit import put_process

SECOND = card(2).uuid
WHO = PodIdentity("team-a", "owner", UID)
OWNER = CardOwner(WHO, frozenset({CARD}), low_power=True)
OF_BOTH = CardOwner(WHO, frozenset({CARD, SECOND}), low_power=True)
POD = f"0::/kubepods/pod{UID}/{CONTAINER_ID}\n"
BORROWERS = "87654321" + UID[8:]


def said(events: Iterable[OwnerEvent]) -> list[str]:
    return [str(one.activity) for one in events]


def loads(percents: dict[int, int]) -> dict[int, ProcessLoad]:
    """What processes do that hold no memory, by PID."""
    return {pid: ProcessLoad(percent) for pid, percent in percents.items()}


def owner_pod(*containers: str, **changes: object) -> Pod:
    ids = tuple((one, "main") for one in containers)
    return Pod("team-a", "owner", UID, low_power=True, container_ids=ids, **changes)  # type: ignore[arg-type]


class TestOwnerPods:
    def test_an_owner_is_reported_once_when_it_comes_and_once_when_it_goes(self) -> None:
        detector = OwnerPodDetector()
        agrees = lambda owner, uuid: owner.low_power  # noqa: E731
        now = snapshot(1.0, [owner_pod()], [card_claim("owner")])
        (came,) = detector.look(now, {}, agrees)
        assert (came.activity, came.target, came.devices) == ("Alive", WHO, {CARD})
        assert came.agrees
        assert not [*detector.look(now, {}, agrees)]
        (went,) = detector.look(snapshot(2.0, [], []), {}, agrees)
        assert (went.activity, went.target) == ("Gone", WHO)

    def test_one_that_changes_its_mind_is_told_again(self) -> None:
        detector = OwnerPodDetector()
        now = snapshot(1.0, [owner_pod()], [card_claim("owner")])
        assert [one.agrees for one in detector.look(now, {}, lambda *_: False)] == [False]
        assert [one.agrees for one in detector.look(now, {}, lambda *_: True)] == [True]


class TestPodStarts:
    def test_a_pod_that_is_there_at_the_first_look_may_sleep_since_long(self) -> None:
        detector, pods = PodStartDetector(), {WHO.key: owner_pod("a")}
        assert said(detector.look([OWNER], pods, 1.0)) == ["Idle"]
        assert said(detector.look([OWNER], pods, 2.0)) == []

    def test_one_that_comes_or_starts_a_container_is_about_to_work(self) -> None:
        detector = PodStartDetector()
        assert said(detector.look([], {}, 1.0)) == []
        (busy, idle) = detector.look([OWNER], {WHO.key: owner_pod()}, 2.0)
        assert (busy.activity, idle.activity, idle.at) == ("Busy", "Idle", 2.0)
        assert said(detector.look([OWNER], {WHO.key: owner_pod("a")}, 3.0)) == ["Busy", "Idle"]
        assert said(detector.look([OWNER], {WHO.key: owner_pod()}, 4.0)) == []
        assert said(detector.look([OWNER], {WHO.key: owner_pod("a")}, 5.0)) == []


class TestUsageFiles:
    @pytest.fixture
    def slot(self, tmp_path: Path) -> Slot:
        usage_file.create(tmp_path / "usage")
        owner = Owner("team-a", "owner", UID, "main")
        return Slot("s", tmp_path, "r", frozenset({"d"}), 0.0, owner)

    def put(self, slot: Slot, offset: int, value: int, index: int = 0) -> None:
        place = layout.UsageHead.cards.offset + index * ctypes.sizeof(layout.UsageCard) + offset
        with slot.usage.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("<Q", value), place)

    def look(self, detector: UsageDetector, slot: Slot, now: float) -> OwnerEvent:
        (found,) = detector.look([OWNER], [slot], now)
        return found

    def test_a_container_that_asks_for_gpu_time_counts_as_busy(self, slot: Slot) -> None:
        detector = UsageDetector()
        assert self.look(detector, slot, 100.0).activity == "Idle"
        wanted = layout.UsageCard.compute.offset + layout.Compute.wanted_at.offset
        self.put(slot, wanted, 101 * 10**9, index=1)
        assert self.look(detector, slot, 101.1).activity == "Busy"
        found = self.look(detector, slot, 102.0)
        assert found.activity == "Idle" and 101 <= found.at <= 101.1

    def test_a_container_that_asked_for_gpu_time_just_before_the_agent_starts_counts_as_busy(
        self, slot: Slot
    ) -> None:
        """The first look has no earlier one to compare with."""
        wanted = layout.UsageCard.compute.offset + layout.Compute.wanted_at.offset
        self.put(slot, wanted, 100 * 10**9)
        found = self.look(UsageDetector(), slot, 100.1)
        assert (found.activity, found.at) == ("Busy", 100.0)

    @pytest.mark.parametrize(
        "offset",
        [
            layout.UsageCard.ledger.offset,
            layout.UsageCard.code_uses.offset,
            layout.UsageCard.compute.offset + layout.Compute.charged_ns.offset,
        ],
    )
    def test_a_container_that_takes_memory_or_gpu_time_counts_as_busy(
        self, slot: Slot, offset: int
    ) -> None:
        detector = UsageDetector()
        self.put(slot, offset, 5)
        assert self.look(detector, slot, 100.0).activity == "Idle"
        self.put(slot, offset, 6)
        assert self.look(detector, slot, 101.0).activity == "Busy"
        assert self.look(detector, slot, 101.0 + QUIET_S).at == 101.0

    def test_a_container_that_only_frees_memory_does_not_work(self, slot: Slot) -> None:
        """An owner that frees its memory as it ends would be taken for one that works again."""
        detector, ledger = UsageDetector(), layout.UsageCard.ledger.offset
        held = (2 * GIB, GIB, 0, 1)
        for at, size in enumerate(held):
            self.put(slot, ledger, at)
            self.put(slot, ledger + 8, size << 21)
            expected = "Busy" if size == 1 else "Idle"
            assert self.look(detector, slot, 100.0 + at).activity == expected

    def test_one_that_frees_memory_beside_its_work_works(self, slot: Slot) -> None:
        """On another card, or by another sign than its memory."""
        ledger, code = layout.UsageCard.ledger.offset, layout.UsageCard.code_uses.offset
        for place, index in ((ledger, 1), (code, 0), (code, 1)):
            detector = UsageDetector()
            self.put(slot, ledger + 8, 2 << 21)
            self.put(slot, place, 1, index)
            assert self.look(detector, slot, 100.0).activity == "Idle"
            self.put(slot, ledger + 8, 1 << 21)
            self.put(slot, place, 2, index)
            assert self.look(detector, slot, 101.0).activity == "Busy"

    def test_a_file_that_has_not_changed_is_not_read_closely_again(
        self, slot: Slot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parsed = Mock(wraps=usage_snapshot.card_activity)
        monkeypatch.setattr(usage_snapshot, "card_activity", parsed)
        detector = UsageDetector()
        for now in (100.0, 100.5, 101.0):
            assert self.look(detector, slot, now).activity == "Idle"
        assert parsed.call_count == 1
        self.put(slot, layout.UsageCard.code_uses.offset, 1)
        assert self.look(detector, slot, 101.5).activity == "Busy"
        assert parsed.call_count == 2

    def test_a_container_that_only_copies_counts_as_busy(self, slot: Slot) -> None:
        """Each process counts its own copies; those of dead processes are counted together."""
        detector, first = UsageDetector(), layout.Usage.slots.offset
        own = first + layout.UsageSlot.copies.offset
        counts = (layout.UsageHead.copies.offset, own)
        self.write(slot, layout.UsageHead.slot_high.offset, "<I", 1)
        self.write(slot, own + layout.Copies.card.offset, "<Q", 1)
        assert self.look(detector, slot, 100.0).activity == "Idle"
        for at, place in enumerate(counts, 101):
            self.write(slot, place, "<Q", 7)
            assert self.look(detector, slot, float(at)).activity == "Busy"
            assert self.look(detector, slot, at + QUIET_S).at == at

    def write(self, slot: Slot, place: int, how: str, value: int) -> None:
        with slot.usage.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack(how, value), place)

    def test_a_container_with_a_damaged_usage_file_counts_as_busy(self, slot: Slot) -> None:
        slot.usage.write_bytes(b"")
        assert self.look(UsageDetector(), slot, 100.0).activity == "Busy"

    def test_of_one_without_the_shim_nothing_is_seen(self) -> None:
        (found,) = UsageDetector().look([OWNER], [], 100.0)
        assert (found.activity, found.at) == ("Idle", float("-inf"))

    def test_the_time_slicer_names_slots(self, slot: Slot) -> None:
        detector, slots = UsageDetector(), {"s": slot}
        (found,) = detector.woke(["s", "unknown"], [OF_BOTH], slots, 5.0)
        assert (found.activity, found.devices) == ("Busy", {CARD, SECOND})
        assert not [*detector.woke(["unknown"], [OWNER], slots, 5.0)]


class TestProcesses:
    @pytest.fixture
    def detector(self, tmp_path: Path) -> ProcessDetector:
        put_process(tmp_path, 1, POD)
        put_process(tmp_path, 2, POD)
        put_process(tmp_path, 3, "0::/system.slice/x.service\n")
        put_process(tmp_path, 9, f"0::/kubepods/pod{BORROWERS}/{CONTAINER_ID}\n")
        return ProcessDetector(tmp_path)

    def look(
        self,
        detector: ProcessDetector,
        now: float,
        owner: CardOwner = OWNER,
        **percents: dict[int, int] | None,
    ) -> list[str]:
        cards = {
            {"first": CARD, "second": SECOND}[key]: one if one is None else loads(one)
            for key, one in percents.items()
        }
        return said(detector.look([owner], cards, {BORROWERS}, lambda uuid: 5, now))

    def memory_events(self, detector: ProcessDetector, pid: int, *gib: int) -> list[str]:
        """What it says when this process of a card holds so many GiB, by one look after another. It
        says of no earlier work any more."""
        return [
            event
            for number, held in enumerate(gib)
            for event in said(
                detector.look(
                    [OWNER],
                    {CARD: {1: ProcessLoad(0, GIB), pid: ProcessLoad(0, held * GIB)}},
                    {BORROWERS},
                    lambda uuid: 5,
                    10.0 + number * SAMPLED_S,
                )
            )
        ]

    def test_an_agent_that_starts_takes_nobody_for_busy_that_does_nothing(
        self, detector: ProcessDetector
    ) -> None:
        assert self.look(detector, 1.0, first={1: 5, 9: 100}) == ["Idle"]

    def test_an_owner_whose_process_keeps_the_card_busy_counts_as_busy(
        self, detector: ProcessDetector
    ) -> None:
        assert self.look(detector, 1.0, first={1: 0}) == ["Idle"]
        assert self.look(detector, 2.0, first={1: 6}) == ["Busy"]
        assert self.look(detector, 2.1, first={1: 0}) == ["Busy"]
        assert self.look(detector, 2.0 + SAMPLED_S, first={1: 0}) == ["Idle"]

    @pytest.mark.parametrize("pid", [2, 3])
    def test_a_new_process_works(self, detector: ProcessDetector, pid: int) -> None:
        assert self.look(detector, 1.0, first={1: 0}) == ["Idle"]
        assert self.look(detector, 2.0, first={1: 0, pid: 0}) == ["Busy"]

    def test_a_process_that_ends_is_no_work(self, detector: ProcessDetector) -> None:
        """An owner that is deleted would be taken for one that works again."""
        assert self.look(detector, 1.0, first={1: 0, 2: 0}) == ["Idle"]
        assert self.look(detector, 2.0, first={1: 0}) == ["Idle"]
        assert self.look(detector, 3.0, first={}) == ["Idle"]

    @pytest.mark.parametrize(
        ("gib", "expected"),
        [
            ((2, 3, 3), ["Idle", "Busy", "Idle"]),
            ((2, 1, 2), ["Idle", "Idle", "Busy"]),
            ((2, 0, 3), ["Idle", "Idle", "Busy"]),
            ((2, 0, 2), ["Idle", "Idle", "Idle"]),
            ((0, 2, 3), ["Idle", "Idle", "Busy"]),
        ],
        ids=["more", "less", "unknown in between", "unknown for once", "unknown at first"],
    )
    def test_an_owner_whose_process_gets_more_memory_counts_as_busy(
        self, detector: ProcessDetector, gib: tuple[int, ...], expected: list[str]
    ) -> None:
        """A model is copied to the card long before it computes. The driver does not always tell
        what a process holds."""
        assert self.memory_events(detector, 1, *gib) == expected

    def test_a_borrower_that_gets_memory_is_not_taken_for_the_owner(
        self, detector: ProcessDetector
    ) -> None:
        assert self.memory_events(detector, 9, 1, 2) == ["Idle", "Idle"]

    @pytest.mark.parametrize("pid", [9, 77])
    def test_the_borrowers_processes_and_those_that_ended_do_not_count(
        self, detector: ProcessDetector, pid: int
    ) -> None:
        assert self.look(detector, 1.0, first={1: 0}) == ["Idle"]
        assert self.look(detector, 2.0, first={1: 0, pid: 100}) == ["Idle"]

    def test_what_the_agent_itself_runs_there_does_not_count(self, tmp_path: Path) -> None:
        """It measures the memory of a context once for each model, and again after failures."""
        detector = ProcessDetector(tmp_path, agent=500)
        put_process(tmp_path, 1, POD)
        assert self.look(detector, 1.0, first={1: 0}) == ["Idle"]
        put_process(tmp_path, 501, "0::/\n", parent=500)
        assert self.look(detector, 2.0, first={1: 0, 501: 100}) == ["Idle"]
        put_process(tmp_path, 502, "0::/\n", parent=501)
        assert self.look(detector, 3.0, first={1: 0, 501: 0, 502: 0}) == ["Busy"]

    def test_the_agent_is_the_process_that_looks(
        self, detector: ProcessDetector, tmp_path: Path
    ) -> None:
        assert self.look(detector, 1.0, first={1: 0}) == ["Idle"]
        put_process(tmp_path, 501, "0::/\n", parent=os.getpid())
        assert self.look(detector, 2.0, first={1: 0, 501: 100}) == ["Idle"]

    def test_a_borrower_that_has_ended_and_is_still_listed_is_not_taken_for_the_owner(
        self, detector: ProcessDetector, tmp_path: Path
    ) -> None:
        assert self.look(detector, 1.0, first={1: 0, 9: 100}) == ["Idle"]
        shutil.rmtree(tmp_path / "9")
        cards = {CARD: loads({1: 0, 9: 100})}
        (found,) = detector.look([OWNER], cards, set(), lambda uuid: 5, 2.0)
        assert found.activity == "Idle"

    def test_whose_a_process_is_is_asked_once_and_again_when_it_was_gone(
        self, detector: ProcessDetector, tmp_path: Path
    ) -> None:
        assert self.look(detector, 1.0, first={1: 0, 9: 100}) == ["Idle"]
        for pid in ("1", "9"):
            (tmp_path / pid / "cgroup").unlink()
        assert self.look(detector, 2.0, first={1: 100, 9: 100}) == ["Busy"]
        assert self.look(detector, 2.0 + SAMPLED_S, first={1: 0}) == ["Idle"]
        shutil.rmtree(tmp_path / "9")
        put_process(tmp_path, 9, POD, started=4243)
        assert self.look(detector, 5.0, first={1: 0, 9: 100}) == ["Busy"]

    def test_a_card_that_never_told_is_nobodys_to_lend(self, detector: ProcessDetector) -> None:
        assert self.look(detector, 1.0) == []

    def test_a_card_that_tells_no_more_counts_as_busy_after_a_while(
        self, detector: ProcessDetector
    ) -> None:
        assert self.look(detector, 1.0, first={1: 0}) == ["Idle"]
        for at in (2.0, 3.0, 1.0 + BLIND_S):
            assert self.look(detector, at, first=None) == ["Idle"]
        assert self.look(detector, 1.1 + BLIND_S, first=None) == ["Busy"]
        assert detector.is_blind(CARD, 1.1 + BLIND_S)
        assert self.look(detector, 1.2 + BLIND_S, first={1: 0}) == ["Idle"]
        assert not detector.is_blind(CARD, 9.0 + BLIND_S)

    def test_an_agent_that_was_held_up_asks_again_first(self, detector: ProcessDetector) -> None:
        assert self.look(detector, 1.0, first={1: 0}) == ["Idle"]
        late = 2.0 + BLIND_S
        for number in range(1, BLIND_QUERIES):
            assert self.look(detector, late + number / 10, first=None) == ["Idle"]
            assert self.look(detector, late + number / 10, second={}) == ["Idle"], "not asked for"
        assert self.look(detector, late + 1, first=None) == ["Busy"]

    def test_an_owner_of_two_cards_that_works_on_one_counts_as_busy(
        self, detector: ProcessDetector
    ) -> None:
        both = {"first": {1: 0}, "second": {2: 0}}
        assert self.look(detector, 1.0, OF_BOTH, **both) == ["Idle"]
        assert self.look(detector, 2.0, OF_BOTH, first={1: 0}, second={2: 50}) == ["Busy"]
