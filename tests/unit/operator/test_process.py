"""The process as its probes see it, and what it does while the API server is away."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import kopf
import pytest

from mizar_kube.client import KubeClient, Listing, WatchEvent
from mizar_kube.clock import Clock
from mizar_kube.errors import NotFound, Unavailable
from mizar_kube.event_series import Regarding
from mizar_kube.informer import STANDS_STILL_S
from mizar_kube.kinds import (
    EVENT,
    GPU_POOL,
    GPU_QUOTA,
    LEASE,
    POD,
    SHADOW_POD,
    Kind,
    Object,
    Ref,
)
from mizar_operator import manifests
from mizar_operator.main import STUCK_AFTER_S, Operator
from mizar_operator.metrics import Metrics
from mizar_operator.readiness import Readiness
from mizar_operator.settings import Settings
from stateful.memory_api import MemoryApi
from support import virtual_time
from support.effort import EFFORT

HOURS = EFFORT if EFFORT > 1 else 0.5
"""So long is an absence: longer than the process would go on if it were a reason to start again."""


class Seconds:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _operator(seconds: Seconds) -> Operator:
    client = cast(KubeClient, MemoryApi())
    operator = Operator(client, Settings(), Clock(seconds))
    for copy in operator.caches:
        copy.synced.set()
    return operator


def _queue_problems(operator: Operator) -> list[str]:
    return [one for one in operator.dead() if one.startswith("queue")]


async def test_a_budget_that_is_deleted_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, known = _operator(Seconds()), manifests.budget("team-a", 1)
    known["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    monkeypatch.setattr(operator.caches, "keys_of_namespace", lambda namespace: {namespace})
    operator.budgets._take(WatchEvent("ADDED", known))
    assert len(operator.queue) == 0
    operator.budgets._take(WatchEvent("DELETED", known))
    assert await operator.queue.get() == "team-a"


async def test_a_replica_that_waits_for_the_lease_is_not_stuck() -> None:
    seconds = Seconds()
    operator = _operator(seconds)
    operator.queue.add("mizar.share")
    seconds.now = 10 * STUCK_AFTER_S
    assert not _queue_problems(operator)
    operator.leads_from_now_on()
    assert not _queue_problems(operator)
    seconds.now += STUCK_AFTER_S + 1
    assert _queue_problems(operator) == ["queue: no result for a key in 121 s"]


async def test_a_loop_that_asks_nothing_any_more_is_a_reason_to_start_again() -> None:
    """No loop asks anything, since none runs in this test."""
    seconds = Seconds()
    operator = _operator(seconds)
    seconds.now = STANDS_STILL_S
    assert not operator.dead()
    seconds.now = 2 * STANDS_STILL_S
    silent = "the API server was not asked for 1200 s"
    assert set(operator.dead()) == {
        f"{kind}: {silent}" for kind in ("gpupools", "gpuquotas", "shadowpods", "pods", "nodes")
    }


class Served(MemoryApi):
    """An API server that comes and goes, and that knows the custom resources only from some time
    on."""

    def __init__(self, *, here: bool, crds: bool = True) -> None:
        super().__init__()
        self.here, self.crds = here, crds
        self.asked = 0
        self.followed: defaultdict[str, set[tuple[str, str, str]]] = defaultdict(set)
        """(kind, label selector, field selector) of all lists and watches, by verb."""
        self.before_write = lambda write: self._answer()

    def _answer(self, kind: Kind | None = None) -> None:
        self.asked += 1
        if not self.here:
            raise Unavailable("no answer")
        if kind in (GPU_POOL, GPU_QUOTA, SHADOW_POD) and not self.crds:
            raise NotFound("no such kind", status=404)

    async def get(self, ref: Ref, **more: Any) -> Object:
        self._answer()
        return await super().get(ref, **more)

    def _follow(
        self, verb: str, kind: Kind, label_selector: str = "", field_selector: str = "", **_: Any
    ) -> None:
        self._answer(kind)
        self.followed[verb].add((kind.plural, label_selector, field_selector))

    async def list_pages(self, kind: Kind, *_: Any, **given: Any) -> AsyncGenerator[Listing, None]:
        self._follow("list", kind, **given)
        yield Listing([*self.all(kind)], "1")

    async def watch(self, kind: Kind, *_: Any, **given: Any) -> AsyncGenerator[WatchEvent, None]:
        for _ in range(240):
            self._follow("watch", kind, **given)
            meta = {"resourceVersion": "1"}
            yield WatchEvent("BOOKMARK", {"metadata": meta})
            await asyncio.sleep(1)

    async def request(self, method: str, path: str, **_: Any) -> Object:
        self._answer(GPU_POOL)
        return {"resources": [{"name": one.plural} for one in (GPU_POOL, GPU_QUOTA, SHADOW_POD)]}


class Running:
    """An operator's process in virtual time, with Kopf left out."""

    def __init__(
        self,
        api: Served,
        monkeypatch: pytest.MonkeyPatch,
        kopf_ends_in: float = 0,
        readiness: Readiness | None = None,
    ) -> None:
        self.kopf_runs = False

        async def kopf_operator(**_: Any) -> None:
            self.kopf_runs = True
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(kopf_ends_in)

        monkeypatch.setattr(kopf, "operator", kopf_operator)
        clock = Clock(asyncio.get_running_loop().time)
        settings = Settings(identity="a", namespace="mizar-system")
        self.operator = Operator(cast(KubeClient, api), settings, clock)
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(self.operator.run(self.stop, readiness))

    @property
    def leads(self) -> bool:
        return bool(self.operator.metrics.leader._value.get() == 1)

    async def lasts(self, seconds: int) -> None:
        """The process goes on for so long, and no probe asks for its end."""
        for _ in range(0, seconds, 10):
            assert not self.operator.dead()
            assert not self.task.done(), self.task.exception()
            await asyncio.sleep(10)


