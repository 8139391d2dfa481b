"""Leader election: one replica leads at a time, and another one takes over when it is gone."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict, Unavailable
from mizar_kube.kinds import LEASE, Object, Ref
from mizar_operator.leader import Leader, LeadershipLost, _Held
from stateful.memory_api import MemoryApi, Write
from support import virtual_time


class NothingCame(Exception):
    """Five minutes have passed without what the test waits for."""


class Time:
    """A clock that moves only when a task sleeps; `at` says what happens at which time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at: dict[float, object] = {}

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > 300:
            raise NothingCame


def _leader(api: MemoryApi, name: str, time: Time, owner: str = "") -> Leader:
    return Leader(
        cast(KubeClient, api),
        "mizar-system",
        "mizar-operator",
        name,
        owner=owner,
        clock=time,
        sleep=time.sleep,
        now=lambda: datetime(2026, 1, 31, tzinfo=UTC),
    )


def _holder(api: MemoryApi) -> str:
    lease = api.find(LEASE, "mizar-operator", "mizar-system")
    assert lease is not None
    return str(lease["spec"]["holderIdentity"])


async def test_the_first_leads_at_once() -> None:
    api, time = MemoryApi(), Time()
    await _leader(api, "a", time).acquire()
    assert (_holder(api), time.now) == ("a", 0.0)


async def test_a_holder_that_renews_keeps_the_lease() -> None:
    api, time = MemoryApi(), Time()
    first, second = _leader(api, "a", time), _leader(api, "b", time)
    await first.acquire()
    for _ in range(20):
        await time.sleep(2)
        assert await first._try() is _Held.HERE
        assert await second._try() is _Held.ELSEWHERE


async def test_a_silent_holder_is_followed_after_the_leases_duration() -> None:
    api, time = MemoryApi(), Time()
    await _leader(api, "a", time).acquire()
    await _leader(api, "b", time).acquire()
    assert _holder(api) == "b"
    assert 15 <= time.now <= 18


async def test_a_released_lease_is_free_at_once() -> None:
    api, time = MemoryApi(), Time()
    first = _leader(api, "a", time)
    await first.acquire()
    await first.release()
    await _leader(api, "b", time).acquire()
    assert (_holder(api), time.now) == ("b", 0.0)


async def test_the_lease_goes_with_the_deployment() -> None:
    api, time = MemoryApi(), Time()
    meta = {"name": "mizar-operator", "namespace": "mizar-system"}
    made = api.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta})
    earlier = _leader(api, "a", time)
    await earlier.acquire()
    await earlier.release()
    await _leader(api, "b", time, owner="mizar-operator").acquire()
    assert _owners(api) == [made["metadata"]["uid"]]
    api.remove(made)
    api.collect_garbage()
    assert api.find(LEASE, "mizar-operator", "mizar-system") is None


async def test_without_its_deployment_it_leads_all_the_same() -> None:
    api, time = MemoryApi(), Time()
    await _leader(api, "a", time, owner="gone").acquire()
    assert (_holder(api), _owners(api)) == ("a", [])


def _owners(api: MemoryApi) -> list[str]:
    lease = api.find(LEASE, "mizar-operator", "mizar-system")
    assert lease is not None
    return [one["uid"] for one in lease["metadata"].get("ownerReferences") or ()]


async def test_a_replica_that_comes_back_under_its_own_name_leads_at_once() -> None:
    api, time = MemoryApi(), Time()
    await _leader(api, "a", time).acquire()
    await _leader(api, "a", time).acquire()
    assert time.now == 0.0


async def test_a_leader_that_cannot_renew_its_lease_stops_before_another_can_start() -> None:
    api, time = MemoryApi(), Time()
    leader = _leader(api, "a", time)
    await leader.acquire()

    def away(_: Write) -> None:
        raise Unavailable("no answer")

    api.before_write = away
    with pytest.raises(LeadershipLost):
        await leader.keep()
    assert time.now < 15


