"""Settings that differ on some nodes, and what the agent does with those that it cannot use."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mizar_kube.errors import NotFound, Unavailable
from mizar_kube.settings import read
from mizar_nodeagent.config import Config
from mizar_nodeagent.errors import OverridesRefused
from mizar_nodeagent.overrides import source as module
from mizar_nodeagent.overrides.model import Overrides, applied
from mizar_nodeagent.overrides.report import OverrideReporter
from mizar_nodeagent.overrides.source import KEPT, LABELS_EVERY_S, NodeLabels, OverrideSource
from support.waiting import until

BASE = read(Config, ["--node-name=n", "--card-access.strategy=Mounts", "--card-access.gds"])


def own(settings: str, where: str = "nodes: [n]") -> str:
    return f"- {where}\n  settings: {settings}\n"


CDI = own("{cardAccess: {strategy: CDI}}")
BAD = own("{cardAccess: {strategi: CDI}}")


class TestModel:
    def of(self, text: str, labels: Mapping[str, str] | None = None) -> Config:
        return applied(BASE, Overrides.parse(text).of("n", labels or {}))

    def test_by_name(self) -> None:
        found = self.of(CDI).card_access
        assert (found.strategy, found.gds) == ("CDI", True), "what it doesn't name stays"
        assert self.of(CDI.replace("[n]", "[other]")) == BASE

    def test_by_all_labels(self) -> None:
        text = own("{failRequestsGreaterThanOne: true}", "nodeSelector: {a: b, c: d}")
        assert self.of(text, {"a": "b", "c": "d", "e": "f"}).fail_requests_greater_than_one
        assert self.of(text, {"a": "b"}) == BASE

    def test_errors_of_cards_that_are_ignored(self) -> None:
        assert self.of(own("{ignoredXids: [48, 79]}")).ignored_xids == (48, 79)

    def test_later_ones_win(self) -> None:
        text = own("{cardAccess: {strategy: CDI, mofed: true}}") + own(
            "{cardAccess: {strategy: NRI}}"
        )
        found = self.of(text).card_access
        assert (found.strategy, found.mofed) == ("NRI", True)

    def test_device_nodes_follow_the_drivers_root_as_before(self) -> None:
        base = BASE.model_copy(update={"driver_root": Path("/run/nvidia/driver")})
        found = applied(base, Overrides.parse(CDI).of("n", {}))
        assert found.access.dev_root == Path("/run/nvidia/driver/dev")

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            (BAD, r"overrides\[0\]\.settings\.cardAccess\.strategi: there is no such setting"),
            (
                own("{stateDir: /x}"),
                r"stateDir: there is no such setting, or it cannot differ",
            ),
            (own("{cardAccess: {nriSocket: /x}}"), "nriSocket: .* it cannot differ between nodes"),
            (own("{cardAccess: {strategy: X}}"), "strategy: it must be 'EnvVar', .*, not 'X'"),
            (own("{cardAccess: {devRoot: x}}"), "devRoot: it must be an absolute path on the node"),
            (own("{ignoredXids: [all]}"), r"ignoredXids\.0: it must be a valid integer.*not 'all'"),
            (own("{cardAccess: {strategy: NRI, also: [CDIAnnotations]}}"), "use CDI in `also`"),
            (own("{}", "node: [n]"), r"overrides\[0\]\.node: there is no such setting"),
            ("- settings: {}", "must select nodes by nodes or nodeSelector"),
            ("- nodes: [n]", r"overrides\[0\]\.settings must be given"),
            ("a: b", "must be a list of nodes with their settings"),
            ("- {", "are not valid YAML"),
        ],
    )
    def test_what_is_wrong_is_named(self, text: str, sentence: str) -> None:
        with pytest.raises(OverridesRefused, match=sentence):
            self.of(text)

    def test_a_mistake_about_another_node_is_not_this_ones(self) -> None:
        text = BAD.replace("[n]", "[other]") + CDI
        assert self.of(text).card_access.strategy == "CDI"


class World:
    """A node whose overrides are in a file, and whose labels the API server has."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "overrides.yaml"
        self.state = folder
        self.labels: Mapping[str, str] | Exception = {}
        self.applied: list[Any] = []
        self.now = 0.0
        self.reads: list[bool] = []  # of the labels: whether the API server's copy will do
        self.config = BASE.model_copy(update={"overrides": self.file, "state_dir": folder})

    async def get(self, ref: object, *, cached: bool = False) -> Any:
        self.reads.append(cached)
        if isinstance(self.labels, Exception):
            raise self.labels
        return {"metadata": {"labels": self.labels}}

    async def apply(self, body: Any, **how: object) -> None:
        self.applied.append(body["status"]["conditions"][0])

    def source(self, **changes: Any) -> OverrideSource:
        labels = NodeLabels(self, "n", lambda: self.now, lambda: 0.5)  # type: ignore[arg-type]
        config = self.config.model_copy(update=changes)
        return OverrideSource(config, self, labels)  # type: ignore[arg-type]

    async def strategy(self) -> str:
        """The strategy of an agent that starts now."""
        return (await self.source().start()).card_access.strategy


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class TestStart:
    async def test_without_a_file(self, world: World) -> None:
        assert await world.source().start() == world.config

    async def test_a_bad_one_leaves_what_was_good(self, world: World) -> None:
        world.file.write_text(CDI)
        assert await world.strategy() == "CDI"
        world.file.write_text(BAD)
        assert await world.strategy() == "CDI"
        assert await world.strategy() == "CDI", "and is not remembered"

    async def test_a_folder_of_device_nodes_that_is_the_one_above(self, world: World) -> None:
        (world.state / "driver" / "dev").mkdir(parents=True)
        (world.state / "driver" / "dev" / "nvidiactl").touch()
        world.file.write_text(own(f"{{cardAccess: {{devRoot: {world.state}/driver}}}}"))
        source = world.source()
        assert await source.start() == world.config
        assert f"set devRoot to {world.state}/driver/dev" in source.problem
        world.file.write_text(own(f"{{cardAccess: {{devRoot: {world.state}/driver/dev}}}}"))
        assert (await world.source().start()).access.dev_root == world.state / "driver" / "dev"

    async def test_device_nodes_that_cannot_be_looked_for(self, world: World) -> None:
        """They would end the agent again and again, and with it the node's share pods."""
        world.file.write_text(own("{cardAccess: {deviceNodes: [/dev/nvidiactl]}}"))
        source = world.source()
        assert await source.start() == world.config
        assert "not /dev/x" in source.problem

    async def test_a_first_one_that_is_bad_changes_nothing(self, world: World) -> None:
        world.file.write_text(BAD)
        source = world.source()
        assert await source.start() == world.config
        assert "strategi" in source.problem

    async def test_one_that_is_taken_back_is_forgotten(self, world: World) -> None:
        world.file.write_text(CDI)
        await world.strategy()
        world.file.write_text("[]")
        assert await world.strategy() == "Mounts"
        world.file.write_text(BAD)
        assert await world.strategy() == "Mounts"

    async def test_without_an_api_server_labels_are_as_they_were(self, world: World) -> None:
        world.file.write_text(own("{cardAccess: {strategy: CDI}}", "nodeSelector: {a: b}"))
        world.labels = {"a": "b"}
        assert await world.strategy() == "CDI"
        world.labels = Unavailable("away")
        source = world.source()
        assert (await source.start()).card_access.strategy == "CDI"
        assert not source.problem
        world.labels = NotFound("no such node")
        assert await world.strategy() == "Mounts"

    @pytest.mark.parametrize("kept", ["{", "[]", '"x"', '{"cardAccess": {"ofANewerAgent": 1}}'])
    async def test_what_was_remembered_may_be_of_no_use(self, world: World, kept: str) -> None:
        (world.state / KEPT).write_text(kept)
        world.file.write_text(BAD)
        assert await world.strategy() == "Mounts"