@pytest.mark.parametrize("waits_for", ["an API server", "the CRDs"])
def test_what_it_starts_with_is_waited_for_without_an_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, waits_for: str
) -> None:
    """A process that ended would wait up to five minutes for its next start."""

    async def hours() -> None:
        away = waits_for == "an API server"
        api = Served(here=not away, crds=away)
        process = Running(api, monkeypatch)
        await process.lasts(int(HOURS * 3600))
        assert process.operator.unready()
        assert not process.leads
        assert not process.kopf_runs
        api.here = api.crds = True
        await process.lasts(60)
        assert not process.operator.unready()
        assert process.leads
        assert process.kopf_runs

    virtual_time.run(hours())
    told = [one for one in caplog.messages if "waiting for the first lists" in one]
    assert 100 / 3 < len(told) / HOURS < 200 / 3
    assert "gpupools: not listed yet" in told[0]


def test_an_absence_is_no_reason_to_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except for the Lease, which the process cannot keep meanwhile: here another replica leads."""

    async def hours() -> None:
        api = Served(here=True)
        process = Running(api, monkeypatch)
        monkeypatch.setattr(process.operator.leader, "_may_take", lambda lease: False)
        api.put(lease("b"))
        await process.lasts(600)
        api.here = False
        await process.lasts(int(HOURS * 3600))
        assert process.operator.unready()
        asked = api.asked
        await process.lasts(60)
        assert api.asked > asked
        api.here = True
        await process.lasts(60)
        assert not process.operator.unready()

    virtual_time.run(hours())


FOLLOWED = {
    ("pods", "mizar.share/shadow-pod=true", ""),
    ("pods", "mizar.share/share-pod=true", ""),
    ("pods", "mizar.share/spot-pod=true", ""),
    ("pods", "", "spec.nodeName=,status.phase=Pending"),
    ("nodes", "", ""),
    ("poddisruptionbudgets", "", "metadata.name=mizar-shadow-pods-in-use"),
}
"""What the operator reads beside Mizar's own kinds, by label and field selectors. Without one, it
would keep every pod of the cluster in memory."""


def test_it_reads_only_what_plans_are_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    async def followed() -> dict[str, set[tuple[str, str, str]]]:
        api = Served(here=True)
        process = Running(api, monkeypatch)
        await process.lasts(60)
        process.stop.set()
        await process.task
        return api.followed

    found = virtual_time.run(followed())
    own = {(one.plural, "", "") for one in (GPU_POOL, GPU_QUOTA, SHADOW_POD)}
    assert found["watch"] == FOLLOWED
    assert found["list"] == FOLLOWED | own


class Hanging(Served):
    """Answers no call once it `hangs`, except that it `reads`."""

    hangs = reads = False

    async def get(self, ref: Ref, **more: Any) -> Object:
        if self.hangs and not self.reads:
            await asyncio.Event().wait()
        return await super().get(ref, **more)

    async def replace(self, obj: Object, **more: Any) -> Object:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().replace(obj, **more)


@pytest.mark.parametrize("reads", [False, True])
def test_it_ends_within_a_second(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    """With the release of its Lease, though the API server does not answer, and Kopf does not end
    when it is asked to."""

    async def seconds_to_end() -> float:
        api, clock = Hanging(here=True), asyncio.get_running_loop().time
        api.reads = reads
        process = Running(api, monkeypatch, kopf_ends_in=60)
        await process.lasts(60)
        assert process.leads
        api.hangs = True
        await asyncio.sleep(3)  # The next renewal of the Lease has begun.
        began = clock()
        process.stop.set()
        async with asyncio.timeout(10):
            await process.task
        return clock() - began

    assert virtual_time.run(seconds_to_end()) <= 1.0


def test_its_end_lets_another_replica_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def holder() -> object:
        api = Served(here=True)
        process = Running(api, monkeypatch)
        await process.lasts(60)
        assert process.leads
        process.stop.set()
        await process.task
        (found,) = api.all(LEASE)
        return found["spec"]["holderIdentity"]

    assert virtual_time.run(holder()) == ""


def test_the_events_of_its_last_plan_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other replica would post them: it finds what they are about done. While a plan is made,
    events wait."""

    async def written() -> list[str]:
        api = Served(here=True)
        process = Running(api, monkeypatch)

        async def endless(key: str) -> None:
            process.operator.events.emit(Regarding(POD, "p", "team-a", "uid-p"), "Evicted", "gone")
            await asyncio.Event().wait()

        await process.lasts(60)
        monkeypatch.setattr(process.operator.reconciler, "reconcile", endless)
        process.operator.queue.add("mizar.share")
        await asyncio.sleep(1)
        assert not [*api.all(EVENT)], "it would be written without the end as well"
        process.stop.set()
        await process.task
        return [one["note"] for one in api.all(EVENT)]

    assert virtual_time.run(written()) == ["gone"]