async def test_a_leader_that_reads_that_another_replica_leads_stops_at_once() -> None:
    """For example when the process was stopped for so long that another could begin, or when a
    person wrote the Lease by hand."""
    api, time = MemoryApi(), Time()
    leader = _leader(api, "a", time)
    await leader.acquire()
    lease = api.find(LEASE, "mizar-operator", "mizar-system")
    assert lease is not None
    lease["spec"]["holderIdentity"] = "b"
    api.touch(lease)
    with pytest.raises(LeadershipLost, match="another replica holds lease mizar-operator"):
        await leader.keep()
    assert time.now == 2.0
    assert _holder(api) == "b"


async def test_a_leader_whose_renewal_is_overtaken_by_another_write_tries_again() -> None:
    """For example by a person who changes a label."""
    api, time = MemoryApi(), Time()
    leader = _leader(api, "a", time)
    await leader.acquire()

    def overtaken(_: Write) -> None:
        if time.now < 5:
            raise Conflict("it has changed", status=409)

    api.before_write = overtaken
    with pytest.raises(NothingCame):
        await leader.keep()


class SlowApi(MemoryApi):
    """Takes as many seconds for each reading and replacing as `takes` says, and fails what takes
    two."""

    def __init__(self, takes: list[float]) -> None:
        super().__init__()
        self._takes = iter(takes)

    async def get(self, ref: Ref, **more: Any) -> Object:
        await self._answer()
        return await super().get(ref, **more)

    async def replace(self, obj: Object, **more: Any) -> Object:
        await self._answer()
        return await super().replace(obj, **more)

    async def _answer(self) -> None:
        seconds = next(self._takes, 2.0)
        await asyncio.sleep(seconds)
        if seconds >= 2:
            raise Unavailable("timeout")


def _led_until(*takes: float) -> float:
    """The second at which the replica stops leading if calls take so long; the others fail."""

    async def seconds_as_leader() -> float:
        clock = asyncio.get_running_loop().time
        client = cast(KubeClient, SlowApi([*takes]))
        leader = Leader(client, "mizar-system", "mizar-operator", "a", clock=clock)
        await leader.acquire()
        with pytest.raises(LeadershipLost):
            await leader.keep()
        return clock()

    return virtual_time.run(seconds_as_leader())


def test_slow_calls_do_not_make_it_lead_for_longer() -> None:
    """Two calls and a pause are six seconds: the replica must not begin them when five are left."""
    assert _led_until(0.0, 1.9, 2.0, 2.0, 1.9, 2.0) <= 10.0


@pytest.mark.parametrize(
    ("takes", "sent"),
    [
        ([0.0], 0.0),
        ([1.9], 0.0),  # The replica took the Lease by a call that was slow.
        ([0.0, 1.5, 1.8], 2.0),
        ([0.0, 1.5, 1.8, 0.1, 1.9], 7.3),
    ],
)
def test_it_leads_for_as_long_as_a_renewal_is_good_since_it_was_sent(
    takes: list[float], sent: float
) -> None:
    """Other replicas may count from the moment at which the renewal takes effect, which is any
    after it was sent."""
    assert _led_until(*takes) == pytest.approx(sent + 10.0)


async def test_a_short_absence_of_the_api_server_is_no_loss() -> None:
    api, time = MemoryApi(), Time()
    leader = _leader(api, "a", time)
    await leader.acquire()

    def away_for_a_while(_: Write) -> None:
        if time.now < 9:
            raise Unavailable("no answer")

    api.before_write = away_for_a_while
    with pytest.raises(NothingCame):
        await leader.keep()
    assert time.now > 300


def test_a_lease_that_cannot_be_given_up_holds_nobody_up() -> None:
    """The Lease then expires by itself."""

    async def seconds_to_release() -> float:
        clock = asyncio.get_running_loop().time
        client = cast(KubeClient, SlowApi([0.0, 60.0]))
        leader = Leader(client, "mizar-system", "mizar-operator", "a", clock=clock)
        await leader.acquire()
        began = clock()
        await leader.release()
        return clock() - began

    assert virtual_time.run(seconds_to_release()) <= 0.5
