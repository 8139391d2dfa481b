"""Nodes have the cards that NVIDIA's DRA driver offers, where the scheduler gives them to pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from mizar_core.names import PHYSICAL_RESOURCE
from mizar_core.planning.snapshot import CardsOnNode, NodeView
from mizar_kube.client import KubeClient, Listing
from mizar_kube.errors import Forbidden, NotFound, Unavailable
from mizar_kube.informer import STALE_AFTER_S, Timing
from mizar_kube.kinds import GPU_POOL, RESOURCE_SLICE, SHADOW_POD, Kind
from mizar_operator.caches import Caches, follow
from mizar_operator.offered_dra_cards import ASKED_EVERY_S, KEPT_FOR_S, SLACK_S, OfferedDraCards
from stateful.harness import Harness
from stateful.model import Model
from support.logs import logged
from support.waiting import until
from unit.operator.slices import Object, device, device_class, resource_slice

A100 = "NVIDIA-A100-SXM4-40GB"
CARDS = {PHYSICAL_RESOURCE: CardsOnNode(2, 2, A100, 40960)}
FAILED = {PHYSICAL_RESOURCE: CardsOnNode(2, 0, A100, 40960)}


class Driver:
    """The driver's slices and the class in the copy, without an API server; `now`: seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.dra = OfferedDraCards(cast(KubeClient, None), Timing(clock=lambda: self.now))
        self.slices, self.classes = self.dra.make_informers()
        self.told = 0
        self.dra.on_change(self._count)

    def offer(self, *devices: Object, node: str = "n1", version: int = 1) -> None:
        self.slices._store.put(resource_slice(node, *devices, version=version))

    def name(self, resource: str | None = PHYSICAL_RESOURCE, version: int = 1) -> None:
        self.classes._store.put(device_class(resource, version))

    def cards(self, node: NodeView | None = None) -> dict[str, CardsOnNode]:
        (found,) = self.dra.with_cards([node or NodeView("n1")])
        return dict(found.cards)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.dra.forget_gone()

    def _count(self) -> None:
        self.told += 1


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.offer(device(0), device(1))
    made.name()
    return made


def test_a_node_without_a_device_plugin_has_the_drivers_cards(driver: Driver) -> None:
    assert driver.cards() == CARDS
    assert driver.cards(NodeView("n2")) == {}
    beside = {"example.com/nic": CardsOnNode(1, 1)}
    assert driver.cards(NodeView("n1", cards=beside)) == {**beside, **CARDS}


def test_the_scheduler_looks_at_what_a_plugin_has_allocatable(driver: Driver) -> None:
    plugin = {PHYSICAL_RESOURCE: CardsOnNode(4, 3)}
    assert driver.cards(NodeView("n1", cards=plugin)) == plugin
    stopped = {PHYSICAL_RESOURCE: CardsOnNode(4, 0)}
    assert driver.cards(NodeView("n1", cards=stopped)) == CARDS


def test_without_a_class_nobody_can_request_them(driver: Driver) -> None:
    assert driver.dra.without_class() == frozenset()
    for resource in (None, "example.com/gpu"):
        driver.name(resource, version=driver.told + 2)
        driver.wait(KEPT_FOR_S)
        assert driver.cards() == {}
        assert driver.dra.without_class() == {"n1"}


@pytest.mark.parametrize("deleted", [True, False])
def test_without_a_class_the_cards_have_failed_until_it_comes_back(
    driver: Driver, deleted: bool
) -> None:
    """As when the driver's chart is installed anew. The scheduler gives away no card meanwhile."""
    node = NodeView("n1")
    if deleted:
        driver.classes._store.keep_only([])
    else:
        driver.name(None, version=2)
    assert driver.told == 3
    assert driver.cards(node) == FAILED
    assert driver.cards(NodeView("n2")) == {}
    assert driver.dra.without_class() == frozenset()
    driver.wait(KEPT_FOR_S - 1)
    assert driver.cards(node) == FAILED
    driver.name(version=3)
    assert driver.told == 4
    assert driver.cards(node) == CARDS
    driver.wait(KEPT_FOR_S)
    assert driver.cards(node) == CARDS


def test_without_a_class_for_long_the_cards_are_gone_until_it_comes_back(driver: Driver) -> None:
    driver.classes._store.keep_only([])
    driver.wait(KEPT_FOR_S - 1)
    assert (driver.cards(), driver.told) == (FAILED, 3)
    driver.wait(1)
    assert (driver.cards(), driver.told) == ({}, 4)
    assert driver.dra.without_class() == {"n1"}
    driver.name(version=2)
    assert driver.cards() == CARDS


