"""What a node agent asks the API server to learn by which rules its cards are lent."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Any

import pytest

from mizar_core.models import Spot
from mizar_core.spot_rules import CONFIG_MAP, KEY, SpotRule, SpotRules
from mizar_kube.client import WatchEvent
from mizar_kube.errors import Unavailable
from mizar_kube.kinds import Object, Ref
from mizar_nodeagent.spot.rule_source import (
    LABELS_EVERY_S,
    RETRY_MOST_S,
    SPREAD_S,
    RuleSource,
)
from support import virtual_time
from unit.nodeagent.makers import card

ZONE = {"zone": "a"}
LENDING = SpotRules(rules=(SpotRule(pool="p", node_selector=ZONE, spot=Spot(enabled=True)),))
NOTHING = SpotRules()
HOUR, DAY = 3600.0, 86400.0


class Page:
    def __init__(self, items: list[Object]) -> None:
        self.items, self.resource_version = items, "1"


class Api:
    """Has the operator's rules and the node's labels. `asked`: when the agent asked for the
    node."""

    def __init__(self, rules: SpotRules | None) -> None:
        self.labels: dict[str, str] = dict(ZONE)
        self.asked: list[float] = []
        self.down = False
        self._first = rules
        self._told: asyncio.Queue[SpotRules | None] = asyncio.Queue()
        self._version = 1

    def tell(self, rules: SpotRules | None) -> None:
        """The operator writes other rules, or helm replaces the ConfigMap by an empty one."""
        self._told.put_nowait(rules)

    async def list_pages(self, *_: object, **__: object) -> AsyncIterator[Page]:
        yield Page([self._object(self._first)])

    async def watch(self, *_: object, **__: object) -> AsyncIterator[WatchEvent]:
        while True:
            yield WatchEvent("MODIFIED", self._object(await self._told.get()))

    async def get(self, ref: Ref, *, cached: bool = False) -> Object:
        assert ref.name == "node-1" and cached
        self.asked.append(asyncio.get_running_loop().time())
        if self.down:
            raise Unavailable("no answer", status=503)
        return {"metadata": {"name": ref.name, "labels": self.labels}}

    def _object(self, rules: SpotRules | None) -> Object:
        self._version += 1
        meta = {"name": CONFIG_MAP, "namespace": "system", "uid": "u"}
        meta["resourceVersion"] = str(self._version)
        return {"metadata": meta, **({"data": {KEY: rules.to_json()}} if rules else {})}


class World:
    """A node agent's rules. `random`: the random number that it always gets."""

    def __init__(self, rules: SpotRules | None, random: float = 0.5) -> None:
        self.api = Api(rules)
        self.changes = 0
        client: Any = self.api
        self.rules = RuleSource(client, "system", "node-1", self._changed, lambda: random)

    def _changed(self) -> None:
        self.changes += 1

    def lends(self) -> bool:
        """Whether the agent knows by now that its card is lent."""
        return self.rules.known and self.rules.of(card(), "nvidia.com/gpu") is not None

    def go(self, story: Coroutine[Any, Any, None]) -> None:
        async def told() -> None:
            task = asyncio.create_task(self.rules.run())
            await story
            assert not task.done()

        virtual_time.run(told())


def test_where_nothing_lends_nobody_asks_for_the_node() -> None:
    world = World(NOTHING)

    async def story() -> None:
        await asyncio.sleep(DAY)
        assert world.rules.known
        assert world.rules.of(card(), "nvidia.com/gpu") is None
        assert world.api.asked == []

    world.go(story())


def test_a_card_is_lent_by_the_rule_for_its_model_and_its_pool() -> None:
    (one,) = LENDING.rules
    other = one.changed(pool="q", card_models=("NVIDIA-H100*",))
    world = World(SpotRules(rules=(other, one)))

    async def story() -> None:
        await asyncio.sleep(HOUR)
        of = partial(world.rules.of, card(), "nvidia.com/gpu")
        assert [of(pool) for pool in (None, "p", "q")] == [one, one, None]

    world.go(story())


def test_an_agent_that_starts_where_cards_are_lent_asks_at_once_and_now_and_then() -> None:
    world = World(LENDING)

    async def story() -> None:
        await asyncio.sleep(0.1)
        assert world.lends()
        world.api.labels = {}
        changes = world.changes
        await asyncio.sleep(HOUR)
        assert not world.lends()
        assert world.changes == changes + 1

    world.go(story())
    assert world.api.asked == [LABELS_EVERY_S * turn for turn in range(len(world.api.asked))]
    assert len(world.api.asked) in (6, 7)


def test_nodes_do_not_ask_all_at_once() -> None:
    """Nodes spread their questions both when they hear of the first rule and later."""
    for random in (0.0, 0.5, 0.99):
        world = World(NOTHING, random)
        world.go(_begins_to_lend(world))
        first, second = world.api.asked[:2]
        assert first == pytest.approx(HOUR + SPREAD_S * random)
        assert second - first == pytest.approx(LABELS_EVERY_S * (0.75 + random / 2))


async def _begins_to_lend(world: World) -> None:
    await asyncio.sleep(HOUR)
    world.api.tell(LENDING)
    await asyncio.sleep(HOUR)
    assert world.lends()


def test_until_it_has_the_labels_it_does_not_know_what_is_lent() -> None:
    """Labels that are days old say nothing of the node now."""
    world = World(LENDING)

    async def story() -> None:
        await asyncio.sleep(DAY)
        world.api.tell(NOTHING)
        await asyncio.sleep(DAY)
        assert world.rules.known
        before = len(world.api.asked)
        await asyncio.sleep(DAY)
        assert len(world.api.asked) == before
        world.api.labels = {}
        world.api.tell(LENDING)
        await asyncio.sleep(0.1)
        assert not world.rules.known
        await asyncio.sleep(SPREAD_S)
        assert world.rules.known
        assert not world.lends()

    world.go(story())


def test_an_api_server_that_is_away_is_asked_less_and_less() -> None:
    world = World(LENDING)
    world.api.down = True

    async def story() -> None:
        await asyncio.sleep(HOUR)
        assert not world.rules.known
        assert len(world.api.asked) < HOUR / (RETRY_MOST_S / 2)
        world.api.down = False
        await asyncio.sleep(RETRY_MOST_S)
        assert world.lends()

    world.go(story())


def test_an_emptied_config_map_takes_no_card_back() -> None:
    """`helm upgrade --force` empties it until the operator has looked. The rules stay known
    meanwhile: where they are not, cards whose owner has gone or that fail are not taken back."""
    world = World(LENDING)

    async def story() -> None:
        await asyncio.sleep(0.1)
        world.api.tell(None)
        await asyncio.sleep(0.1)
        assert world.lends()
        world.api.tell(LENDING)
        await asyncio.sleep(0.1)
        assert world.lends()
        world.api.tell(NOTHING)
        await asyncio.sleep(0.1)
        assert world.rules.known and not world.lends()
        world.api.tell(None)
        await asyncio.sleep(0.1)
        assert world.rules.known and not world.lends()

    world.go(story())


def test_until_the_rules_are_written_it_does_not_know_what_is_lent() -> None:
    """An agent that starts meanwhile leaves lent cards as they are."""
    world = World(None)

    async def story() -> None:
        await asyncio.sleep(HOUR)
        assert not world.rules.known
        world.api.tell(NOTHING)
        await asyncio.sleep(0.1)
        assert world.rules.known

    world.go(story())
