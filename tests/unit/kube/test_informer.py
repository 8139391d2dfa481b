"""The informer's copy stays true whatever an API server does to it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest

from mizar_kube.client import KubeClient, Listing, WatchEvent
from mizar_kube.errors import Forbidden
from mizar_kube.informer import AT_ONCE, Informer, Timing, Watched, wait_synced
from mizar_kube.kinds import POD, Object
from support.logs import logged
from support.waiting import until
from unit.kube.fake_api import (
    GONE_EVENT,
    Answer,
    Asked,
    FakeApi,
    Reply,
    Stream,
    bookmark,
    event,
    listing,
    pod,
    serving,
    status,
)

Change = tuple[str | None, str | None]


class Clock:
    """Seconds that pass only when the informer sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class Follower:
    """An informer that keeps `name:version-label` of each pod, and what its listener heard."""

    def __init__(self, client: KubeClient, trim: Callable[[Object], str | None] | None = None):
        self.clock = Clock()
        timing = Timing(self.clock, self.clock.sleep, lambda: 0.0, page_size=2)
        watched = Watched(POD, "ns", field_selector="spec.nodeName=n")
        self.informer = Informer(client, watched, trim or summary, timing)
        self.changes: list[Change] = []
        self.informer.on_change(lambda old, new: self.changes.append((old, new)))

    async def until(self, *values: str) -> None:
        """Wait until the copy is exactly this."""
        await until(lambda: sorted(self.informer.values()) == sorted(values))


def summary(obj: Object) -> str:
    return f"{obj['metadata']['name']}:{obj['metadata']['labels'].get('v', '')}"


@asynccontextmanager
async def following(
    api: FakeApi, trim: Callable[[Object], str | None] | None = None
) -> AsyncIterator[Follower]:
    async with serving(api) as client:
        follower = Follower(client, trim)
        task = asyncio.create_task(follower.informer.run())
        yield follower
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Burst:
    """A client whose watch has all of its changes at once."""

    async def list_pages(self, *_: object, **how: object) -> AsyncIterator[Listing]:
        yield Listing([], "5")

    async def watch(self, *_: object, **how: object) -> AsyncIterator[WatchEvent]:
        for number in range(3 * AT_ONCE):
            yield WatchEvent("ADDED", pod(f"p{number}", 6 + number))
        await asyncio.Event().wait()


async def test_other_tasks_go_on_between_changes_that_come_at_once() -> None:
    """Otherwise the kubelet would wait for its answer until all are taken in."""
    follower, turns, seen = Follower(cast(KubeClient, Burst())), [0], Counter[int]()
    follower.informer.on_change(lambda old, new: seen.update(turns))

    async def go_on() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(one) for one in (follower.informer.run(), go_on())]
    await until(lambda: len(follower.changes) == 3 * AT_ONCE)
    for one in tasks:
        one.cancel()
    assert set(seen.values()) == {AT_ONCE}


async def test_lists_in_pages_then_watches_from_there() -> None:
    api = FakeApi()
    api.lists.extend([listing(5, pod("a", 1), pod("b", 2), more="x"), listing(5, pod("c", 3))])
    api.watches.append(Stream((event("ADDED", pod("d", 6)), event("DELETED", pod("a", 7)))))
    async with following(api) as one:
        await one.until("b:", "c:", "d:")
        await wait_synced([one.informer], 1)
        assert one.changes == [
            (None, "a:"),
            (None, "b:"),
            (None, "c:"),
            (None, "d:"),
            ("a:", None),
        ]
        assert (len(one.informer), one.informer.get("b", "ns")) == (3, "b:")
        assert ("ns", "b") in one.informer
        assert sorted(one.informer.items())[0] == (("ns", "b"), "b:")
    (query,) = api.watches_asked()
    assert (query["resourceVersion"], query["fieldSelector"]) == ("5", "spec.nodeName=n")


async def test_a_new_listener_hears_of_what_is_known() -> None:
    api = FakeApi()
    api.lists.append(listing(5, pod("a", 1)))
    async with following(api) as one:
        await one.until("a:")
        heard: list[Change] = []
        one.informer.on_change(lambda old, new: heard.append((old, new)))
    assert heard == [(None, "a:")]