def test_the_last_of_several_classes_counts(driver: Driver) -> None:
    driver.classes._store.put(device_class(name="second"))
    driver.classes._store.drop(("", "second"))
    assert (driver.cards(), driver.told) == (CARDS, 2)


def test_each_resource_has_a_class_of_its_own(driver: Driver) -> None:
    """As it may have a device plugin. The classes' selectors are not evaluated."""
    small = "nvidia.com/mig-1g.5gb"
    parts = [device(one, kind="mig", profile="1g.5gb", memory="4864Mi") for one in (2, 3)]
    driver.offer(device(0), device(1), *parts, version=2)
    assert driver.cards() == CARDS
    driver.classes._store.put(device_class(small, name="mig-1g.5gb"))
    both = CARDS | {small: CardsOnNode(2, 2, f"{A100}-MIG-1g.5gb", 4864)}
    assert driver.cards() == both
    assert driver.dra.devices("n1")["n1", "gpu-2"] == small
    plugin = {PHYSICAL_RESOURCE: CardsOnNode(4, 3)}
    assert driver.cards(NodeView("n1", cards=plugin)) == both | plugin
    driver.classes._store.drop(("", "mig-1g.5gb"))
    assert driver.cards() == CARDS | {small: replace(both[small], healthy=0)}
    driver.wait(KEPT_FOR_S)
    assert driver.cards() == CARDS
    assert driver.dra.without_class() == frozenset(), "which tells of whole cards"
    driver.name(None, version=9)
    driver.offer(*parts, version=9)
    driver.wait(KEPT_FOR_S)
    assert driver.dra.without_class() == frozenset()


def test_slices_and_class_may_both_be_gone(driver: Driver) -> None:
    driver.classes._store.keep_only([])
    driver.wait(1)
    driver.slices._store.keep_only([])
    driver.name(version=2)
    assert driver.cards() == FAILED, "slices are still gone"
    driver.wait(KEPT_FOR_S - 1)
    assert driver.cards() == FAILED
    driver.wait(1)
    assert driver.cards() == {}


def test_a_view_stays_the_same_object_until_something_changes(driver: Driver) -> None:
    node = NodeView("n1")
    (first,), (second,) = driver.dra.with_cards([node]), driver.dra.with_cards([node])
    assert first is second
    driver.offer(device(0, "NoSchedule"), device(1), version=2)
    assert driver.cards(node)[PHYSICAL_RESOURCE].healthy == 1
    labelled = NodeView("n1", labels=frozenset({("zone", "a")}))
    (third,) = driver.dra.with_cards([labelled])
    assert (third.labels, third.cards[PHYSICAL_RESOURCE].healthy) == (labelled.labels, 1)


def test_changes_are_told_once_and_only_where_cards_change(driver: Driver) -> None:
    assert driver.told == 2, "the slice and the class"
    driver.slices._store.put(resource_slice("n1", device(0), device(1), version=3, generation=2))
    assert driver.told == 2
    driver.offer(device(0), version=4)
    driver.name(None, version=5)
    assert driver.told == 4


def test_cards_whose_slices_are_deleted_have_failed_until_they_come_back(driver: Driver) -> None:
    """A kubelet that starts deletes all slices of its node."""
    driver.slices._store.keep_only([])
    assert driver.cards() == FAILED
    assert driver.dra.devices("n1") == {}
    driver.wait(KEPT_FOR_S - 1)
    assert driver.cards() == FAILED
    driver.offer(device(0), device(1), version=5)
    driver.wait(KEPT_FOR_S)
    assert driver.cards() == CARDS


@pytest.mark.parametrize("emptied", [True, False])
def test_cards_that_do_not_come_back_are_gone_after_a_while(driver: Driver, emptied: bool) -> None:
    if emptied:
        driver.offer(version=2)
    else:
        driver.slices._store.keep_only([])
    driver.wait(KEPT_FOR_S - 1)
    assert driver.cards()[PHYSICAL_RESOURCE].healthy == 0
    told = driver.told
    driver.wait(1)
    assert driver.cards() == {}
    assert driver.told == told + 1
    driver.name(None, version=2)
    assert driver.dra.without_class() == frozenset()


