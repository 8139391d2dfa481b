"""The time slicer: grants the GPU time of shared cards to the containers that want it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from mizar_core import time_grants
from mizar_kube.logs import get_logger
from mizar_nodeagent.audit.unaccounted_memory import Unaccounted
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.time_slicing.container_card import ContainerCard, container_cards
from mizar_nodeagent.time_slicing.container_files import ActivityWatch, Container, ContainerFiles

__all__ = ["Container", "TimeSlicer"]

log = get_logger(__name__)

CONTENDED_S: Final = 0.010
"""Seconds between two rounds while a card is contended, each of which looks for idle containers
that have become active."""
STEADY_NS: Final = 50_000_000
"""Nanoseconds between two rounds of a contended card without borrowers on which no container
becomes active. This delays only noticing that a container wants no more time, which counts after a
tenth of a second anyway."""
ALL_S: Final = 0.100
"""Seconds between two rounds of all cards. Each of them opens the files of new containers and
closes those of old ones."""
RESTART_S: Final = 1.0
"""Seconds to the next round after one that failed."""
CHECK_NS: Final = 1_000_000_000
"""Nanoseconds between two checks whether the paths of files still refer to the open files."""
NS: Final = 1_000_000_000
"""Nanoseconds in a second."""
TOLD_NS: Final = 60_000_000_000
"""Least nanoseconds between two log lines about a card whose rounds fail: one minute, since rounds
may fail a hundred times a second."""
ATTEND_S: Final = 0.4
"""Seconds between two calls of `attend` by the event loop."""
UNATTENDED_NS: Final = 500_000_000
"""Nanoseconds without a call of `attend` after which borrowers get no heartbeat, since only the
event loop detects owners without the shim. Borrowers' shims tolerate another second without
heartbeat, so that an event loop that is only busy stops no borrower."""


class SharedCard:
    """The containers of one card. `woken`: the names of containers with a share that became active
    in the last round; always empty for a card without borrowers. `failed_at`: when it was last
    logged that its rounds fail; None while they don't."""

    def __init__(self, containers: Sequence[ContainerCard]) -> None:
        self._containers = containers
        self.woken: frozenset[str] = frozenset()
        self.failed_at: int | None = None
        self._awake: frozenset[str] = frozenset()
        self._borrowers = [one for one in containers if one.borrows]
        self._owners = [one for one in containers if not one.borrows]
        self._round_at = 0
        self._planned: tuple[list[tuple[bool, int | None, bool]], int] | None = None
        metered = [one for one in containers if one.mode != "None"]
        # A single metered container needs no frequent rounds if it is Hard, since it has its share
        # in any case, or a borrower on a card without owners, since it has the whole card.
        alone = not self._owners or all(one.mode == "Hard" for one in metered)
        self._matters = len(metered) > 1 or not alone

    @property
    def names(self) -> list[str]:
        """The names of the containers' slots."""
        return [one.name for one in self._containers]

    @property
    def has_new_code(self) -> bool:
        """Whether a container used code for the first time, or had memory of dead processes given
        back, since the previous round."""
        return any(one.new_code for one in self._containers)

    @property
    def is_contended(self) -> bool:
        """Whether the card's next round should come after CONTENDED_S rather than ALL_S."""
        return self._matters and any(one.busy for one in self._containers)

    @property
    def sleepers(self) -> list[ContainerCard]:
        """The containers with a share that were idle at the last round."""
        return [one for one in self._owners if not one.busy]

    @property
    def has_borrowers(self) -> bool:
        """Whether a container borrows the card."""
        return bool(self._borrowers)

    def is_due(self, now: int, changed: bool) -> bool:
        """Whether the card needs a round before the next round of all cards: because an idle
        container has become active, or because the last round is STEADY_NS ago and the card has no
        borrowers. Changes of borrowers may wait. `now`: nanoseconds of CLOCK_MONOTONIC. `changed`:
        whether the usage of any idle container may have changed."""
        if not self._borrowers and now - self._round_at >= STEADY_NS:
            return True
        return changed and any(one.has_woken(now) for one in self.sleepers)

    def round(self, now: int, attended: bool = True) -> None:
        """Observe all containers, and write new grants if their demands have changed. `now`:
        nanoseconds of CLOCK_MONOTONIC. `attended`: whether borrowers get a heartbeat."""
        self._round_at = now
        for one in self._containers:
            one.observe(now)
        self._revoke(now)
        # If a round fails before this, borrowers get no heartbeat and stop.
        for one in self._containers:
            if attended or not one.borrows:
                one.beat()
        demands = [one.demand for one in self._containers]
        longest = max((one.longest_ns for one in self._containers if one.busy), default=0)
        if (demands, longest) != self._planned:
            self._grant()
            self._planned = demands, longest

    def _revoke(self, now: int) -> None:
        """Pause all borrowers while an owner is active."""
        if not self._borrowers:
            return
        awake = frozenset(one.name for one in self._containers if one.is_awake)
        self.woken, self._awake = awake - self._awake, awake
        for one in self._borrowers if awake else ():
            one.revoke(now)

    def _grant(self) -> None:
        granted = time_grants.grants(one.sharer for one in self._containers)
        for one in self._containers:
            one.write(granted.get(one.name, time_grants.TimeGrant()))


