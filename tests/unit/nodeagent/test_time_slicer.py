"""The time slicer: what it reads about containers, what it writes for them, and which faults it
survives."""

import asyncio
import ctypes
import mmap
import os
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mizar_core.carve import CardLimit
from mizar_core.models import ComputeMode
from mizar_core.time_grants import PERIOD_FAR_US, Window
from mizar_nodeagent.audit.unaccounted_memory import Unaccounted
from mizar_nodeagent.regions import layout, limits_file, usage_file
from mizar_nodeagent.time_slicing import time_slicer
from mizar_nodeagent.time_slicing.container_card import ContainerCard
from mizar_nodeagent.time_slicing.time_slicer import Container, SharedCard, TimeSlicer
from support.waiting import PATIENCE_S, until, wait_for
from support.windows import window_of

GIB = 1 << 30
MS = 1_000_000
CARD = "GPU-1"
BLOCK = layout.UsageHead.cards.offset + layout.UsageCard.compute.offset
LIVE = layout.Limits.live.offset
TOTAL_AT = 21
"""The bit of the ledger's second word from which on it has the container's bytes."""


class Tenant:
    """A container's slot, and what its shim would write there."""

    def __init__(self, folder: Path, mode: ComputeMode, share: int, *cards: str) -> None:
        self.name = folder.name
        folder.mkdir()
        self.limits, self.usage = folder / "limits", folder / "usage"
        self.container = Container(folder.name, self.limits, self.usage)
        limits_file.create_empty(self.limits)
        usage_file.create(self.usage)
        self.permit(mode, share, *cards)

    def permit(self, mode: ComputeMode, share: int, *cards: str) -> None:
        identity = limits_file.ContainerIdentity("team-a", self.name, "uid", "main", self.name)
        given = [CardLimit(one, GIB, share, "Hard", mode) for one in cards or (CARD,)]
        limits_file.write(self.limits, identity, given, {})

    def want(self, at: int, longest: int = 20_000, card: int = 0) -> None:
        with self.usage.open("r+b") as file:
            place = BLOCK + card * ctypes.sizeof(layout.UsageCard)
            os.pwrite(file.fileno(), struct.pack("<QQ", at, longest), place + 24)

    def charge(self, total: int) -> None:
        """The container has used that many ns in its life."""
        with self.usage.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("<Q", total), BLOCK + 16)

    def use_code(self, times: int, card: int = 0) -> None:
        """The container has used code for the first time, so often in its life."""
        self._count(layout.UsageCard.code_uses.offset, times, card)

    def settle(self, times: int, card: int = 0) -> None:
        """The memory of that many of the container's dead processes was given back."""
        self._count(layout.UsageCard.settled.offset, times, card)

    def change_memory(self, changes: int, size: int = 0) -> None:
        """The container's memory has changed so often in its life, and is that many bytes now."""
        self._count(layout.UsageCard.ledger.offset, changes, 0)
        self._count(layout.UsageCard.ledger.offset + 8, size << TOTAL_AT, 0)

    def _count(self, offset: int, times: int, card: int) -> None:
        place = BLOCK + card * ctypes.sizeof(layout.UsageCard)
        place += offset - layout.UsageCard.compute.offset
        with self.usage.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("<Q", times), place)

    def live(self, card: int = 0) -> layout.LimitsLive:
        raw = self.limits.read_bytes()
        return layout.LimitsLive.from_buffer_copy(
            raw, LIVE + card * ctypes.sizeof(layout.LimitsLive)
        )

    @property
    def window(self) -> Window | None:
        return window_of(self.live().window)


