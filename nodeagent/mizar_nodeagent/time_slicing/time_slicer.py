"""The time slicer: grants the time of shared cards to the containers that want it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from mizar_core import time_slicing
from mizar_kube.logs import get_logger
from mizar_nodeagent.audit.unaccounted import Unaccounted
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.time_slicing.container_card import ContainerCard, container_cards
from mizar_nodeagent.time_slicing.container_files import ActivityWatch, Container, ContainerFiles

__all__ = ["Container", "TimeSlicer"]

log = get_logger(__name__)

CONTENDED_S: Final = 0.010
"""Between two looks for containers that wake up, on cards whose time several want."""
STEADY_NS: Final = 50_000_000
"""Between two rounds of such a card while none wakes up. Only who stops asking for time is seen
later for it, and that counts after a tenth of a second anyway."""
ALL_S: Final = 0.100
"""Between two rounds of all cards, each of which also opens new containers and closes old ones."""
RESTART_S: Final = 1.0
"""After a round that failed."""
CHECK_NS: Final = 1_000_000_000
"""Between two checks that a path still leads to the file that is open."""
NS: Final = 1_000_000_000
ATTEND_S: Final = 0.1
"""Between two signs of life of the event loop."""
UNATTENDED_NS: Final = 500_000_000
"""After so long without one, borrowers get no heartbeat: the loop looks for owners without the
shim. Their shims let a second pass as well, so that a loop that is merely busy holds nobody up."""


class SharedCard:
    """The containers of one card. `woken`: those whose card is borrowed and that woke up in the
    last round."""

    def __init__(self, containers: Sequence[ContainerCard]) -> None:
        self._containers = containers
        self.woken: frozenset[str] = frozenset()
        self._awake: frozenset[str] = frozenset()
        self._borrowers = [one for one in containers if one.borrows]
        self._owners = [one for one in containers if not one.borrows]
        self._round_at = 0
        self._planned: tuple[list[tuple[bool, int | None, bool]], int] | None = None
        metered = [one for one in containers if one.mode != "None"]
        # A Hard container that is alone has its share, whatever it does; a borrower has all.
        alone = not self._owners or all(one.mode == "Hard" for one in metered)
        self._matters = len(metered) > 1 or not alone

    @property
    def has_new_code(self) -> bool:
        """Whether a container used code for the first time since the round before."""
        return any(one.new_code for one in self._containers)

    @property
    def is_contended(self) -> bool:
        """Whether the next round should come soon."""
        return self._matters and any(one.busy for one in self._containers)

    @property
    def sleepers(self) -> list[ContainerCard]:
        """The containers with a share that were idle at the last round."""
        return [one for one in self._owners if not one.busy]

    def is_due(self, now: int, changed: bool) -> bool:
        """Whether there may be anything to do before the next round of all cards: a container that
        was idle wakes up, or the last round of a card that is not borrowed is STEADY_NS ago. What
        borrowers do is seen soon enough. `changed`: sleepers' words may have changed."""
        if not self._borrowers and now - self._round_at >= STEADY_NS:
            return True
        return changed and any(one.has_woken(now) for one in self.sleepers)

    def round(self, now: int, attended: bool = True) -> None:
        """Observe all containers, and write new grants if anything has changed. Unless `attended`,
        borrowers do not see the agent live."""
        self._round_at = now
        for one in self._containers:
            one.observe(now)
            if attended or not one.borrows:
                one.beat()
        self._revoke(now)
        demands = [one.demand for one in self._containers]
        longest = max((one.longest_ns for one in self._containers if one.busy), default=0)
        if (demands, longest) != self._planned:
            self._grant()
            self._planned = demands, longest

    def _revoke(self, now: int) -> None:
        """An owner that wakes up has the card from this round on."""
        if not self._borrowers:
            return
        awake = frozenset(one.name for one in self._containers if one.is_awake)
        self.woken, self._awake = awake - self._awake, awake
        for one in self._borrowers if awake else ():
            one.revoke(now)

    def _grant(self) -> None:
        granted = time_slicing.grants(one.sharer for one in self._containers)
        for one in self._containers:
            one.write(granted.get(one.name, time_slicing.TimeGrant()))


