"""The copy that Kopf feeds: events and lists in any order, deletions that no event reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mizar_kube.client import KubeClient, Listing
from mizar_kube.errors import Unavailable
from mizar_kube.kinds import SHADOW_POD, Object
from mizar_operator.kopf_store import RETRY_S, KopfStore, Pace
from support.logs import logged


def obj(name: str, version: int, uid: str = "") -> Object:
    meta = {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}"}
    return {"metadata": {**meta, "resourceVersion": str(version)}}


@dataclass
class Lists:
    """Answers with one list after the other, and with the last one again and again."""

    answers: list[Listing] = field(default_factory=list)
    failures: int = 0

    async def list_pages(self, kind: object, **_: Any) -> AsyncGenerator[Listing, None]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("not now")
        yield self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def store(*answers: Listing, pace: Pace | None = None) -> KopfStore[str]:
    """Keeps `name:version` of each object."""

    def trim(one: Object) -> str:
        return f"{one['metadata']['name']}:{one['metadata']['resourceVersion']}"

    client = cast(KubeClient, Lists(list(answers)))
    return KopfStore(client, SHADOW_POD, trim, pace)


async def test_a_list_fills_it_and_events_change_it() -> None:
    one = store(Listing([obj("a", 1), obj("b", 2)], "5"))
    heard: list[tuple[str | None, str | None]] = []
    one.on_change(lambda old, new: heard.append((old, new)))
    assert one.problem() == "shadowpods: not listed yet"
    await one.refresh()
    one.tell("MODIFIED", obj("a", 6))
    one.tell("DELETED", obj("b", 7))
    one.tell(None, obj("a", 6))
    assert one.problem() is None
    assert one.values() == ["a:6"]
    assert heard == [(None, "a:1"), (None, "b:2"), ("a:1", "a:6"), ("b:2", None)]


async def test_a_list_tells_of_deletions_that_nobody_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    one = store(Listing([obj("a", 1), obj("b", 2)], "5"), Listing([obj("a", 1)], "9"))
    await one.refresh()
    await one.refresh()
    assert one.values() == ["a:1"]
    assert [(line["event"], line["count"]) for line in logged(caplog)] == [
        ("a list showed changes that no watch had", 1)
    ]


async def test_a_list_takes_nothing_away_that_came_after_it() -> None:
    one = store(Listing([], "5"))
    one.tell("ADDED", obj("new", 6))
    await one.refresh()
    assert one.values() == ["new:6"]


async def test_what_is_deleted_does_not_come_back() -> None:
    """Neither by a list that began before, nor by the answer to a write, nor by a late event."""
    one = store(Listing([obj("a", 1)], "5"))
    await one.refresh()
    one.tell("DELETED", obj("a", 8))
    one.observe(obj("a", 7))
    one.tell("MODIFIED", obj("a", 6))
    await one.refresh()
    assert one.values() == []
    one.tell("ADDED", obj("a", 10, uid="another"))
    one.tell("DELETED", obj("a", 8))
    assert one.values() == ["a:10"]


async def test_what_a_list_found_gone_does_not_come_back() -> None:
    one = store(Listing([obj("a", 1)], "5"), Listing([], "9"))
    await one.refresh()
    await one.refresh()
    one.observe(obj("a", 4))
    assert one.values() == []


async def test_a_restored_etcd_is_believed() -> None:
    one = store(Listing([obj("a", 9)], "20"), Listing([obj("a", 3), obj("b", 2)], "4"))
    await one.refresh()
    one.tell("DELETED", obj("b", 21))
    await one.refresh()
    assert sorted(one.values()) == ["a:3", "b:2"]


async def test_what_is_not_in_a_restored_etcd_is_gone() -> None:
    """Also what is newer than the backup; and Kopf watches from a version of the future."""
    one = store(
        Listing([obj("a", 3), obj("new", 19)], "20"),
        Listing([obj("a", 3)], "4"),
        Listing([obj("a", 3)], "5"),
    )
    one.tell(None, obj("a", 3))
    await one.refresh()
    assert one.stands_still() is None
    await one.refresh()
    assert one.values() == ["a:3"]
    assert one.stands_still() == "shadowpods: versions went back, and Kopf watches from a later one"
    one.observe(obj("new", 6))
    await one.refresh()
    assert sorted(one.values()) == ["a:3", "new:6"]


async def test_what_a_live_read_did_not_find_is_forgotten_and_only_that() -> None:
    one = store(Listing([obj("a", 1)], "5"))
    await one.refresh()
    one.forget("a", "ns", "another")
    assert one.values() == ["a:1"]
    one.forget("a", "ns", "uid-a")
    one.tell("MODIFIED", obj("a", 6))
    assert one.values() == []


async def test_it_lists_again_and_again_also_after_an_error() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    one = store(Listing([], "5"), pace=Pace(period=100, sleep=sleep, random=lambda: 0.5))
    cast(Lists, one._client).failures = 1
    with pytest.raises(asyncio.CancelledError):
        await one.run()
    assert slept == [2, 100, 100]


async def test_a_list_that_is_overdue_is_a_problem() -> None:
    now = [0.0]
    one = store(Listing([], "5"), pace=Pace(period=100, clock=lambda: now[0]))
    await one.refresh()
    now[0] = 259
    assert one.problem() is None
    now[0] = 261
    assert one.problem() == "shadowpods: could not be listed for 261 s"


async def test_lists_that_fail_stand_not_still() -> None:
    """But those that nobody asks for any more."""
    now = [0.0]
    one = store(Listing([], "5"), pace=Pace(period=100, clock=lambda: now[0]))
    await one.refresh()
    now[0] = 250
    cast(Lists, one._client).failures = 1
    with pytest.raises(Unavailable):
        await one.refresh()
    now[0] = 500
    assert one.problem() == "shadowpods: could not be listed for 500 s"
    assert one.stands_still() is None
    now[0] = 511
    assert one.stands_still() == "shadowpods: the API server was not asked for 261 s"


async def test_an_api_server_that_is_away_for_an_hour_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And once more when it goes away again."""
    away = [3, 1800]

    async def sleep(seconds: float) -> None:
        if seconds > RETRY_S:
            if not away:
                raise asyncio.CancelledError
            lists.failures = away.pop()

    one = store(Listing([], "5"), pace=Pace(period=300, sleep=sleep))
    lists = cast(Lists, one._client)
    with pytest.raises(asyncio.CancelledError):
        await one.run()
    assert [line["event"] for line in logged(caplog)] == ["the objects could not be listed"] * 2


async def test_a_kind_that_kopf_does_not_watch_is_a_problem() -> None:
    one = store(Listing([obj("a", 1)], "5"))
    await one.refresh()
    assert one.problem() is None
    await one.refresh()
    assert one.problem() == one.stands_still() == "shadowpods: Kopf does not watch them"
    one.tell(None, obj("a", 1))
    assert one.problem() is None


@given(st.permutations(range(6)), st.integers(0, 6))
def test_no_order_of_events_changes_the_end(order: list[int], at: int) -> None:
    """Two lives of one name and a list in between, in any order: the second life is what stays."""
    first, second = "first", "second"
    events = [
        ("ADDED", obj("a", 1, first)),
        ("MODIFIED", obj("a", 2, first)),
        ("DELETED", obj("a", 3, first)),
        ("ADDED", obj("a", 4, second)),
        ("MODIFIED", obj("a", 5, second)),
        (None, obj("a", 5, second)),
    ]
    one = store(Listing([obj("a", 2, first)], "2"))
    asyncio.run(one.refresh())
    for position, number in enumerate(order):
        if position == at:
            asyncio.run(one.refresh())
        one.tell(*events[number])
    assert one.values() == ["a:5"]