class TimeSlicer:
    """Plans the time of the given containers' cards, in a thread of its own.

    Called from that thread: `containers`, ten times a second, returns the containers, and the same
    object until they change. `new_code` is called when code may have been loaded to a card that no
    container's account includes yet. `woke` is called with the names of containers that own a
    borrowed card and have become active; its borrowers have been paused already.

    Called from the event loop: `watched` returns whether owners without the shim are being watched.

    `clock` returns nanoseconds of CLOCK_MONOTONIC. A new time slicer does not know what an earlier
    one granted, and plans everything anew.
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
        self._without_borrowers: list[SharedCard] = []
        self._sleepers: list[ContainerCard] = []
        self._watch = ActivityWatch([])
        self._rescan_at = 0
        self._check_at = 0
        self._last_round = clock()
        self._attended_at: int | None = None
        self._unaccounted: Mapping[tuple[str, str], Unaccounted] = {}
        self._written: Mapping[tuple[str, str], Unaccounted] | None = None

    def round(self, now_ns: int | None = None) -> float:
        """Observe the containers once and write changed grants. `now_ns`: nanoseconds of
        CLOCK_MONOTONIC; None for the current time. Returns the seconds until the next round."""
        now = self._clock() if now_ns is None else now_ns
        is_full = now >= self._rescan_at
        if is_full:
            self._rescan(now)
        cards = self._cards if is_full else self._due(now)
        attended = self._attended_at is None or now - self._attended_at < UNATTENDED_NS
        for card in cards:
            self._round_isolated(card, now, attended)
        if any(card.has_new_code for card in cards):
            self._new_code()
        for card in cards:
            if card.woken:
                self._woke(card.woken)
        if cards:
            self._contend([card for card in self._cards if card.is_contended])
            self._watch_sleepers()
        self._last_round = now
        return CONTENDED_S if self._contended else ALL_S

    def _round_isolated(self, card: SharedCard, now: int, attended: bool) -> None:
        """Do a card's round. If it fails, the card's grants stay as they are, and the other cards'
        rounds go on."""
        try:
            card.round(now, attended)
            card.failed_at = None
        except Exception:
            if card.failed_at is None or now - card.failed_at >= TOLD_NS:
                slots = ", ".join(card.names)
                log.exception("a card's GPU time cannot be divided: grants unchanged", slot=slots)
                card.failed_at = now

    def _due(self, now: int) -> list[SharedCard]:
        """The contended cards that need a round."""
        # A container that becomes active after this comparison is found by the next one.
        changed = self._watch.has_changed()
        cards = self._contended if changed else self._without_borrowers
        return [one for one in cards if one.is_due(now, changed)]

    def _watch_none(self) -> None:
        """Watch no container. To be called when files were closed, since their descriptors may soon
        refer to other files."""
        self._contend([])
        self._sleepers, self._watch = [], ActivityWatch([])

    def _contend(self, cards: list[SharedCard]) -> None:
        """Set the cards whose next round comes after CONTENDED_S. If no idle container becomes
        active, only those without borrowers may need one."""
        self._contended = cards
        self._without_borrowers = [card for card in cards if not card.has_borrowers]

    def _watch_sleepers(self) -> None:
        sleepers = [one for card in self._contended for one in card.sleepers]
        if sleepers != self._sleepers:
            self._sleepers = sleepers
            self._watch = ActivityWatch([one.place for one in sleepers])

    def run(self) -> None:
        """Do rounds until `stop`. After an exception, close all files and start again, since
        without rounds no container may borrow time."""
        while not self._stopped.is_set():
            try:
                self._pause(self.round())
            except Exception:
                log.exception("a round of time slicing failed: all containers are opened again")
                self.close()
                self._pause(RESTART_S)
        self.close()

    async def serve(self) -> None:
        """Run `run` in a thread until cancelled. Calls `attend` while `watched` says that owners
        are watched, so that borrowers stop when the event loop hangs."""
        self._attended_at = self._clock() - UNATTENDED_NS
        running = asyncio.create_task(asyncio.to_thread(self.run))
        try:
            while not running.done():
                if self._watched():
                    self.attend()
                await asyncio.sleep(ATTEND_S)
            await running
        finally:
            self._stopped.set()
            running.cancel()

    def attend(self) -> None:
        """Note that owners without the shim are being watched. After the first call, borrowers stop
        when no further one comes for UNATTENDED_NS and the second that their shims tolerate."""
        self._attended_at = self._clock()

    def set_unaccounted(self, unaccounted: Mapping[tuple[str, str], Unaccounted]) -> None:
        """Set how much memory the containers' own accounts leave out; written to their limits
        within ALL_S. Keys: (slot's name, card's UUID). May be called from any thread."""
        self._unaccounted = unaccounted

    @property
    def idle_for(self) -> float:
        """Seconds since the last round, for the health probe."""
        return (self._clock() - self._last_round) / NS

    def start(self) -> None:
        """Start a thread that runs `run`."""
        self._thread = threading.Thread(target=self.run, name="time-slicer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread that `start` started. Grants stay as they were written."""
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
            time.sleep(seconds)  # half as expensive as an interruptible wait

    def _rescan(self, now: int) -> None:
        """Open new containers, close old ones, and read limits that were written."""
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
        """Close containers that are no longer wanted, or whose paths refer to other files now.
        Returns whether any was closed."""
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
                log.info("a slot gets no GPU time: cannot open it", slot=one.name, error=error)
                self._refused.add(one)
        return bool(new)

    def _read_limits(self) -> bool:
        """Read the limits that were written since the last call. Returns whether there were any."""
        changed = False
        for container, files in self._files.items():
            if (found := files.new_limits()) is not None:
                # A notice in the first limits of a container comes from an earlier agent, and does
                # not count.
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
