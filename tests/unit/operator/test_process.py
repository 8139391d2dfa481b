"""The process as its probes see it."""

from typing import cast

from mizar_kube.client import KubeClient
from mizar_kube.clock import Clock
from mizar_operator.main import STUCK_AFTER_S, Operator
from mizar_operator.settings import Settings
from stateful.memory_api import MemoryApi


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


async def test_a_replica_that_waits_for_the_lease_is_not_stuck() -> None:
    seconds = Seconds()
    operator = _operator(seconds)
    operator.queue.add("mizar.share")
    seconds.now = 10 * STUCK_AFTER_S
    assert not _queue_problems(operator)
    operator.leads_from_now_on()
    assert not _queue_problems(operator)
    seconds.now += STUCK_AFTER_S + 1
    assert _queue_problems(operator) == ["queue: nothing has come of a key for 121 s"]