class Room:
    """Containers, a time_slicer and a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tenants: list[Tenant] = []
        self.now = 1_000_000 * MS
        self.asked = 0
        self.woken: list[set[str]] = []
        self.time_slicer = TimeSlicer(
            lambda: [one.container for one in self.tenants],
            lambda: self.now,
            self.ask,
            lambda names: self.woken.append(set(names)),
        )

    def ask(self) -> None:
        self.asked += 1

    def add(self, name: str, mode: ComputeMode, share: int, *cards: str) -> Tenant:
        tenant = Tenant(self.folder / name, mode, share, *cards)
        self.tenants.append(tenant)
        return tenant

    def round(self, *busy: Tenant, after_ms: int = 100) -> float:
        """One round, some time later, while these containers want GPU time."""
        self.now += after_ms * MS
        for tenant in busy:
            tenant.want(self.now)
        return self.time_slicer.round()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    found = Room(tmp_path)
    yield found
    found.time_slicer.close()


def test_two_containers_that_want_the_card_get_a_window_each(room: Room) -> None:
    one, two = room.add("one", "Hard", 3000), room.add("two", "Hard", 7000)
    room.round()
    assert one.live().window == two.live().window == 0
    assert room.round(one, two) < 0.02
    assert one.window and two.window
    assert 0.3 <= one.window.length / one.window.period < 0.305
    assert two.window.start >= one.window.start + one.window.length
    assert (one.live().paused, one.live().spare_share) == (0, 0)


def test_a_container_with_files_of_the_previous_version_gets_its_window_too(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is upgraded while a container runs."""
    one = room.add("one", "Hard", 3000)
    room.round(one)
    monkeypatch.setattr(layout, "SERVED", frozenset({layout.VERSION, layout.VERSION + 1}))
    monkeypatch.setattr(layout, "VERSION", layout.VERSION + 1)
    two = room.add("two", "Hard", 7000)
    room.round(one, two)
    assert one.window and two.window
    assert two.window.start >= one.window.start + one.window.length


def test_alone_at_any_time_and_soft_has_what_others_leave(room: Room) -> None:
    one, two = room.add("one", "Soft", 3000), room.add("two", "Soft", 7000)
    room.round(one)
    assert (one.window, one.live().spare_share) == (None, 7000)
    assert room.round(one, two, after_ms=10) < 0.02
    assert (one.live().spare_share, two.live().spare_share) == (0, 0)
    assert one.window and two.window


@pytest.mark.parametrize("mode", ["None", "Hard", "Soft", "Weighted"])
def test_a_borrower_is_paused_in_the_round_in_which_an_owner_wakes(
    room: Room, mode: ComputeMode
) -> None:
    owner, borrower = room.add("owner", mode, 3000), room.add("borrower", "Soft", 0)
    room.round(borrower)
    assert (borrower.live().paused, borrower.live().spare_share) == (0, 10000)
    rung = borrower.live().wake
    assert room.round(borrower, owner, after_ms=10) < 0.02
    assert borrower.live().paused == 1 and borrower.live().wake != rung
    assert room.woken == [{"owner"}]
    for _ in range(19):  # the owner wanted it briefly; the borrower must stop in that time
        room.round(borrower)
        assert borrower.live().paused == 1
    room.round(borrower, after_ms=200)
    assert borrower.live().paused == 0
    assert room.woken == [{"owner"}]
    room.round(borrower, owner)
    assert room.woken == [{"owner"}] * 2


