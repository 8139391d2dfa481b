"""Events reach the API server once, count repeats, and never hold up the program."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from mizar_kube.errors import Unavailable
from mizar_kube.event_series import (
    BURST,
    REFILL_S,
    SERIES_WINDOW_S,
    EventLog,
    Occurrence,
    Regarding,
)
from mizar_kube.events import OTHERS_FIRST_S, TIDY_EVERY_S, EventRecorder
from mizar_kube.kinds import NODE, POD, Object
from support.waiting import until
from unit.kube.fake_api import Answer, Asked, FakeApi, pod, serving, status

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
ABOUT = Regarding(POD, "p", "ns", "uid-p")


class Fixture:
    def __init__(self, recorder: EventRecorder) -> None:
        self.recorder, self.now = recorder, 0.0
        self.waits: list[float] = []
        self.others = asyncio.Event()

    def clock(self) -> float:
        return self.now

    async def others_done(self, within: float) -> None:
        self.waits.append(within)
        await self.others.wait()

    def wall(self) -> datetime:
        return START + timedelta(seconds=self.now)


@asynccontextmanager
async def recording(api: FakeApi) -> AsyncIterator[Fixture]:
    async with serving(api) as client:
        one = Fixture.__new__(Fixture)
        one.now, one.waits, one.others = 0.0, [], asyncio.Event()
        one.others.set()
        one.recorder = EventRecorder(
            client, "mizar-operator", "pod-1", one.clock, one.wall, one.others_done
        )
        yield one


async def test_an_event_says_who_what_and_when() -> None:
    api = FakeApi()
    async with recording(api) as one:
        one.recorder.emit(pod("p", 1), "QuotaExceeded", "No more.", warning=True)
        await one.recorder.flush()
    (asked,) = api.asked
    assert (asked.method, asked.path) == ("POST", "/apis/events.k8s.io/v1/namespaces/ns/events")
    name = asked.body.pop("metadata")["name"]
    assert name.startswith("p.") and len(name) == 18
    assert asked.body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "p",
            "namespace": "ns",
            "uid": "uid-p",
        },
        "reason": "QuotaExceeded",
        "note": "No more.",
        "type": "Warning",
        "action": "Reconcile",
        "eventTime": "2026-01-31T12:00:00.000000Z",
        "reportingController": "mizar-operator",
        "reportingInstance": "pod-1",
    }


async def test_events_of_cluster_wide_objects_live_in_default() -> None:
    api = FakeApi()
    async with recording(api) as one:
        one.recorder.emit(Regarding(NODE, "n"), "A", "b")
        await one.recorder.flush()
    assert api.asked[0].path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert "namespace" not in api.asked[0].body["regarding"]


async def test_repeats_are_counted_and_written_now_and_then() -> None:
    api = FakeApi()
    async with recording(api) as one:
        for _ in range(5):
            one.recorder.emit(ABOUT, "A", "b")
            await one.recorder.flush()
        assert len(api.asked) == 1
        one.now = 31
        await one.recorder.flush()
        await one.recorder.flush()
    assert [asked.method for asked in api.asked] == ["POST", "PATCH"]
    assert api.asked[1].body == {
        "series": {"count": 5, "lastObservedTime": "2026-01-31T12:00:00.000000Z"}
    }
    assert api.asked[1].path.endswith(api.asked[0].body["metadata"]["name"])


async def test_a_repeat_much_later_is_a_new_event() -> None:
    api = FakeApi()
    async with recording(api) as one:
        one.recorder.emit(ABOUT, "A", "b")
        await one.recorder.flush()
        one.now = 601
        one.recorder.emit(ABOUT, "A", "b")
        await one.recorder.flush()
    assert [asked.method for asked in api.asked] == ["POST", "POST"]


async def test_events_too_old_for_repeats_are_forgotten_now_and_then() -> None:
    """Not after each new event: a storm has many, and all would be looked through each time."""
    kept = []
    async with recording(FakeApi()) as one:
        for now in (0.0, SERIES_WINDOW_S - 1, SERIES_WINDOW_S + 1, SERIES_WINDOW_S + TIDY_EVERY_S):
            one.now = now
            one.recorder.emit(ABOUT, "A", f"at {now}")
            await one.recorder.flush()
            kept.append(len(one.recorder._log))
    assert kept == [1, 2, 3, 3]


async def test_events_wait_for_a_while_behind_other_work() -> None:
    """In a burst, a thousand shadow pods are created before a thousand events say so."""
    api = FakeApi()
    async with recording(api) as one:
        one.others.clear()
        running = asyncio.create_task(one.recorder.run())
        one.recorder.emit(ABOUT, "A", "b")
        await until(lambda: one.waits == [OTHERS_FIRST_S])
        assert api.asked == []
        one.others.set()
        await until(lambda: len(api.asked) == 1)
        running.cancel()


async def test_an_event_that_somebody_deleted_is_written_again() -> None:
    def reply(asked: Asked) -> Answer:
        return Answer(status(404, "NotFound"), 404) if asked.method == "PATCH" else Answer({})

    api = FakeApi(others=reply)
    async with recording(api) as one:
        one.recorder.emit(ABOUT, "A", "b")
        await one.recorder.flush()
        one.recorder.emit(ABOUT, "A", "b")
        one.now = 31
        await one.recorder.flush()
    assert [asked.method for asked in api.asked] == ["POST", "PATCH", "POST"]
    assert api.asked[2].body["series"]["count"] == 2


async def test_one_object_cannot_flood_the_log() -> None:
    api = FakeApi()
    async with recording(api) as one:
        for number in range(15):
            one.recorder.emit(ABOUT, "A", f"note {number}")
        await one.recorder.flush()
        assert len(api.asked) == 10
        one.now = 61
        one.recorder.emit(ABOUT, "A", "a minute later")
        one.recorder.emit(Regarding(POD, "other", "ns"), "A", "b")
        await one.recorder.flush()
    assert len(api.asked) == 12


def test_what_limits_an_object_is_remembered_while_it_does() -> None:
    log = EventLog()
    for at, note in [(0.0, str(number)) for number in range(BURST + 1)] + [(1.0, "later")]:
        log.tidy(at)
        log.record(Occurrence(ABOUT, "Happened", note), note, at, START)
    assert len(log) == BURST
    log.tidy(BURST * REFILL_S - 1)
    assert ABOUT in log._buckets
    log.tidy(BURST * REFILL_S)
    assert not log._buckets


@pytest.mark.parametrize(("code", "reason"), [(401, "Unauthorized"), (403, "Forbidden")])
async def test_what_is_not_permitted_yet_is_written_later(code: int, reason: str) -> None:
    """An API server that has just started knows no roles."""
    answers = iter([Answer(status(code, reason), code), Answer({})])
    api = FakeApi(others=lambda asked: next(answers))
    async with recording(api) as one:
        one.recorder.emit(ABOUT, "A", "b")
        for one.now in (0, 1, 4.9):
            await one.recorder.flush()
        assert len(api.asked) == 1
        for one.now in (5, 10):
            await one.recorder.flush()
        assert len(api.asked) == 2


WEBHOOK_FAILED = status(500, "InternalError", 'failed calling webhook "a.b": timeout')


@pytest.mark.parametrize(
    ("refusal", "tried"),
    [(status(403, "Forbidden"), 13), (status(422, "Invalid"), 1), (WEBHOOK_FAILED, 13)],
    ids=["forbidden", "invalid", "a webhook that fails in one namespace"],
)
async def test_refused_events_are_dropped_and_the_rest_goes_on(refusal: Object, tried: int) -> None:
    def reply(asked: Asked) -> Answer:
        refused = asked.body["reason"] == "Bad"
        return Answer(refusal, refusal["code"]) if refused else Answer({})

    api = FakeApi(others=reply)
    async with recording(api) as one:
        one.recorder.emit(ABOUT, "Bad", "b")
        one.recorder.emit(ABOUT, "Good", "b")
        for one.now in range(0, 100, 5):
            await one.recorder.flush()
    assert [asked.body["reason"] for asked in api.asked][:2] == ["Bad", "Good"]
    assert len(api.asked) == tried + 1


async def test_events_wait_for_an_api_server_that_is_away() -> None:
    answers = iter([Answer(status(503, ""), 503), Answer({})])
    api = FakeApi(others=lambda asked: next(answers))
    async with recording(api) as one:
        one.recorder.emit(ABOUT, "A", "b")
        with pytest.raises(Unavailable):
            await one.recorder.flush()
        await one.recorder.flush()
    assert len(api.asked) == 2


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mizar_kube.events.MOST_KEPT", 3)
    api = FakeApi()
    async with recording(api) as one:
        for number in range(5):
            one.recorder.emit(Regarding(POD, f"p{number}", "ns"), "A", "b")
        await one.recorder.flush()
        assert len(api.asked) == 3
        one.now = 10_000
        await one.recorder.flush()
        one.recorder.emit(ABOUT, "A", "b")
        await one.recorder.flush()
    assert len(api.asked) == 4


async def test_ten_thousand_waiting_pods_are_told_why_and_what_changes() -> None:
    """All in one plan, and again five minutes later; events are kept for ten minutes, to count
    repeats."""
    async with recording(FakeApi()) as one:
        for second, words in ((0, "a"), (300, "b")):
            one.now = second
            for number in range(10_000):
                one.recorder.emit(Regarding(POD, f"p{number}", "ns"), "NoCardFree", words)
        assert len(one.recorder._log) == 20_000


async def test_run_writes_at_once() -> None:
    api = FakeApi()
    async with recording(api) as one:
        task = asyncio.create_task(one.recorder.run())
        one.recorder.emit(ABOUT, "A", "b")
        await until(lambda: bool(api.asked))
        task.cancel()


async def test_a_long_note_has_at_most_as_many_bytes_as_the_api_server_takes() -> None:
    """It counts bytes: a policy's message in Chinese has three for each character."""
    api = FakeApi()
    async with recording(api) as one:
        one.recorder.emit(ABOUT, "ShadowRefused", "拒" * 2000)
        await one.recorder.flush()
    (asked,) = api.asked
    assert 1000 < len(asked.body["note"].encode()) <= 1024


@pytest.mark.parametrize("char", ["-", "."])
async def test_the_name_of_an_event_is_valid_wherever_that_of_its_object_is_cut(char: str) -> None:
    api = FakeApi()
    name = "p" * 229 + char + "q"
    async with recording(api) as one:
        one.recorder.emit(Regarding(POD, name, "ns", "uid"), "QuotaExceeded", "No more.")
        await one.recorder.flush()
    (asked,) = api.asked
    assert is_dns_subdomain(asked.body["metadata"]["name"])


def is_dns_subdomain(name: str) -> bool:
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    return len(name) <= 253 and re.fullmatch(rf"{label}([.]{label})*", name) is not None