def test_a_deleted_slice_of_several_takes_its_cards_with_it(driver: Driver) -> None:
    second = resource_slice("n1", device(2), name="second")
    driver.slices._store.put(second)
    assert driver.cards()[PHYSICAL_RESOURCE].total == 3
    assert driver.dra.devices("n1") == {("n1", f"gpu-{one}"): PHYSICAL_RESOURCE for one in range(3)}
    driver.slices._store.drop(("", "second"))
    assert driver.cards() == CARDS


def test_a_change_is_planned_for() -> None:
    caches = Caches(cast(KubeClient, None))
    keys: list[str] = []
    follow(caches, keys.append)
    slices, _ = caches.dra.make_informers()
    slices._store.put(resource_slice("n1", device(0)))
    assert keys == sorted(caches.keys())


class Warm:
    """A shadow pod that is kept warm on a card of the driver, and idle."""

    def __init__(self) -> None:
        self.model = Model()
        self.model.add_node("n1", by_dra=True)
        self.model.add_class()
        self.model.add_pool(idleTimeoutSeconds=60)
        self.model.add_quota("team-a", [{"devices": 2, "min": 1, "max": 1}])
        self.operator = Harness(self.model)
        self.first = self.after(200)

    def after(self, seconds: float) -> str:
        """The UID of the one shadow pod that there is after so many seconds."""
        for _ in range(20):
            self.operator.round(seconds / 20)
        (shadow,) = self.model.api.all(SHADOW_POD)
        return str(shadow["metadata"]["uid"])


def test_an_idle_shadow_pod_of_the_minimum_stays_while_the_class_is_made_again() -> None:
    """Only if the class stays away, the shadow pod's node has left the pool."""
    warm = Warm()
    warm.model.delete_class()
    assert warm.after(KEPT_FOR_S - 1) == warm.first
    warm.model.add_class()
    assert warm.after(KEPT_FOR_S) == warm.first
    warm.model.delete_class()
    assert warm.after(2 * KEPT_FOR_S) != warm.first


def test_an_idle_shadow_pod_of_the_minimum_stays_while_the_cards_may_not_be_seen() -> None:
    """The scheduler would give the next one such a card too, again and again."""
    warm = Warm()
    warm.operator.slices._note_forbidden(Forbidden("GET resourceslices: you cannot list them"))
    assert warm.operator.caches.dra.refusal()
    assert warm.after(KEPT_FOR_S) == warm.first
    assert [dict(one.cards) for one in warm.operator.caches.node_views()] == [{}]
    pool = warm.model.api.find(GPU_POOL, "pool")
    assert pool is not None
    pool["spec"]["nodeSelector"] = {"rack": "7"}
    warm.model.api.touch(pool)
    assert warm.after(KEPT_FOR_S) != warm.first, "the pool does not select the node any more"