async def test_goes_on_from_the_last_version_after_a_watch_ends() -> None:
    api = FakeApi()
    api.lists.append(listing(5))
    api.watches.extend(
        [
            Stream((event("ADDED", pod("a", 6)),), end="close"),
            Stream((bookmark(60),), end="close"),
            Stream((event("ADDED", pod("b", 61)),)),
        ]
    )
    async with following(api) as one:
        await one.until("a:", "b:")
        assert one.clock.slept == []
    assert [query["resourceVersion"] for query in api.watches_asked()] == ["5", "6", "60"]


async def test_goes_on_after_a_connection_cut_within_a_line() -> None:
    api = FakeApi()
    api.lists.append(listing(5))
    half = b'{"type":"ADDED","object":{"metadata":{"na'
    api.watches.extend(
        [
            Stream((event("ADDED", pod("a", 6)), half), end="cut"),
            Stream((event("ADDED", pod("b", 7)),)),
        ]
    )
    async with following(api) as one:
        await one.until("a:", "b:")
        assert one.clock.slept == [0.1]
    assert [query["resourceVersion"] for query in api.watches_asked()] == ["5", "6"]
    assert len([1 for asked in api.asked if "watch" not in asked.query]) == 1, "listed again"


@pytest.mark.parametrize("gone", [Stream((GONE_EVENT,)), Answer(status(410, "Gone"), 410)])
async def test_lists_again_when_its_version_is_forgotten(gone: Stream | Answer) -> None:
    """What was deleted, changed or made again meanwhile is noticed by the second list."""
    api = FakeApi()
    kept, changed, again = pod("kept", 1), pod("changed", 2), pod("again", 3)
    now = (kept, pod("changed", 80, v="new"), pod("again", 81, uid="other"))
    api.lists.append(listing(5, kept, changed, again, pod("deleted", 4)))
    api.lists.append(listing(90, *now))
    api.watches.append(gone)
    async with following(api) as one:
        await one.until("kept:", "changed:new", "again:")
        assert sorted(one.changes[4:], key=str) == [
            ("again:", None),
            ("changed:", "changed:new"),
            ("deleted:", None),
            (None, "again:"),
        ]


async def test_believes_a_list_that_is_older() -> None:
    """After etcd was restored, versions begin again at an older one."""
    api = FakeApi()
    api.lists.extend([listing(50, pod("a", 40, v="new")), listing(5, pod("a", 4, v="old"))])
    api.watches.append(Stream((GONE_EVENT,)))
    async with following(api) as one:
        await one.until("a:old")