class TestFollow:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "EVERY_S", 0.001)

    async def test_a_good_change_ends_the_agent_and_a_bad_one_does_not(self, world: World) -> None:
        source, changed = world.source(), asyncio.Event()
        await source.start()
        following = asyncio.create_task(source.follow(changed.set))
        world.file.write_text(BAD)
        await until(lambda: source.problem)
        assert not changed.is_set()
        world.file.write_text("[]")
        await until(lambda: not source.problem)
        assert not changed.is_set(), "it is as before"
        world.file.write_text(CDI)
        await asyncio.wait_for(changed.wait(), 10)
        await following
        world.file.write_text(BAD)
        assert await world.strategy() == "CDI", "the next agent knows it"

    async def test_a_bad_change_ends_nobody_when_what_was_good_is_lost(self, world: World) -> None:
        world.file.write_text(CDI)
        source, changed = world.source(), asyncio.Event()
        await source.start()
        (world.state / KEPT).unlink()
        world.file.write_text(BAD)
        following = asyncio.create_task(source.follow(changed.set))
        await until(lambda: source.problem)
        world.file.write_text(CDI)
        await until(lambda: not source.problem)
        assert not changed.is_set()
        following.cancel()


class TestLabels:
    """Every agent of a cluster does this: none may ask at each of its looks at the file."""

    @pytest.fixture(autouse=True)
    def by_label(self, world: World) -> None:
        world.file.write_text(own("{cardAccess: {strategy: CDI}}", "nodeSelector: {a: b}"))

    async def look(self, world: World, source: OverrideSource, seconds: float) -> int:
        """How often the labels are read by looks in `seconds`, which then find the node's own
        settings; minus as often where they find none."""
        before, end = len(world.reads), world.now + seconds
        while world.now < end:
            world.now += module.EVERY_S
            found = await source.look()
        count = len(world.reads) - before
        return count if found.settings else -count

    async def test_are_read_once_a_minute(self, world: World) -> None:
        world.labels = {"a": "b"}
        source = world.source()
        await source.start()
        assert world.reads == [False]
        assert await self.look(world, source, LABELS_EVERY_S - module.EVERY_S) == 0
        world.labels = {}
        assert await self.look(world, source, module.EVERY_S) == -1
        assert world.reads == [False, True]
        assert await self.look(world, source, 10 * LABELS_EVERY_S) == -10

    async def test_are_asked_for_less_and_less_while_nobody_answers(self, world: World) -> None:
        world.labels = {"a": "b"}
        source = world.source()
        await source.start()
        world.labels = Unavailable("away")
        assert await self.look(world, source, LABELS_EVERY_S) == 1
        assert not (await source.look()).certain
        assert await self.look(world, source, 10 * LABELS_EVERY_S) <= 20
        world.labels = {"a": "c"}
        assert await self.look(world, source, LABELS_EVERY_S) == -1
        assert (await source.look()).certain

    async def test_are_read_only_where_an_override_names_any(self, world: World) -> None:
        world.file.write_text(CDI)
        source = world.source()
        await source.start()
        assert await self.look(world, source, LABELS_EVERY_S) == 0 and not world.reads


