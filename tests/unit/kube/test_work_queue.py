"""The work queue, as a specification and against a model."""

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mizar_kube import work_queue
from mizar_kube.errors import Unavailable
from mizar_kube.work_queue import WorkQueue, work
from support.effort import effort
from support.waiting import PATIENCE_S


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock, **options: float) -> WorkQueue[str]:
    return WorkQueue(clock=clock, random=lambda: 1.0, **options)


async def test_a_key_added_twice_comes_once_and_in_order() -> None:
    queue = make(Clock())
    for key in "abab":
        queue.add(key)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_is_never_with_two_workers() -> None:
    queue = make(Clock())
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"


async def test_failures_wait_longer_and_longer_and_success_forgets() -> None:
    queue = make(Clock(), first_delay=1, max_delay=5)
    delays = [queue.retry("a") for _ in range(4)]
    assert delays == [1, 2, 4, 5]
    assert queue.failures("a") == 4
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.retry("a") == 1
    assert queue.retry("b", at_least=3) == 3


async def test_a_change_does_not_wait_for_the_back_off() -> None:
    clock = Clock()
    queue = make(clock, first_delay=10)
    queue.retry("a")
    assert len(queue) == 0
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    clock.now = 100
    assert len(queue) == 0, "the old retry is forgotten"


async def test_get_waits_for_what_is_due() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", after=0.01)
    async with asyncio.timeout(PATIENCE_S):
        assert await queue.get() == "a"


async def test_resync_spreads() -> None:
    clock = Clock()
    queue = make(clock)
    chances = iter([0.5, 0.1])
    queue.resync("ab", over=10, random=lambda: next(chances))
    clock.now = 1
    assert await queue.get() == "b"
    assert len(queue) == 0
    clock.now = 5
    assert await queue.get() == "a"


async def test_oldest_tells_how_long_somebody_waits() -> None:
    clock = Clock()
    queue = make(clock)
    assert queue.oldest() == 0
    queue.add("a")
    clock.now = 5
    assert queue.oldest() == 5
    await queue.get()
    clock.now = 7
    assert queue.oldest() == 2
    queue.done("a")
    assert queue.oldest() == 0


async def test_waiting_for_an_idle_queue_has_a_bound() -> None:
    queue = make(Clock())
    queue.add("a")
    await queue.wait_idle(0.001)
    assert len(queue) == 1


async def test_worker_tries_again_whatever_goes_wrong(caplog: pytest.LogCaptureFixture) -> None:
    queue: WorkQueue[str] = WorkQueue(first_delay=0.001)
    outcomes = iter([Unavailable("away"), ValueError("bug"), None])
    finished = asyncio.Event()

    async def handle(key: str) -> None:
        if (error := next(outcomes)) is not None:
            raise error
        finished.set()

    queue.add("a")
    worker = asyncio.create_task(work(queue, handle))
    async with asyncio.timeout(PATIENCE_S):
        await finished.wait()
    await asyncio.sleep(0)
    worker.cancel()
    assert queue.failures("a") == 0
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


KEYS = st.sampled_from("abc")


class QueueMachine(RuleBasedStateMachine):
    """No key is lost, none is given to two workers at a time, and none before it is due."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.loop = asyncio.new_event_loop()
        self.queue: WorkQueue[str] = WorkQueue(1, 8, self.clock, lambda: 1.0)
        self.due: dict[str, float] = {}
        self.working: set[str] = set()

    def teardown(self) -> None:
        self.loop.close()

    @rule(key=KEYS, after=st.integers(0, 5))
    def add(self, key: str, after: int) -> None:
        self.queue.add(key, after=after)
        self._wanted(key, self.clock.now + after)

    @rule(key=KEYS)
    def fail(self, key: str) -> None:
        self._wanted(key, self.clock.now + self.queue.retry(key))

    @rule(key=KEYS)
    def succeed(self, key: str) -> None:
        self.queue.forget(key)
        assert self.queue.failures(key) == 0

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.ready())
    @rule()
    def get(self) -> None:
        key = self.loop.run_until_complete(self.queue.get())
        assert key in self.ready()
        del self.due[key]
        self.working.add(key)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.working.remove(key)
        self.queue.done(key)

    @invariant()
    def gives_out_what_is_due_and_nothing_else(self) -> None:
        assert len(self.queue) == len(self.ready())

    @invariant()
    def is_idle_while_there_is_nothing_to_do(self) -> None:
        async def waits() -> bool:
            waiting = asyncio.ensure_future(self.queue.wait_idle(PATIENCE_S))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return not waiting.done() and waiting.cancel()

        busy = bool(self.ready() or self.working)
        len(self.queue)  # makes those ready that have become due
        assert self.loop.run_until_complete(waits()) == busy

    def ready(self) -> set[str]:
        now = self.clock.now
        return {key for key, due in self.due.items() if due <= now and key not in self.working}

    def _wanted(self, key: str, due: float) -> None:
        self.due[key] = min(due, self.due.get(key, due))


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = effort(20, stateful_step_count=30)


async def test_a_wait_is_never_shorter_than_clocks_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that stood still, the key would be waited for again and again."""
    now, waits = 1e9, list[float]()
    queue: WorkQueue[str] = WorkQueue(clock=lambda: now)
    queue.add("a", after=1e-6)

    async def wait(event: asyncio.Event, within: float | None) -> None:
        nonlocal now
        assert within is not None
        waits.append(within)
        now += within

    monkeypatch.setattr(work_queue, "wait_until_set", wait)
    assert await queue.get() == "a"
    assert waits == [work_queue.SHORTEST_WAIT_S]
