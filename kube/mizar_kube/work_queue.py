"""A work queue of keys: each key is queued once and given to one worker at a time; failed keys are
retried after a back-off."""

import asyncio
import heapq
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from functools import partial
from typing import Generic, TypeVar

from mizar_kube.backoff import Backoff
from mizar_kube.errors import KubeError
from mizar_kube.logs import get_logger
from mizar_kube.timed_wait import wait_until_set

log = get_logger(__name__)

K = TypeVar("K", bound=Hashable)

SHORTEST_WAIT_S = 0.001
"""The shortest wait for a key that is due later, in seconds."""


class WorkQueue(Generic[K]):
    """A queue of keys that wait for a worker. `get` gives a key to one worker at a time.

    A key that is added while a worker has it is queued again after `done`; a key that is added
    twice is queued once. `retry` adds it after the key's own back-off, which `forget` (a success)
    resets. `clock`: monotonic seconds; `random`: numbers in [0, 1). All of it belongs to one event
    loop.
    """

    def __init__(
        self,
        first_delay: float = 0.1,
        max_delay: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._new_backoff = partial(Backoff, first_delay, max_delay, random)
        self._ready: dict[K, float] = {}
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._working: dict[K, float] = {}
        self._again: set[K] = set()
        self._backoffs: dict[K, Backoff] = {}
        self._order = itertools.count()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, key: K, after: float = 0.0) -> None:
        """Schedule work on the key in `after` seconds, or sooner if it is already due sooner."""
        if after > 0:
            self._add_later(key, self._clock() + after)
        elif key in self._working:
            self._again.add(key)
        else:
            self._due.pop(key, None)
            self._ready.setdefault(key, self._clock())
            self._idle.clear()
        self._wake.set()

    def resync(self, keys: Iterable[K], over: float, random: Callable[[], float]) -> None:
        """Schedule work on all keys, spread over the next `over` seconds."""
        for key in keys:
            self.add(key, after=over * random())

    def _add_later(self, key: K, due: float) -> None:
        if key in self._ready or due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        heapq.heappush(self._later, (due, next(self._order), key))

    async def get(self) -> K:
        """The next key, the longest waiting first. Call `done` for it when the work has ended."""
        while True:
            self._move_due()
            if self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                self._working[key] = self._clock()
                return key
            await self._wait()

    def done(self, key: K) -> None:
        """End the work on a key from `get`: another worker may get it now."""
        del self._working[key]
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        if not self._ready and not self._working:
            self._idle.set()

    async def wait_idle(self, within: float) -> None:
        """Wait until no key is ready or being worked on, `within` seconds at most."""
        await wait_until_set(self._idle, within=within)

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Add the key again after its back-off, or `at_least` seconds. Returns the delay in
        seconds."""
        backoff = self._backoffs.setdefault(key, self._new_backoff())
        delay = max(backoff.next(), at_least)
        self.add(key, after=delay)
        return delay

    def has_news(self, key: K) -> bool:
        """Whether a key that is being worked on was added again meanwhile."""
        return key in self._again

    def forget(self, key: K) -> None:
        """Reset the key's back-off, after a success."""
        self._backoffs.pop(key, None)

    def failures(self, key: K) -> int:
        """How often in a row the work on the key has failed."""
        return self._backoffs[key].failures if key in self._backoffs else 0

    def oldest(self) -> float:
        """Seconds since the oldest key became ready or was taken by a worker; 0 when there is none.
        A health probe should fail when this grows beyond any sensible duration."""
        since = itertools.chain(self._ready.values(), self._working.values())
        return self._clock() - min(since, default=self._clock())

    def __len__(self) -> int:
        """How many keys are ready for a worker."""
        self._move_due()
        return len(self._ready)

    def _move_due(self) -> None:
        """Make the keys ready that are due. A key that was added again sooner leaves an old
        entry."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)

    async def _wait(self) -> None:
        self._wake.clear()
        due = self._later[0][0] - self._clock() if self._later else None
        # A wait shorter than the clock's resolution would end before the clock shows it, for ever.
        await wait_until_set(self._wake, within=due if due is None else max(due, SHORTEST_WAIT_S))


async def work(queue: WorkQueue[K], handle: Callable[[K], Awaitable[object]]) -> None:
    """Take keys and handle them, for ever; retries a key whose handling raises.

    Several of these may share a queue. Errors are logged, never raised.
    """
    while True:
        key = await queue.get()
        try:
            await handle(key)
        except KubeError as error:
            delay = queue.retry(key, at_least=error.retry_after or 0.0)
            log.warning("work failed", key=str(key), error=error, retry_s=round(delay, 1))
        except Exception:
            delay = queue.retry(key)
            log.exception("work failed", key=str(key), retry_s=round(delay, 1))
        else:
            queue.forget(key)
        finally:
            queue.done(key)