def test_between_full_rounds_sleepers_are_looked_at_all_at_once(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens a hundred times a second for each lent card."""
    owner, borrower = room.add("owner", "Soft", 3000), room.add("borrower", "Soft", 0)
    room.round(borrower)
    room.round(borrower, after_ms=10)
    looks = Mock(return_value=False)
    monkeypatch.setattr(SharedCard, "is_due", lambda *given: looks(*given))
    for _ in range(5):
        room.round(borrower, after_ms=10)
    assert not looks.called
    room.round(borrower, owner, after_ms=10)
    assert looks.call_count == 1
    monkeypatch.undo()
    room.round(borrower, owner, after_ms=10)
    assert room.woken == [{"owner"}]


def test_a_sleeper_is_looked_at_in_the_file_that_it_has_now(room: Room) -> None:
    """The kernel gives the number of a closed file to the next file that is opened."""
    owner, borrower = room.add("owner", "Soft", 3000), room.add("borrower", "Soft", 0)
    room.round(borrower)
    room.tenants.remove(owner)
    room.round(borrower, after_ms=100)
    again = room.add("again", "Soft", 3000)
    room.round(borrower, after_ms=100)
    room.round(borrower, again, after_ms=10)
    assert room.woken == [{"again"}]


def test_an_owner_that_takes_memory_wakes(room: Room) -> None:
    owner, borrower = room.add("owner", "None", 3000), room.add("borrower", "Soft", 0)
    owner.change_memory(7)
    room.round(borrower)
    assert not borrower.live().paused and not room.woken
    borrower.change_memory(9)
    room.round(borrower, after_ms=10)
    assert not borrower.live().paused and not room.woken
    owner.change_memory(8)
    room.round(borrower, after_ms=10)
    assert borrower.live().paused and room.woken == [{"owner"}]


@pytest.mark.parametrize("after_ms", [10, 100], ids=["between rounds", "in a round of all cards"])
def test_an_owner_that_only_frees_memory_sleeps_on(room: Room, after_ms: int) -> None:
    """A program frees its memory as it ends. When it takes some of it again, it wakes."""
    owner, borrower = room.add("owner", "None", 3000), room.add("borrower", "Soft", 0)
    owner.change_memory(7, 2 * GIB)
    room.round(borrower)
    for changes, left in ((8, GIB), (9, 0)):
        owner.change_memory(changes, left)
        room.round(borrower, after_ms=after_ms)
        assert not borrower.live().paused and not room.woken
    owner.change_memory(10, 1)
    room.round(borrower, after_ms=after_ms)
    assert borrower.live().paused and room.woken == [{"owner"}]


def test_new_limits_end_a_borrowers_pause(room: Room) -> None:
    owner, borrower = room.add("owner", "None", 3000), room.add("borrower", "Soft", 0)
    room.round(owner, borrower)
    assert borrower.live().paused
    borrower.permit("None", 0)
    room.round(owner, borrower)
    assert not borrower.live().paused


def test_a_notice_lets_a_borrower_work_beside_its_owner_while_the_agent_lives(room: Room) -> None:
    owner, borrower = room.add("owner", "Soft", 3000), room.add("borrower", "Soft", 0)
    room.time_slicer.attend()
    room.round(owner, borrower)
    assert borrower.live().paused
    limits_file.give_notice(borrower.limits, [CARD])
    for _ in range(3):
        before = borrower.live().beat
        room.round(owner, borrower)
        assert (borrower.live().paused, borrower.live().spare_share) == (0, 10000)
        assert borrower.live().beat > before
        assert (borrower.window, owner.window) == (None, None)
    for _ in range(4):
        before = borrower.live().beat
        room.round(owner, borrower)
    assert borrower.live().beat == before


def test_the_notice_of_an_agent_that_has_ended_is_over(room: Room) -> None:
    """It is over before the next agent knows the borrower, which that agent ends without another
    notice."""
    owner, borrower = room.add("owner", "Soft", 3000), room.add("borrower", "Soft", 0)
    limits_file.give_notice(borrower.limits, [CARD])
    room.round(owner, borrower)
    assert borrower.live().paused


def test_an_owner_whose_card_is_not_borrowed_is_not_reported_awake_and_pauses_no_borrower(
    room: Room,
) -> None:
    owner, other = room.add("owner", "Soft", 3000), room.add("other", "Soft", 0, "GPU-2")
    room.round()
    room.round(owner, other)
    assert not room.woken and not other.live().paused


def test_a_container_that_falls_silent_is_counted_for_a_moment_longer(room: Room) -> None:
    one, two = room.add("one", "Hard", 5000), room.add("two", "Hard", 5000)
    room.round(one, two)
    for _ in range(3):
        room.round(one, after_ms=30)
        assert one.window
    room.round(one, after_ms=30)
    assert one.window is None


@pytest.mark.parametrize("mode", ["None", "Hard"])
def test_new_code_and_deaths_are_asked_for_once(room: Room, mode: ComputeMode) -> None:
    tenant = room.add("one", mode, 5000, "GPU-1", "GPU-2")
    room.round()
    assert room.asked == 0
    for tell, times, card in (
        (tenant.use_code, 1, 0),
        (tenant.use_code, 7, 1),
        (tenant.settle, 7, 1),
        (tenant.settle, 8, 1),
        (tenant.use_code, 8, 1),
    ):
        tell(times, card)
        before = room.asked
        room.round()
        room.round()
        assert room.asked == before + 1


def test_what_is_outside_the_account_is_told_where_it_is_known(room: Room) -> None:
    one, two = room.add("one", "Hard", 5000), room.add("two", "None", 5000, "GPU-1", "GPU-2")
    for beyond in (Unaccounted(10 << 20, 5), Unaccounted(0, 9)):
        room.time_slicer.set_unaccounted({("one", CARD): beyond, ("two", "GPU-2"): beyond})
        room.round()
        for live in (one.live(), two.live(1)):
            assert (live.unaccounted_bytes, live.code_seen) == (beyond.bytes, beyond.code_uses)
    room.time_slicer.set_unaccounted({})  # while nothing is known, the last answer holds
    room.round()
    assert one.live().code_seen == 9
    assert (two.live().unaccounted_bytes, two.live().code_seen) == (0, 0)


def test_absurd_sizes_outside_an_account_stop_nobody_else(room: Room) -> None:
    """A tenant may write any number of first uses of code, each of which may take memory."""
    one, two = room.add("one", "Hard", 3000), room.add("two", "Hard", 7000)
    room.time_slicer.set_unaccounted({("one", CARD): Unaccounted(1 << 75, 1 << 64)})
    room.round(one, two)
    assert one.live().unaccounted_bytes == one.live().code_seen == 2**64 - 1
    assert one.window and two.window


def test_a_card_whose_round_fails_holds_up_no_other(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = room.add("bad", "Hard", 5000)
    one, two = room.add("one", "Hard", 3000, "GPU-2"), room.add("two", "Hard", 7000, "GPU-2")
    observe = ContainerCard.observe

    def fails(card: ContainerCard, now: int) -> None:
        if card.name == "bad":
            raise OverflowError
        observe(card, now)

    monkeypatch.setattr(ContainerCard, "observe", fails)
    borrower = room.add("borrower", "Soft", 0)
    room.round(bad, one, two)
    beats = borrower.live().beat
    room.round(bad, one, two)
    assert one.window and two.window
    assert room.time_slicer.idle_for == 0
    assert borrower.live().beat == beats, "nobody pauses it, so it stops by itself"
    monkeypatch.setattr(ContainerCard, "observe", observe)
    room.round(one, two)
    assert borrower.live().beat == beats + 1


def test_what_has_not_changed_is_not_told_again(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = room.add("one", "Hard", 5000)
    told = Mock(wraps=ContainerCard.set_unaccounted)
    monkeypatch.setattr(ContainerCard, "set_unaccounted", lambda *given: told(*given))
    room.time_slicer.set_unaccounted({("one", CARD): Unaccounted(7, 5)})
    for _ in range(3):
        room.round()
    assert told.call_count == 1
    one.permit("Soft", 5000)
    room.round()
    assert told.call_count == 2 and one.live().code_seen == 5


def test_a_changed_word_rings_and_an_unchanged_one_does_not(room: Room) -> None:
    one, two = room.add("one", "Soft", 5000), room.add("two", "Soft", 5000)
    room.round()
    rung = one.live().wake
    room.round()
    assert one.live().wake == rung
    room.round(one, two)
    assert one.live().wake != rung


def test_a_sleeper_is_woken_through_another_mapping(room: Room) -> None:
    one, two = room.add("one", "Hard", 5000), room.add("two", "Hard", 5000)
    room.round()
    sleeper = _sleep_on(one.limits, LIVE + layout.LimitsLive.wake.offset, one.live().wake)
    assert sleeper.is_alive()
    room.round(one, two)
    sleeper.join(PATIENCE_S)
    assert not sleeper.is_alive()


def test_every_round_beats(room: Room) -> None:
    one = room.add("one", "Hard", 5000, "GPU-1", "GPU-2")
    room.round()
    before = [one.live(card).beat for card in (0, 1)]
    room.round()
    assert [one.live(card).beat for card in (0, 1)] == [before[0] + 1, before[1] + 1]


def test_borrowers_see_no_agent_live_that_looks_for_no_owners(room: Room) -> None:
    """Owners without the shim are looked for by the event loop only."""
    owner, borrower = room.add("owner", "Soft", 3000), room.add("borrower", "Soft", 0)

    def beats() -> tuple[int, int]:
        before = owner.live().beat, borrower.live().beat
        room.round(borrower)
        return owner.live().beat - before[0], borrower.live().beat - before[1]

    room.time_slicer.attend()
    assert [beats() for _ in range(4)] == [(1, 1)] * 4
    assert [beats() for _ in range(2)] == [(1, 0)] * 2
    room.time_slicer.attend()
    assert beats() == (1, 1)


async def test_borrowers_have_no_time_before_owners_are_watched(tmp_path: Path) -> None:
    owner = Tenant(tmp_path / "owner", "Soft", 3000)
    borrower = Tenant(tmp_path / "borrower", "Soft", 0)
    watched = asyncio.Event()
    both = [owner.container, borrower.container]
    time_slicer = TimeSlicer(lambda: both, watched=watched.is_set)
    serving = asyncio.create_task(time_slicer.serve())
    await until(lambda: owner.live().beat > 3)
    assert borrower.live().beat == 0
    watched.set()
    await until(lambda: borrower.live().beat > 0)
    serving.cancel()
    await asyncio.wait({serving})


async def test_a_loop_that_hangs_holds_up_borrowers_until_it_runs_again(tmp_path: Path) -> None:
    owner = Tenant(tmp_path / "owner", "Soft", 3000)
    borrower = Tenant(tmp_path / "borrower", "Soft", 0)
    time_slicer = TimeSlicer(lambda: [owner.container, borrower.container])
    serving = asyncio.create_task(time_slicer.serve())
    await until(lambda: borrower.live().beat > 1)

    def is_held() -> bool:
        before = owner.live().beat, borrower.live().beat
        wait_for("three rounds", lambda: owner.live().beat > before[0] + 2, PATIENCE_S)
        return borrower.live().beat == before[1]

    wait_for("a borrower that is held up", is_held, PATIENCE_S)  # keeps the loop from running
    held = borrower.live().beat
    await until(lambda: borrower.live().beat > held)
    serving.cancel()
    await asyncio.wait({serving})


def test_cards_are_dealt_out_one_by_one(room: Room) -> None:
    both = room.add("both", "Soft", 5000, "GPU-1", "GPU-2")
    other = room.add("other", "Soft", 5000, "GPU-2")
    both.want(room.now + 100 * MS, card=1)
    room.round(both, other)
    assert (both.live(0).spare_share, both.live(1).spare_share) == (5000, 0)
    assert (both.live(0).window, other.window is not None) == (0, True)


def test_a_container_that_needs_little_keeps_out_of_the_windows_and_leaves_the_rest(
    room: Room,
) -> None:
    one, two = room.add("one", "Soft", 5000), room.add("two", "Soft", 5000)
    room.round(one, two)
    assert one.window and two.window
    for turn in range(12):
        one.charge(turn * 90 * MS)
        two.charge(turn * 4 * MS)
        room.round(one, two)
    assert (one.window, two.window) == (None, None)
    assert one.live().spare_share == 5000 - 1250
    two.charge(200 * MS)
    room.round(one, two)
    assert one.window and two.window and one.live().spare_share == 0


def test_slots_come_and_go(room: Room) -> None:
    one, two = room.add("one", "Soft", 5000), room.add("two", "Soft", 5000)
    room.round(one, two)
    assert one.window
    room.tenants.remove(two)
    room.round(one)
    assert (one.window, one.live().spare_share) == (None, 5000)


def test_limits_that_change_are_followed(room: Room) -> None:
    one = room.add("one", "Soft", 5000)
    room.round()
    one.permit("Soft", 2000)
    room.round()
    assert one.live().spare_share == 8000
    one.permit("None", 2000)
    room.round()
    assert one.live().spare_share == 0


def test_empty_and_damaged_limits_are_let_be_until_they_are_good(room: Room) -> None:
    one = room.add("one", "Soft", 5000)
    raw = one.limits.read_bytes()
    one.limits.write_bytes(bytes(layout.LIMITS_SIZE))
    room.round()
    assert one.live().spare_share == 0
    one.limits.write_bytes(raw)
    room.round()
    assert one.live().spare_share == 5000


def test_limits_of_another_size_are_no_limits(room: Room) -> None:
    one, two = room.add("one", "Soft", 5000), room.add("two", "Soft", 5000)
    one.limits.write_bytes(b"MIZARLIM")
    room.round(two)
    assert one.limits.read_bytes() == b"MIZARLIM"
    assert two.live().spare_share == 5000


def test_a_slot_that_was_lost_and_made_again_is_opened_anew(room: Room) -> None:
    one = room.add("one", "Soft", 5000)
    room.round()
    for path in (one.limits, one.usage):
        path.unlink()
    room.round(after_ms=2000)
    limits_file.create_empty(one.limits)
    usage_file.create(one.usage)
    one.permit("Soft", 4000)
    room.round(after_ms=2000)
    room.round()
    assert one.live().spare_share == 6000


def test_a_usage_file_that_is_cut_short_wants_nothing(room: Room) -> None:
    one, two = room.add("one", "Hard", 5000), room.add("two", "Hard", 5000)
    room.round(one, two)
    os.truncate(two.usage, 100)
    room.round(one)
    assert one.window is None


@pytest.mark.parametrize("wanted", [(1 << 64) - 1, 1 << 63, 0])
def test_absurd_figures_count_for_nothing(room: Room, wanted: int) -> None:
    one, two = room.add("one", "Hard", 5000), room.add("two", "Hard", 5000)
    two.want(wanted, longest=(1 << 64) - 1)
    room.round(one)
    assert one.window is None
    two.want(room.now, longest=(1 << 64) - 1)
    room.round(one, after_ms=10)
    assert one.window and one.window.period <= PERIOD_FAR_US


@given(st.binary(min_size=0, max_size=600), st.integers(0, 4096 + 3 * 512), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_tenant_writes_nobody_has_more_than_the_card(
    tmp_path: Path, noise: bytes, at: int, cut: bool
) -> None:
    room = Room(Path(tempfile.mkdtemp(dir=tmp_path)))
    one, two = room.add("one", "Soft", 5000), room.add("two", "Soft", 5000)
    room.round(one, two)
    with two.usage.open("r+b") as file:
        os.pwrite(file.fileno(), noise, at)
        if cut:
            file.truncate(at)
    for _ in range(3):
        room.round(one)
        assert one.live().spare_share in (0, 5000)
        assert not one.live().paused
        assert one.window is None or one.window.length * 2 > one.window.period - 4
    room.time_slicer.close()


@given(st.binary(min_size=1, max_size=600), st.integers(0, layout.CRC_TO))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_limits_leave_the_time_slicer_alive(tmp_path: Path, noise: bytes, at: int) -> None:
    room = Room(Path(tempfile.mkdtemp(dir=tmp_path)))
    one, two = room.add("one", "Soft", 5000), room.add("two", "Soft", 5000)
    with two.limits.open("r+b") as file:
        os.pwrite(file.fileno(), noise[: layout.CRC_TO - at], at)
    room.round(one)
    assert one.live().spare_share == 5000
    two.permit("Soft", 4000)
    room.round(one, two)
    assert (one.live().spare_share, two.live().spare_share) == (555, 444)
    room.time_slicer.close()


def test_a_waiting_shim_may_say_until_when(room: Room) -> None:
    one, two = room.add("one", "Hard", 5000), room.add("two", "Hard", 5000)
    two.want(room.now + 300 * MS)
    room.round(one)
    assert one.window and two.window


def test_another_time_slicer_plans_from_nothing(room: Room) -> None:
    one, two = room.add("one", "Hard", 5000), room.add("two", "Hard", 5000)
    room.round(one, two)
    assert one.window
    fresh = TimeSlicer(lambda: [one.container, two.container])
    fresh.round(room.now + 500 * MS)
    fresh.close()
    assert one.window is None


def test_a_quiet_card_is_looked_at_less_often(room: Room) -> None:
    one = room.add("one", "Soft", 5000)
    assert room.round() >= 0.1
    assert room.round(one) < 0.02
    assert room.round() >= 0.1


def test_a_card_whose_users_all_work_on_is_looked_at_less_often(room: Room) -> None:
    """Otherwise 64 containers that work all day would cost the agent a quarter of a processor."""
    one, two, idle = (room.add(name, "Hard", 3000) for name in ("one", "two", "idle"))
    room.round(one, two, after_ms=100)
    before = one.live().beat
    for _ in range(4):
        assert room.round(one, two, after_ms=10) < 0.02
    assert one.live().beat == before
    room.round(one, two, after_ms=10)
    assert one.live().beat == before + 1
    # A container that wakes up has its share at once.
    room.round(one, two, idle, after_ms=10)
    assert one.live().beat == before + 2
    assert idle.live().window


def test_between_looks_at_all_cards_a_lent_one_is_only_looked_at_for_its_owners(room: Room) -> None:
    """Otherwise sixteen borrowers that work all day would cost the agent much."""
    owner, borrower = room.add("owner", "None", 3000), room.add("borrower", "Soft", 0)
    assert room.round(borrower) < 0.02
    before = borrower.live().beat
    assert room.round(borrower, after_ms=10) < 0.02
    assert borrower.live().beat == before
    room.round(borrower, owner, after_ms=10)
    assert borrower.live().beat == before + 1 and borrower.live().paused
    room.round(borrower, owner, after_ms=10)  # it works beside one that is being ended
    assert borrower.live().paused


def test_a_borrower_whose_owner_has_no_shim_is_looked_at_less_often(room: Room) -> None:
    borrower = room.add("borrower", "Soft", 0)
    assert room.round(borrower) >= 0.1
    assert borrower.live().spare_share == 10000


def test_it_runs_in_a_thread_until_it_is_stopped(tmp_path: Path) -> None:
    tenant = Tenant(tmp_path / "one", "Soft", 5000)
    slicer = TimeSlicer(lambda: [tenant.container])
    slicer.start()
    wait_for("two rounds", lambda: tenant.live().beat >= 2, PATIENCE_S, interval=0.005)
    slicer.stop()
    assert tenant.live().spare_share == 5000


def test_in_its_thread_rounds_of_a_contended_card_follow_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them fails, for which it would begin anew."""
    monkeypatch.setattr(time_slicer, "RESTART_S", 3600.0)
    tenants = [Tenant(tmp_path / name, "Hard", 3000) for name in ("one", "two")]
    slicer = TimeSlicer(lambda: [one.container for one in tenants])

    def has_gone_on() -> bool:
        for one in tenants:
            one.want(time.monotonic_ns())
        return all(one.window and one.live().beat >= 5 for one in tenants)

    has_gone_on()
    slicer.start()
    wait_for("five rounds", has_gone_on, PATIENCE_S, interval=0.005)
    slicer.stop()


def test_killed_at_any_moment_it_leaves_whole_words_and_the_next_one_goes_on(room: Room) -> None:
    tenants = [room.add(name, "Soft", 5000) for name in ("one", "two")]
    for turn in range(20):
        child = os.fork()
        if not child:
            _deal_for_ever([one.container for one in tenants])
        for _ in range(10 + turn):
            tenants[turn % 2].want(time.monotonic_ns())
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for one in tenants:
            assert limits_file.read(one.limits).cards[0].core_share == 5000
            assert one.live().window == 0 or one.window
            assert one.live().spare_share in (0, 5000)
    room.now = time.monotonic_ns()
    room.round(*tenants)
    assert all(one.window and one.live().spare_share == 0 for one in tenants)


def _deal_for_ever(containers: list[Container]) -> None:
    now = time.monotonic_ns()
    time_slicer = TimeSlicer(lambda: containers)
    while True:
        now += 5 * MS
        time_slicer.round(now if now % 3 else time.monotonic_ns())


def _sleep_on(path: Path, offset: int, value: int) -> threading.Thread:
    """A thread that sleeps on the word, through a mapping of its own, until it is woken."""
    with path.open("r+b") as file:
        region = mmap.mmap(file.fileno(), 0)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region)) + offset
    number = {"x86_64": 202, "aarch64": 98}[os.uname().machine]

    def sleep() -> None:
        ctypes.CDLL(None).syscall(number, ctypes.c_void_p(address), 0, value, None, None, 0)

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    call = Path(f"/proc/self/task/{thread.native_id}/syscall")
    while call.read_text().split()[:2] != [str(number), hex(address)]:
        time.sleep(0.001)
    return thread