class Api:
    """Serves nothing of resource.k8s.io/v1, until `served` is set."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.served = False
        self.calls: list[str] = []
        self.forbidden = ""
        self.selectors: dict[str, str] = {}

    async def request(self, method: str, path: str) -> Object:
        self.calls.append(path)
        if self.errors:
            raise self.errors.pop(0)
        if not self.served:
            raise NotFound("the server could not find the requested resource")
        return {"resources": [{"name": "resourceslices"}, {"name": "deviceclasses"}]}

    async def list_pages(
        self, kind: Kind, namespace: str | None, *, field_selector: str, **_: Any
    ) -> AsyncGenerator[Listing, None]:
        self.calls.append(kind.plural)
        self.selectors[kind.plural] = field_selector
        if kind.plural == self.forbidden:
            raise Forbidden(f"GET {kind.plural}: you cannot list them", status=403)
        found = resource_slice("n1", device(0), device(1)) if kind == RESOURCE_SLICE else None
        yield Listing([found or device_class()], "7")

    async def watch(self, *_: Any, **__: Any) -> AsyncGenerator[None, None]:
        await asyncio.Event().wait()
        yield


class Sleeps:
    """The pauses that were made, which take no time; from the `last` on they never end."""

    def __init__(self, last: int) -> None:
        self.seconds: list[float] = []
        self.last = last

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) >= self.last:
            await asyncio.Event().wait()
        await asyncio.sleep(0)


def _made(api: Api, sleeps: Sleeps) -> OfferedDraCards:
    timing = Timing(sleep=sleeps, random=lambda: 1.0)
    return OfferedDraCards(cast(KubeClient, api), timing)


@pytest.fixture
def tasks() -> Iterator[list[asyncio.Task[None]]]:
    made: list[asyncio.Task[None]] = []
    yield made
    for one in made:
        one.cancel()


async def test_nothing_is_watched_where_the_api_is_not_served(
    tasks: list[asyncio.Task[None]],
) -> None:
    api, sleeps = Api(), Sleeps(3)
    dra = _made(api, sleeps)
    assert dra.problem() == "resourceslices: not known yet whether they are served"
    tasks.append(asyncio.create_task(dra.run()))
    await until(lambda: len(sleeps.seconds) == 3)
    assert sleeps.seconds == [ASKED_EVERY_S] * 3
    assert set(api.calls) == {"/apis/resource.k8s.io/v1"}
    assert dra.synced.is_set()
    assert (dra.problem(), dra.stands_still()) == (None, None)


async def test_once_it_is_served_the_drivers_slices_and_the_classes_are_watched(
    tasks: list[asyncio.Task[None]],
) -> None:
    api, sleeps = Api(Unavailable("away", status=503), NotFound("not there")), Sleeps(9)
    api.served = True
    dra = _made(api, sleeps)
    tasks.append(asyncio.create_task(dra.run()))
    await until(lambda: dict(dra.with_cards([NodeView("n1")])[0].cards) == CARDS)
    assert sleeps.seconds == [0.2, ASKED_EVERY_S]
    assert api.selectors == {
        "resourceslices": "spec.driver=gpu.nvidia.com",
        "deviceclasses": "",
    }
    assert (dra.problem(), dra.stands_still()) == (None, None)


@pytest.mark.parametrize("kind", ["resourceslices", "deviceclasses"])
async def test_without_the_right_to_watch_them_no_card_of_the_driver_counts(
    tasks: list[asyncio.Task[None]], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As if there were no driver, until the operator gets the right."""
    api, sleeps = Api(), Sleeps(4)
    api.served, api.forbidden = True, kind
    dra = _made(api, sleeps)
    tasks.append(asyncio.create_task(dra.run()))
    await until(lambda: len(sleeps.seconds) == 4)
    assert dra.synced.is_set()
    assert (dra.problem(), dra.stands_still()) == (None, None)
    assert dra.with_cards([NodeView("n1")]) == [NodeView("n1")]
    assert dra.without_class() == frozenset()
    assert dra.refusal() == f"GET {kind}: you cannot list them"
    lines = [one for one in logged(caplog) if one["event"] == "the watch was interrupted"]
    assert [str(one["error"]) for one in lines] == [dra.refusal()], "told once"


async def test_cards_are_known_for_a_while_after_the_right_is_lost(
    tasks: list[asyncio.Task[None]],
) -> None:
    """A chart that is installed anew makes the ClusterRole again."""
    now = 0.0
    api = Api()
    api.served = True
    dra = OfferedDraCards(cast(KubeClient, api), Timing(clock=lambda: now))
    tasks.append(asyncio.create_task(dra.run()))
    await until(lambda: dict(dra.with_cards([NodeView("n1")])[0].cards) == CARDS)
    slices, _ = dra._copies
    slices._note_forbidden(Forbidden("GET resourceslices: you cannot watch them"))
    now = STALE_AFTER_S
    assert dict(dra.with_cards([NodeView("n1")])[0].cards) == CARDS
    now += 1
    assert dict(dra.with_cards([NodeView("n1")])[0].cards) == {}
    assert dra.refusal() == "GET resourceslices: you cannot watch them"
    slices._heard()
    assert dict(dra.with_cards([NodeView("n1")])[0].cards) == CARDS
    assert dra.refusal() == ""


async def test_gone_cards_are_forgotten_in_time(tasks: list[asyncio.Task[None]]) -> None:
    api, sleeps = Api(), Sleeps(9)
    api.served = True
    seconds = [0.0]

    async def sleep(length: float) -> None:
        seconds[0] += length
        await sleeps(length)

    dra = OfferedDraCards(cast(KubeClient, api), Timing(clock=lambda: seconds[0], sleep=sleep))
    tasks.append(asyncio.create_task(dra.run()))
    await until(lambda: dict(dra.with_cards([NodeView("n1")])[0].cards) == CARDS)
    slices, _ = dra._copies
    slices._store.keep_only([])
    await until(lambda: dict(dra.with_cards([NodeView("n1")])[0].cards) == {})
    assert sleeps.seconds == [KEPT_FOR_S + SLACK_S]