async def test_lists_again_after_a_watch_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch from a version of the future gets neither events nor bookmarks: etcd was restored."""
    monkeypatch.setattr("mizar_kube.client.WATCH_QUIET_S", 0.1)
    api = FakeApi()
    api.lists.extend([listing(50, pod("a", 40, v="new"), pod("b", 45)), listing(5, pod("a", 4))])
    async with following(api) as one:
        await one.until("a:")
        await until(lambda: len(api.watches_asked()) >= 2)
    assert [query["resourceVersion"] for query in api.watches_asked()[:2]] == ["50", "5"]


async def test_pages_that_expire_are_asked_for_in_one() -> None:
    api = FakeApi()
    expired = Answer(status(410, "Expired"), 410)
    whole = listing(6, pod("a", 1), pod("b", 2), pod("c", 3))
    api.lists.extend([listing(5, pod("a", 1), pod("b", 2), more="x"), expired, whole])
    async with following(api) as one:
        await one.until("a:", "b:", "c:")
    assert [asked.query.get("limit") for asked in api.asked[:3]] == ["2", "2", "0"]


async def test_duplicates_and_what_is_not_kept_are_no_change() -> None:
    api = FakeApi()
    api.lists.append(listing(5, pod("a", 1)))
    api.watches.append(
        Stream(
            (
                event("ADDED", pod("a", 1)),
                event("MODIFIED", pod("a", 6, other="label")),
                event("MODIFIED", pod("a", 6, other="label")),
                event("DELETED", pod("never-seen", 7)),
                event("MODIFIED", pod("a", 8, v="2")),
            )
        )
    )
    async with following(api) as one:
        await one.until("a:2")
        assert one.changes == [(None, "a:"), ("a:", "a:2")]


async def test_objects_that_are_of_no_interest_or_not_understood_are_left_out() -> None:
    def trim(obj: Object) -> str | None:
        return None if obj["metadata"]["labels"].get("hide") else obj["metadata"]["labels"]["v"]

    api = FakeApi()
    api.lists.append(listing(5, pod("a", 1, v="a"), pod("broken", 2), pod("b", 3, hide="x")))
    api.watches.append(Stream((event("MODIFIED", pod("a", 6, hide="x")),)))
    async with following(api, trim) as one:
        await one.until()
        await one.informer.synced.wait()
        await until(lambda: len(one.changes) == 2)
        assert one.changes == [(None, "a"), ("a", None)]


async def test_backs_off_from_an_api_server_that_is_away_and_asks_for_time() -> None:
    api = FakeApi()
    api.lists.extend([Answer(status(503, ""), 503)] * 3)
    api.lists.append(Answer(status(429, ""), 429, {"Retry-After": "9"}))
    api.lists.append(listing(5, pod("a", 1)))
    async with following(api) as one:
        await one.until("a:")
        assert one.clock.slept == [0.1, 0.2, 0.4, 9.0]


async def test_survives_a_proxy_that_answers_in_place_of_the_api_server() -> None:
    """With a page that is no UTF-8, with other JSON, and with a wish to be left alone for hours."""
    page = Stream(("<p>Erreur : non autorisé".encode("latin-1"),), end="close")
    busy = Answer(status(503, ""), 503, {"Retry-After": "7200"})
    api = FakeApi()
    api.lists.extend([page, Answer({"status": "up"}), busy, listing(5, pod("a", 1))])
    api.watches.extend([page, Stream((b'{"status": "up"}\n', b"[]\n"))])
    async with following(api) as one:
        await one.until("a:")
        await until(lambda: len(api.watches_asked()) == 3)
        assert max(one.clock.slept) == 60.0


class ImpatientProxy(FakeApi):
    """Closes connections that have been without traffic for 35 s: those of the first ten watches,
    so that the informer cannot run ahead of a test that looks rarely."""

    CLOSES = 10
    clock: Clock

    def _reply(self, asked: Asked) -> Reply:
        if asked.query.get("watch") != "true":
            return super()._reply(asked)
        if len(self.watches_asked()) > self.CLOSES:
            return Stream(end="hang")
        self.clock.now += 35
        return Stream(end="cut")


@asynccontextmanager
async def _behind(api: ImpatientProxy) -> AsyncIterator[Follower]:
    async with serving(api) as client:
        follower = Follower(client)
        api.clock = follower.clock
        task = asyncio.create_task(follower.informer.run())
        yield follower
        task.cancel()


async def test_a_proxy_that_closes_quiet_watches_does_not_make_the_copy_stale() -> None:
    """Although no watch lasts until the first bookmark."""
    api = ImpatientProxy()
    api.lists.extend([listing(5, pod("a", 1))] * 3)
    async with _behind(api) as one:
        await until(lambda: len(api.watches_asked()) > api.CLOSES)
        assert set(one.clock.slept) <= {0.1}
        assert one.informer.problem() is None


async def test_such_a_proxy_does_not_hide_that_etcd_was_restored() -> None:
    """A watch from a version of the future brings nothing, however often it is begun again."""
    api = ImpatientProxy()
    api.lists.extend([listing(50, pod("a", 40, v="new"), pod("b", 45)), listing(5, pod("a", 4))])
    async with _behind(api) as one:
        await one.until("a:")


async def test_watches_that_end_at_once_are_no_busy_loop() -> None:
    api = FakeApi()
    api.lists.append(listing(5))
    api.watches.extend([Stream(end="close")] * 3)
    async with following(api) as one:
        await until(lambda: len(api.watches_asked()) == 4)
        assert one.clock.slept == [0.1, 0.2, 0.4]


async def test_what_the_api_server_forbids_is_logged_once_and_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, forbidden = FakeApi(), Answer(status(403, "Forbidden"), 403)
    api.lists.extend([forbidden, forbidden, forbidden, listing(5, pod("a", 1))])
    api.watches.append(forbidden)
    async with following(api) as one:
        await one.informer.answered.wait()
        assert not one.informer.synced.is_set()
        assert isinstance(one.informer.forbidden, Forbidden)
        assert one.informer.problem() == f"pods: not listed yet: {one.informer.forbidden}"
        await one.until("a:")
        await until(lambda: len(api.watches_asked()) == 2)
        await until(lambda: one.informer.forbidden is not None)
    told = [one for one in logged(caplog) if one["event"] == "the watch was interrupted"]
    assert len(told) == 2, "once before the list succeeded, once after"


async def test_a_listener_that_fails_stops_nobody() -> None:
    api = FakeApi()
    api.lists.append(listing(5, pod("a", 1), pod("b", 2)))
    async with serving(api) as client:
        one = Follower(client)

        def fail(old: str | None, new: str | None) -> None:
            raise RuntimeError("listener")

        one.informer.on_change(fail)
        task = asyncio.create_task(one.informer.run())
        await one.until("a:", "b:")
        task.cancel()


async def test_health() -> None:
    api = FakeApi()
    api.lists.append(listing(5))
    async with following(api) as one:
        assert one.informer.problem() == "pods: not listed yet"
        await one.informer.synced.wait()
        assert one.informer.problem() is None
        one.clock.now += 181
        assert one.informer.age() == 181
        assert one.informer.problem() == "pods: nothing heard from the API server for 181 s"
        assert one.informer.problem(stale_after=200) is None


async def test_an_api_server_that_is_away_for_an_hour_is_asked_all_the_while() -> None:
    """Nothing is heard of the API server, but nothing hangs that a restart would mend."""
    api = FakeApi(others=lambda asked: Answer(status(503, ""), 503))
    async with following(api) as one:
        began = one.clock.now
        await until(lambda: one.clock.now > began + 3600)
        assert one.informer.age() > 3600
        assert one.informer.since_attempt() <= 30
        assert one.informer.stands_still() is None
        one.clock.now += 601
        assert one.informer.since_attempt() >= 601
        assert "pods: the API server was not asked for" in str(one.informer.stands_still())


async def test_own_writes_are_taken_in_before_the_watch_brings_them() -> None:
    api = FakeApi()
    api.lists.append(listing(5, pod("a", 1)))
    async with following(api) as one:
        one.informer.observe(pod("early", 9))
        await one.until("a:")
        one.informer.observe(pod("a", 7, v="mine"))
        await one.until("a:mine")
        one.informer._take(_watched("MODIFIED", pod("a", 6, v="older")))
        await one.until("a:mine")
        one.informer._take(_watched("DELETED", pod("a", 8)))
        one.informer.observe(pod("a", 7, v="mine"))
        await one.until()


async def test_a_list_that_is_older_than_an_own_write_does_not_take_it_back() -> None:
    api = FakeApi()
    api.lists.extend([listing(5, pod("a", 1)), listing(6, pod("a", 1), pod("late", 6))])
    async with following(api) as one:
        await one.until("a:")
        one.informer.observe(pod("a", 7, v="mine"))
        one.informer.observe(pod("made", 8))
        await one.informer._list()
        assert sorted(one.informer.values()) == ["a:mine", "late:", "made:"]


async def test_a_late_deletion_of_a_namesake_spares_the_new_one() -> None:
    api = FakeApi()
    api.lists.append(listing(5, pod("a", 1)))
    async with following(api) as one:
        await one.until("a:")
        one.informer.observe(pod("a", 9, uid="new", v="new"))
        one.informer._take(_watched("DELETED", pod("a", 8)))
        await one.until("a:new")
        assert one.changes == [(None, "a:"), ("a:", None), (None, "a:new")]


def _watched(kind: str, obj: Object) -> WatchEvent:
    return WatchEvent(kind, obj)