class TestReport:
    async def test_the_agents_pod_says_so(self, world: World) -> None:
        source = SimpleNamespace(used={}, problem="")
        reporter = OverrideReporter(world, source, "ns", "pod")  # type: ignore[arg-type]
        for used, problem in (({}, ""), ({}, ""), ({"cardAccess": {}}, ""), ({}, "x: no")):
            source.used, source.problem = used, problem
            await reporter.write()
        assert [(one["status"], one["reason"]) for one in world.applied] == [
            ("True", "Default"),
            ("True", "Overridden"),
            ("False", "Refused"),
        ]
        assert world.applied[-1]["message"].startswith("x: no; meanwhile")

    async def test_an_api_server_that_is_away_is_asked_less_and_less_often(self) -> None:
        """All agents that start meanwhile asked it every two seconds each."""
        asked, now = 0, 0.0

        async def apply(*_: object, **__: object) -> None:
            nonlocal asked
            asked += 1
            raise Unavailable("no answer")

        async def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            if now > 3600:
                raise asyncio.CancelledError

        source, client = SimpleNamespace(used={}, problem=""), SimpleNamespace(apply=apply)
        reporter = OverrideReporter(client, source, "ns", "pod", sleep)  # type: ignore[arg-type]
        with pytest.raises(asyncio.CancelledError):
            await reporter.run()
        assert 60 <= asked <= 150