PARTS: dict[str, Callable[[Operator], tuple[object, str]]] = {
    "the leader": lambda operator: (operator.leader, "keep"),
    "a worker": lambda operator: (operator.queue, "get"),
    "the watch of pods": lambda operator: (operator.caches.shares, "run"),
    "the lists of quotas": lambda operator: (operator.caches.quotas, "run"),
    "the watch of budgets": lambda operator: (operator.budgets, "run"),
    "the events": lambda operator: (operator.events, "run"),
    "Kopf": lambda operator: (operator, "watch"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """It ends with what the part raised: a process that goes on without it would serve nobody."""

    class Bug(Exception):
        """What the part raises."""

    async def fail(*_: Any) -> None:
        await asyncio.sleep(1)
        raise Bug

    async def end() -> None:
        process = Running(Served(here=True), monkeypatch)
        whose, what = PARTS[part](process.operator)
        monkeypatch.setattr(whose, what, fail)
        with pytest.raises(Bug):
            async with asyncio.timeout(60):
                await process.task

    virtual_time.run(end())


@pytest.mark.parametrize("fails", [True, False])
def test_a_check_of_readiness_that_fails_ends_it(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Otherwise the replica would be unready for ever, and no line would say why. A check that
    succeeds ends nothing."""

    class Answers(Readiness):
        async def wait(self) -> None:
            await asyncio.sleep(1)
            if fails:
                raise ZeroDivisionError

    async def end() -> None:
        api = Served(here=True)
        checks = Answers(cast(KubeClient, api), False, Metrics().webhook_reachable)
        process = Running(api, monkeypatch, readiness=checks)
        if not fails:
            await process.lasts(60)
            return
        with pytest.raises(ZeroDivisionError):
            async with asyncio.timeout(60):
                await process.task

    virtual_time.run(end())


def lease(holder: str) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "mizar-operator", "namespace": "mizar-system"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
    }
