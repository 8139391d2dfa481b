"""Takes cards back: stops the borrower's work, ends its processes, and emits events about it.

Only the eviction of the pod needs the API server: the operator evicts it once the pod has the
condition DisruptionTarget. The condition must wait until the processes have ended, or the kubelet
would end them before their notice is over.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from mizar_core.models import Spot
from mizar_core.names import EventReason, SpotEvictionReason
from mizar_kube.logs import get_logger
from mizar_nodeagent.container.slots import Notify, Owner, Slots
from mizar_nodeagent.container_processes import PROC
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.pods import Key
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.spot import signals
from mizar_nodeagent.spot.borrowers import Borrower
from mizar_nodeagent.spot.loan import WITH_NOTICE, CardLoan
from mizar_nodeagent.spot.metrics import SpotMetrics
from mizar_nodeagent.spot.owner_events import PodIdentity

log = get_logger(__name__)

SOON_S: Final = 0.005
"""Seconds between two searches for remaining processes. A search may miss the child of a process
that is forking, so that a single one is not enough."""
LATE_S: Final = 0.5
"""Seconds between two searches for processes once some have survived SIGKILL for LONG_S, and after
all have ended."""
LONG_S: Final = 5.0
"""Seconds after notice and grace at which the pod may be evicted although processes remain."""

WHY: Final = {
    SpotEvictionReason.OWNER_BACK: "its owner is active again",
    SpotEvictionReason.OWNER_ALIVE: "a pod that did not agree to lend it holds it now",
    SpotEvictionReason.OWNER_GONE: "no pod owns it any more, so the scheduler may assign it again",
    SpotEvictionReason.DEVICE_LOST: "it cannot be used",
    SpotEvictionReason.QUOTA_RECLAIM: "the namespace has more than its quota permits",
    SpotEvictionReason.DRAIN: "its pool no longer lends cards",
}
"""Why a card is taken back, as a clause about the card, for events and conditions."""


@dataclass(frozen=True)
class EvictionCause:
    """Why a borrower is evicted. `card`: UUID of the card that was taken back for this reason; the
    borrower's other cards may have been taken back for other reasons, or for none."""

    card: str
    reason: SpotEvictionReason


