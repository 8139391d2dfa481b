"""The kubelet's calls come in between parts of work that take the event loop for long."""

import asyncio

from mizar_nodeagent.agent_loop import (
    REST_ALLOCATING_MOST_S,
    REST_MOST_S,
    rest_after,
)
from mizar_nodeagent.event_loop_turns import ROUNDS, Turns
from support.waiting import PATIENCE_S


async def test_those_that_wait_for_the_same_go_on_one_after_the_other() -> None:
    """A call that comes while they do is answered before most of them."""
    turns, answer, done = Turns(), asyncio.Event(), list[str]()

    async def start(name: str) -> None:
        await answer.wait()
        await turns.wait()
        done.append(name)

    async def call() -> None:
        for _ in range(ROUNDS):  # as gRPC does before it asks the agent
            await asyncio.sleep(0)
        done.append("call")

    starts = [asyncio.create_task(start(str(number))) for number in range(5)]
    await asyncio.sleep(0)
    answer.set()
    await asyncio.gather(*starts, asyncio.create_task(call()))
    assert [one for one in done if one != "call"] == ["0", "1", "2", "3", "4"]
    assert done.index("call") <= 1


async def test_one_that_is_cancelled_keeps_nobody_waiting() -> None:
    turns = Turns()
    first, second = (asyncio.create_task(turns.wait()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(second, PATIENCE_S)


def test_a_plan_rests_longer_while_containers_are_given_devices() -> None:
    assert rest_after(0.001, allocating=False) < rest_after(0.001, allocating=True)
    assert rest_after(1.0, allocating=False) == REST_MOST_S
    assert rest_after(1.0, allocating=True) == REST_ALLOCATING_MOST_S