class TimeSlicer:
    """Plans the time of the cards of the given containers, in a thread of its own.

    `containers` is called ten times a second, from that thread; it gives the same object until
    something has changed. `clock`: nanoseconds of
    CLOCK_MONOTONIC. `new_code` is called from there as well, when code may have come to a card that
    no container's account has yet; `woke`, with the names of containers that own a card, when these
    work again while it is borrowed: its borrowers have been paused already. `watched`, asked in the
    event loop: whether somebody looks for owners that only the loop would see work. A new time
    slicer starts from nothing: what an earlier one granted is planned anew.
    """

    def __init__(
        self,
        containers: Callable[[], Sequence[Container]],
        clock: Callable[[], int] = time.monotonic_ns,
        new_code: Callable[[], None] = lambda: None,
        woke: Callable[[Collection[str]], None] = lambda names: None,
        watched: Callable[[], bool] = lambda: True,
    ) -> None:
        self._wanted = containers
        self._new_code = new_code
        self._woke = woke
        self._watched = watched
        self._clock = clock
        self._stopped = threading.Event()
        self._known: Sequence[Container] = ()
        self._files: dict[Container, ContainerFiles] = {}
        self._by_container: dict[Container, dict[str, ContainerCard]] = {}
        self._refused: set[Container] = set()
        self._cards: list[SharedCard] = []
        self._contended: list[SharedCard] = []
        self._sleepers: list[ContainerCard] = []
        self._watch = ActivityWatch([])
        self._rescan_at = 0
        self._check_at = 0
        self._last_round = clock()
        self._attended_at: int | None = None
        self._unaccounted: Mapping[tuple[str, str], Unaccounted] = {}
        self._written: Mapping[tuple[str, str], Unaccounted] | None = None

    def round(self, now_ns: int | None = None) -> float:
        """Observe the containers once and write what follows. Returns the seconds until the next
        round."""
        now = self._clock() if now_ns is None else now_ns
        is_full = now >= self._rescan_at
        if is_full:
            self._rescan(now)
        cards = self._cards if is_full else self._due(now)
        attended = self._attended_at is None or now - self._attended_at < UNATTENDED_NS
        for card in cards:
            card.round(now, attended)
        if any(card.has_new_code for card in cards):
            self._new_code()
        for card in cards:
            if card.woken:
                self._woke(card.woken)
        if cards:
            self._contended = [card for card in self._cards if card.is_contended]
            self._watch_sleepers()
        self._last_round = now
        return CONTENDED_S if self._contended else ALL_S

    def _due(self, now: int) -> list[SharedCard]:
        """The contended cards that need a round."""
        # What wakes up after the comparison is found by the next one.
        changed = self._watch.has_changed()
        return [one for one in self._contended if one.is_due(now, changed)]

    def _watch_none(self) -> None:
        """Files may be closed: another one may have the number of such a file soon."""
        self._contended, self._sleepers, self._watch = [], [], ActivityWatch([])

    def _watch_sleepers(self) -> None:
        sleepers = [one for card in self._contended for one in card.sleepers]
        if sleepers != self._sleepers:
            self._sleepers = sleepers
            self._watch = ActivityWatch([one.place for one in sleepers])

    def run(self) -> None:
        """Rounds until `stop`, whatever happens: without one, no container may borrow time."""
        while not self._stopped.is_set():
            try:
                self._pause(self.round())
            except Exception:
                log.exception("time slicing starts again from nothing")
                self.close()
                self._pause(RESTART_S)
        self.close()

    async def serve(self) -> None:
        """`run` in a thread of its own, until cancelled. Cards are lent for as long as the event
        loop runs that calls this, and owners are watched."""
        self._attended_at = self._clock() - UNATTENDED_NS
        running = asyncio.create_task(asyncio.to_thread(self.run))
        try:
            while not running.done():
                if self._watched():
                    self.attend()
                await asyncio.wait({running}, timeout=ATTEND_S)
            await running
        finally:
            self._stopped.set()
            running.cancel()

    def attend(self) -> None:
        """Somebody looks for owners without the shim. Once this was called, it must be again and
        again, or borrowers stop after UNATTENDED_NS and the second that their shims wait."""
        self._attended_at = self._clock()

    def set_unaccounted(self, unaccounted: Mapping[tuple[str, str], Unaccounted]) -> None:
        """Tell containers, within a tenth of a second, what their own accounts leave out. Keys:
        (slot's name, card's UUID). May be called from any thread."""
        self._unaccounted = unaccounted

    @property
    def idle_for(self) -> float:
        """Seconds since the last round, for the health probe."""
        return (self._clock() - self._last_round) / NS

    def start(self) -> None:
        """`run` in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="time-slicer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what was written stays."""
        self._stopped.set()
        self._thread.join()

    def close(self) -> None:
        """Close every file."""
        for files in self._files.values():
            files.close()
        self._files, self._by_container, self._cards = {}, {}, []
        self._watch_none()
        self._known = ()
        self._rescan_at = 0

    def _pause(self, seconds: float) -> None:
        if seconds > CONTENDED_S:
            self._stopped.wait(seconds)
        else:
            time.sleep(seconds)  # costs half of what an interruptible wait does

    def _rescan(self, now: int) -> None:
        """Find containers that came or went, and limits that were written."""
        self._rescan_at = now + int(ALL_S * NS)
        wanted, changed = self._wanted(), False
        if wanted is not self._known or now >= self._check_at:
            self._known = wanted
            changed = self._close_old(wanted, now)
            changed |= self._open_new(wanted)
        changed |= self._read_limits()
        if changed:
            self._group_by_card()
        if changed or self._written is not self._unaccounted:
            self._write_unaccounted()

    def _write_unaccounted(self) -> None:
        known = self._written = self._unaccounted
        for container, cards in self._by_container.items():
            for uuid, card in cards.items():
                if found := known.get((container.name, uuid)):
                    card.set_unaccounted(found)

    def _close_old(self, wanted: Sequence[Container], now: int) -> bool:
        """Close containers that are gone, or whose paths lead to other files now."""
        keep = set(wanted)
        gone = [one for one in self._files if one not in keep]
        if now >= self._check_at:
            self._check_at = now + CHECK_NS
            gone += [one for one in keep & self._files.keys() if not self._files[one].is_current()]
            self._refused.clear()
        for one in gone:
            self._by_container.pop(one, None)
            self._files.pop(one).close()
        return bool(gone)

    def _open_new(self, wanted: Sequence[Container]) -> bool:
        new = [one for one in wanted if one not in self._files and one not in self._refused]
        for one in new:
            try:
                self._files[one] = ContainerFiles(one)
            except (OSError, RegionDamaged) as error:
                log.info("no GPU time is dealt out to a slot", slot=one.name, error=error)
                self._refused.add(one)
        return bool(new)

    def _read_limits(self) -> bool:
        """Whether a container's limits were written since the last time."""
        changed = False
        for container, files in self._files.items():
            if (found := files.new_limits()) is not None:
                # A notice that is there from the beginning was given by an agent that has ended.
                notices = container in self._by_container
                self._by_container[container] = container_cards(files, found, notices)
                changed = True
        return changed

    def _group_by_card(self) -> None:
        cards: dict[str, list[ContainerCard]] = {}
        for container in self._files:
            for uuid, card in self._by_container.get(container, {}).items():
                cards.setdefault(uuid, []).append(card)
        self._cards = [SharedCard(containers) for containers in cards.values()]
        self._watch_none()
