"""The condition of pods with processes that no limits bind, as the API server gets it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from mizar_nodeagent.audit.isolation_condition import IsolationConditions
from mizar_nodeagent.pods import Key, trim
from unit.nodeagent.fake_api import FakeApi, serving
from unit.nodeagent.makers import share_object

KEY = ("team-a", "share")
WHY = "process python (7) of container main holds 300 MiB without Mizar's shim"


class Node:
    """A node with a pod; `unbound` is what the auditor says."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.api.put_pod(share_object())
        self.unbound: dict[Key, str] | None = {}
        self.now = 0.0
        self.agent = AsyncExitStack()

    async def start_agent(self) -> None:
        await self.agent.aclose()
        client = await self.agent.enter_async_context(serving(self.api))
        self.conditions = IsolationConditions(
            client,
            lambda: filter(None, map(trim, list(self.api.pods.values()))),
            lambda: self.unbound,
            clock=lambda: self.now,
            random=lambda: 1.0,
        )

    async def after(self, unbound: dict[Key, str] | None) -> tuple[str, int]:
        """The condition once the auditor says so, and how many writes there were."""
        self.unbound, before = unbound, len(self.api.writes)
        for _ in range(2):
            await self.conditions.write()
        pod = trim(self.api.pods[KEY])
        assert pod is not None
        return pod.isolation, len(self.api.writes) - before

    async def tries(self, seconds: int) -> list[float]:
        """When the agent tries to write, looking each second."""
        found = []
        for _ in range(seconds):
            self.now, before = self.now + 1, len(self.api.asked)
            await self.conditions.write()
            found += [self.now] * (len(self.api.asked) - before)
        return found


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    await made.start_agent()
    yield made
    await made.agent.aclose()


async def test_it_comes_goes_and_comes_again(node: Node) -> None:
    assert await node.after({}) == ("", 0)
    assert await node.after({KEY: WHY}) == ("False", 1)
    (condition,) = node.api.pods[KEY]["status"]["conditions"]
    assert condition["type"] == "mizar.share/isolation-enforced"
    assert (condition["reason"], condition["message"]) == ("ProcessWithoutShim", WHY)
    assert await node.after({}) == ("True", 1)
    assert await node.after({KEY: WHY}) == ("False", 1)


async def test_the_next_agent_says_nothing_before_it_knows(node: Node) -> None:
    await node.after({KEY: WHY})
    await node.start_agent()
    assert await node.after(None) == ("False", 0)
    assert await node.after({}) == ("True", 1)


async def test_a_condition_that_a_restored_api_server_lost_is_written_again(node: Node) -> None:
    assert await node.after({KEY: WHY}) == ("False", 1)
    node.api.put_pod(share_object())
    assert await node.after({KEY: WHY}) == ("False", 1)


async def test_nothing_is_written_twice_before_the_watch_shows_it(node: Node) -> None:
    pods = [trim(node.api.pods[KEY])]
    node.conditions._pods = lambda: filter(None, pods)
    assert await node.after({KEY: WHY}) == ("False", 1)


async def test_what_fails_is_tried_again(node: Node) -> None:
    node.api.down = True
    assert (await node.after({KEY: WHY}))[0] == ""
    node.api.down = False
    node.now = 1.0
    assert await node.after({KEY: WHY}) == ("False", 1)


async def test_what_is_refused_is_tried_ever_more_seldom(node: Node) -> None:
    node.api.down, node.unbound = True, {KEY: WHY}
    assert await node.tries(200) == [1, 2, 4, 8, 16, 32, 64, 124, 184]
    other = share_object("other")
    node.api.put_pod(other)
    node.unbound = {KEY: WHY, ("team-a", "other"): WHY}
    assert await node.tries(2) == [201, 202], "each pod has its own delays"
    node.api.down = False
    assert await node.tries(100) == [204, 244]
    node.api.down, node.unbound = True, {}
    assert (await node.tries(2))[::2] == [303, 304], "a success ends the delays"


async def test_a_pod_that_is_gone_is_not_asked_for_each_second(node: Node) -> None:
    pods = [trim(node.api.pods[KEY])]
    node.conditions._pods = lambda: filter(None, pods)
    node.api.delete_pod(*KEY)
    node.unbound = {KEY: WHY}
    assert await node.tries(10) == [1, 2, 4, 8]


async def test_another_pod_of_its_name_is_left_alone(node: Node) -> None:
    pods = [trim(node.api.pods[KEY])]
    node.conditions._pods = lambda: filter(None, pods)
    node.api.put_pod(share_object() | {"metadata": {**share_object()["metadata"], "uid": "other"}})
    assert (await node.after({KEY: WHY}))[0] == ""
    node.api.delete_pod(*KEY)
    await node.conditions.write()
