"""Takes cards back: stops the borrower's work, ends its processes, and says so.

Nothing of it needs the API server, but for the pod's deletion, which the operator does when it sees
the condition DisruptionTarget: that has to wait until the processes are ended, or the kubelet would
end them in the middle of their notice.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
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
from mizar_nodeagent.spot.events import PodIdentity
from mizar_nodeagent.spot.metrics import SpotMetrics

log = get_logger(__name__)

SOON_S: Final = 0.005
"""Between two looks for processes that are left: one that was forking may have a child now."""
LATE_S: Final = 0.5
"""Between two looks once some have survived for LONG_S."""
LONG_S: Final = 5.0
"""After notice and grace: then the pod has to go, whether its processes could be ended or not."""
WITH_NOTICE: Final = (SpotEvictionReason.OWNER_BACK, SpotEvictionReason.DRAIN)
"""For other reasons the card is somebody's who never agreed to a notice, or nobody's."""

WHY: Final = {
    SpotEvictionReason.OWNER_BACK: "its owner works again",
    SpotEvictionReason.OWNER_ALIVE: "a pod that does not lend it holds it now",
    SpotEvictionReason.OWNER_GONE: "nobody holds it any more, and it is the scheduler's to give",
    SpotEvictionReason.DEVICE_LOST: "it cannot be used",
    SpotEvictionReason.QUOTA_RECLAIM: "the namespace has more than its quota permits",
    SpotEvictionReason.DRAIN: "its pool lends no cards any more",
}


class Reclaimer:
    """Takes back all cards of a borrower at once. `notify`, `warn`: emit events on a pod. `ended`
    is called soon after a borrower has come to be `has_ended`. `proc`: the node's /proc; `clock`:
    monotonic seconds."""

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
        self._in_notice: set[Key] = set()
        self._ended: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def take_back(
        self,
        card: str,
        borrower: Borrower,
        reason: SpotEvictionReason,
        spot: Spot,
        owners: Collection[PodIdentity],
    ) -> None:
        """Begin; a borrower of several cards loses them together. Its work is stopped when this
        returns, unless it gets a notice."""
        key = borrower.pod.key
        self._borrowers[key] = borrower
        if key in self._running:
            return
        notice = min(borrower.notice, spot.notice_seconds) if reason in WITH_NOTICE else 0.0
        if notice:
            self._in_notice.add(key)
        (self._let_run if notice else self._stop)(borrower)
        self._tell(card, borrower, reason, owners, notice)
        grace = min(borrower.grace, spot.grace_seconds)
        self._running[key] = asyncio.create_task(
            self._end(key, reason, self._clock(), notice, grace)
        )
        late = notice + grace + LONG_S
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(late, self._let_go, key, reason)

    def has_ended(self, key: Key) -> bool:
        """Whether the pod may be evicted: no process of its cards' containers is left, or one
        survives for too long, or cannot be ended from here."""
        return key in self._ended

    def forget(self, present: Iterable[Borrower]) -> None:
        """Only these borrowers hold cards now: the others are gone."""
        names = {one.pod.key: one.pod.uid for one in present}
        for key, known in list(self._borrowers.items()):
            if key not in names or (known.pod.uid and names[key] not in ("", known.pod.uid)):
                self._running.pop(key).cancel()
                self._timers.pop(key).cancel()
                self._in_notice.discard(key)
                self._ended.discard(key)
                del self._borrowers[key]

    async def close(self) -> None:
        """End all tasks; another agent goes on with them. Until it comes, nobody computes beside an
        owner that works: whoever is in its notice is stopped."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._running.values():
            task.cancel()
        for key in self._in_notice:
            self._stop(self._borrowers[key])
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _end(
        self, key: Key, reason: SpotEvictionReason, began: float, notice: float, grace: float
    ) -> None:
        """End every process of the borrower, and see that none comes again while its pod is
        there."""
        if notice:
            await self._ask(key, signals.NOTICE, notice)
            self._in_notice.discard(key)
            self._stop(self._borrowers[key])
        if grace:
            await self._ask(key, signal.SIGTERM, grace)
        await self._kill(key, began + notice + grace)
        seconds = self._clock() - began
        self._metrics.reclaimed(seconds)
        log.info("card taken back", duration_ms=round(seconds * 1000, 1), **_names(key))
        self._let_go(key, reason)
        while True:
            await asyncio.sleep(LATE_S)
            await self._kill(key, self._clock())

    def _let_go(self, key: Key, reason: SpotEvictionReason) -> None:
        """Permit the eviction, once, and count it before."""
        if key not in self._ended:
            self._metrics.evicted(reason)
            self._ended.add(key)
            # In a call of its own: what goes wrong there must not end the reclaim.
            asyncio.get_running_loop().call_soon(self._tell_ended)

    async def _ask(self, key: Key, number: int, seconds: float) -> None:
        """Send a signal, and wait until all have ended, `seconds` at most."""
        until = self._clock() + seconds
        left = await self._send(key, number)
        while left and self._clock() < until:
            await asyncio.sleep(min(0.05, max(SOON_S, until - self._clock())))
            left = await self._send(key, 0)

    async def _kill(self, key: Key, began: float) -> None:
        told = False
        while left := await self._send(key, signal.SIGKILL):
            late = self._clock() - began > LONG_S
            if late and not told:
                told = True
                log.error("processes survive SIGKILL", count=left, **_names(key))
            await asyncio.sleep(LATE_S if late else SOON_S)

    async def _send(self, key: Key, number: int) -> int:
        """How many processes there were; some while that is not known."""
        borrower = self._borrowers[key]
        try:
            if borrower.uids:
                return await asyncio.to_thread(self._signal, borrower, number)
        except OSError as error:
            log.error("a borrower cannot be ended from here", error=error, **_names(key))
        await asyncio.sleep(LATE_S)
        return 1

    def _stop(self, borrower: Borrower) -> None:
        """No new work and no more memory, whatever happens to its processes."""
        for slot in self._slots.all():
            if borrower.owns(slot):
                with _logged(slot.name):
                    limits_file.stop_cards(slot.limits, borrower.cards)

    def _let_run(self, borrower: Borrower) -> None:
        """It computes on beside the owner, until the notice is over or no agent lives."""
        for slot in self._slots.all():
            if borrower.owns(slot):
                with _logged(slot.name):
                    limits_file.give_notice(slot.limits, borrower.cards)

    def _tell(
        self,
        card: str,
        borrower: Borrower,
        reason: SpotEvictionReason,
        owners: Collection[PodIdentity],
        notice: float,
    ) -> None:
        after = f" in {notice:g} s" if notice else ""
        whose = f" of {', '.join(map(str, sorted(owners)))}" if owners else ""
        note = f"it loses card {card}{whose}{after}: {WHY[reason]} ({reason})"
        log.warning("a card is taken back", card=card, reason=reason, **_names(borrower.pod.key))
        self._warn(_owner(borrower.pod), EventReason.SPOT_EVICTED, note)
        for one in owners:
            text = f"card {card} is taken back from spot pod {borrower.pod}: {WHY[reason]}"
            self._notify(_owner(one), EventReason.OWNER_WOKE, text)


@contextmanager
def _logged(slot: str) -> Iterator[None]:
    """A slot without its files, or with damaged ones, has no work to stop."""
    try:
        yield
    except (OSError, RegionDamaged) as error:
        log.warning("the limits cannot be changed", slot=slot, error=error)


def _owner(pod: PodIdentity) -> Owner:
    return Owner(pod.namespace, pod.name, pod.uid, "")


def _names(key: Key) -> dict[str, str]:
    return {"namespace": key[0], "pod": key[1]}