class Reclaimer:
    """Takes back all cards of a borrower at once. `notify` and `warn` emit a normal and a warning
    event on a pod. `ended` is called from the event loop soon after `has_ended` became true for a
    pod. `proc`: the node's /proc. `clock` returns monotonic seconds."""

    def __init__(
        self,
        slots: Slots,
        metrics: SpotMetrics,
        notify: Notify,
        warn: Notify,
        ended: Callable[[], None],
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._metrics = metrics
        self._notify = notify
        self._warn = warn
        self._tell_ended = ended
        self._signal = partial(signals.signal_all, proc=proc)
        self._clock = clock
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._borrowers: dict[Key, Borrower] = {}
        self._causes: dict[Key, EvictionCause] = {}
        self._told: dict[Key, set[str]] = {}
        self._in_notice: set[Key] = set()
        self._ended: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def take_back(
        self, loan: CardLoan, borrower: Borrower, spot: Spot, resumed: bool = False
    ) -> None:
        """Begin to take back all cards of the borrower, unless that has begun already. When this
        returns, its work is stopped, unless it gets a notice. A notice ends when there is a reason
        that permits none.

        `loan`: of a card that is taken back; its owners get an event, once for each card. `spot`:
        upper limits for notice and grace. `resumed`: an earlier agent began to take back all cards
        of the borrower, and told the owners that were active.
        """
        assert loan.reason is not None
        key, reason = borrower.pod.key, loan.reason
        self._borrowers[key] = borrower
        if key in self._running:
            self._revise(key, loan, reason)
        else:
            self._begin(loan, borrower, reason, spot)
        if not resumed or reason is not SpotEvictionReason.OWNER_BACK:
            self._tell_owners(loan, borrower, reason)

    def _begin(
        self, loan: CardLoan, borrower: Borrower, reason: SpotEvictionReason, spot: Spot
    ) -> None:
        key = borrower.pod.key
        self._causes[key] = EvictionCause(loan.uuid, reason)
        self._told[key] = set()
        notice = min(borrower.notice, spot.notice_seconds) if reason in WITH_NOTICE else 0.0
        if notice:
            self._in_notice.add(key)
        (self._let_run if notice else self._stop)(borrower)
        self._tell(loan, borrower, reason, notice)
        grace = min(borrower.grace, spot.grace_seconds)
        self._running[key] = asyncio.create_task(self._end(key, self._clock(), notice, grace))
        self._let_go_within(key, notice + grace + LONG_S)

    def _revise(self, key: Key, loan: CardLoan, reason: SpotEvictionReason) -> None:
        """Take a reason that permits no notice in place of one that does, before the eviction is
        counted."""
        permits = self._causes[key].reason in WITH_NOTICE
        if key in self._ended or not permits or reason in WITH_NOTICE:
            return
        self._causes[key] = EvictionCause(loan.uuid, reason)
        self._end_notice(key)
        self._told[key].discard(loan.uuid)
        self._tell(loan, self._borrowers[key], reason, notice=0.0)

    def _end_notice(self, key: Key) -> None:
        if key in self._in_notice:
            self._in_notice.discard(key)
            self._stop(self._borrowers[key])

    def has_ended(self, key: Key) -> bool:
        """Whether the pod may be evicted: its containers that hold cards have no process left, or
        LONG_S have passed since the end of notice and grace."""
        return key in self._ended

    def cause(self, key: Key) -> EvictionCause | None:
        """Why the pod is evicted, as it was counted; None until it may be evicted. It does not
        change any more, whatever becomes of the pod's other cards."""
        return self._causes[key] if key in self._ended else None

    def forget(self, present: Iterable[Borrower]) -> None:
        """Forget the reclaims of all borrowers but these, which are those that hold cards now."""
        names = {one.pod.key: one.pod.uid for one in present}
        for key, known in list(self._borrowers.items()):
            if key not in names or (known.pod.uid and names[key] not in ("", known.pod.uid)):
                self._running.pop(key).cancel()
                self._timers.pop(key).cancel()
                self._in_notice.discard(key)
                self._ended.discard(key)
                del self._causes[key], self._told[key]
                del self._borrowers[key]

    async def close(self) -> None:
        """Cancel all reclaims; the next agent resumes them. Borrowers in their notice period are
        stopped, so that none computes beside a working owner until then."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._running.values():
            task.cancel()
        for key in self._in_notice:
            self._stop(self._borrowers[key])
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _end(self, key: Key, began: float, notice: float, grace: float) -> None:
        """End every process of the borrower, and keep killing new ones for as long as the borrower
        holds cards. `began`: monotonic seconds; `notice`, `grace`: seconds."""
        if notice:
            await self._ask(key, signals.NOTICE, notice)
            self._end_notice(key)
            # The notice may have been cut short.
            self._let_go_within(key, grace + LONG_S)
        if grace:
            await self._ask(key, signal.SIGTERM, grace)
        await self._kill(key)
        seconds = self._clock() - began
        self._metrics.reclaimed(seconds)
        log.info("card taken back", duration_ms=round(seconds * 1000, 1), **_names(key))
        self._let_go(key)
        while True:
            await asyncio.sleep(LATE_S)
            await self._kill(key)

    def _let_go_within(self, key: Key, seconds: float) -> None:
        """Permit the eviction after these seconds at the latest, instead of an earlier bound."""
        if key in self._timers:
            self._timers[key].cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(seconds, self._let_go, key)

    def _let_go(self, key: Key) -> None:
        """Count the eviction and then permit it, unless that was done already."""
        if key not in self._ended:
            self._metrics.evicted(self._causes[key].reason)
            self._ended.add(key)
            # Called by the event loop, since an exception there must not end the reclaim.
            asyncio.get_running_loop().call_soon(self._tell_ended)

    async def _ask(self, key: Key, number: int, seconds: float) -> None:
        """Send a signal to the borrower's processes, and wait up to `seconds` for all to end, or
        for the end of the notice if it is one."""
        until = self._clock() + seconds
        left = await self._send(key, number)
        while left and self._clock() < until and self._waits(key, number):
            await asyncio.sleep(min(0.05, max(SOON_S, until - self._clock())))
            left = await self._send(key, 0)

    def _waits(self, key: Key, number: int) -> bool:
        return number != signals.NOTICE or key in self._in_notice

    async def _kill(self, key: Key) -> None:
        """Send SIGKILL until no process is left."""
        began, told = self._clock(), False
        while left := await self._send(key, signal.SIGKILL):
            late = self._clock() - began > LONG_S
            if late and not told:
                told = True
                log.error("processes survive SIGKILL", count=left, **_names(key))
            await asyncio.sleep(LATE_S if late else SOON_S)

    async def _send(self, key: Key, number: int) -> int:
        """Send a signal, or with 0 none. Returns how many processes there were; 1 if unknown."""
        borrower = self._borrowers[key]
        try:
            if borrower.uids:
                return await asyncio.to_thread(self._signal, borrower, number)
        except OSError as error:
            log.error("the borrower's processes cannot be ended", error=error, **_names(key))
        await asyncio.sleep(LATE_S)
        return 1

    def _stop(self, borrower: Borrower) -> None:
        """Let the borrower's shims refuse new work and more memory from now on."""
        for slot in self._slots.all():
            if borrower.owns(slot):
                with _logged(slot.name):
                    limits_file.stop_cards(slot.limits, borrower.cards)

    def _let_run(self, borrower: Borrower) -> None:
        """Let the borrower compute beside the owner until its notice is over or the agent dies."""
        for slot in self._slots.all():
            if borrower.owns(slot):
                with _logged(slot.name):
                    limits_file.give_notice(slot.limits, borrower.cards)

    def _tell(
        self, loan: CardLoan, borrower: Borrower, reason: SpotEvictionReason, notice: float
    ) -> None:
        card, after = loan.uuid, f" in {notice:g} s" if notice else ""
        note = f"the pod loses {loan.title}{after}: {WHY[reason]} ({reason})"
        log.warning("a card is taken back", card=card, reason=reason, **_names(borrower.pod.key))
        self._warn(_owner(borrower.pod), EventReason.SPOT_EVICTED, note)

    def _tell_owners(self, loan: CardLoan, borrower: Borrower, reason: SpotEvictionReason) -> None:
        """Tell the owners of the card that it is taken back, unless they were told already."""
        told = self._told[borrower.pod.key]
        if loan.uuid in told:
            return
        told.add(loan.uuid)
        text = f"card {loan.uuid} is taken back from spot pod {borrower.pod}: {WHY[reason]}"
        for one in loan.owners:
            self._notify(_owner(one), EventReason.OWNER_WOKE, text)


@contextmanager
def _logged(slot: str) -> Iterator[None]:
    """Log and suppress errors of a slot whose files are missing or damaged: no shim works by such
    a slot, so there is no work to stop."""
    try:
        yield
    except (OSError, RegionDamaged) as error:
        log.warning("the slot's limits cannot be changed", slot=slot, error=error)


def _owner(pod: PodIdentity) -> Owner:
    return Owner(pod.namespace, pod.name, pod.uid, "")


def _names(key: Key) -> dict[str, str]:
    return {"namespace": key[0], "pod": key[1]}
