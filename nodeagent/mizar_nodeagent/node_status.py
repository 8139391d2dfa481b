"""The node's status: capacity and allocatable of our resources, as soon as the kubelet has them.

The kubelet publishes the same figures itself, but only every ten seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mizar_kube.backoff import Backoff
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.kinds import NODE, Ref
from mizar_kube.logs import get_logger
from mizar_kube.waking import woken
from mizar_nodeagent.planning.view import Counts

log = get_logger(__name__)

# While a count is lowered, the kubelet may raise it again at any time.
INSIST_EVERY_S = 0.4
FAREWELL_S = 3.0
# A kubelet that starts writes what it had before its plugins came back, perhaps after us; and one
# that is told that devices are unhealthy, what it was about to write before that.
UNEASY_S = 2.5


class NodeStatus:
    """Writes what is wanted, the newest only. `changed` is called when the API server has it."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._ref = Ref(NODE, node)
        self._changed = changed
        self._clock = clock
        self._wanted: dict[str, Counts] = {}
        self._insist: frozenset[str] = frozenset()
        self._written: dict[str, Counts] = {}
        self._written_at: dict[str, float] = {}
        self._uneasy_until: dict[str, float] = {}
        self._wake = asyncio.Event()

    @property
    def written(self) -> dict[str, Counts]:
        """What the API server has taken."""
        return dict(self._written)

    @property
    def written_at(self) -> dict[str, float]:
        """When each resource's write was begun that the API server took last."""
        return dict(self._written_at)

    def want(self, counts: Mapping[str, Counts], insist: frozenset[str] = frozenset()) -> None:
        """These resources should read so; others stay as they are. Those of `insist` are written
        again and again, and for a while after they were."""
        until = self._clock() + UNEASY_S
        self._uneasy_until |= dict.fromkeys(self._insist - insist, until)
        self._wanted = dict(counts)
        self._insist = insist
        if self._due():
            self._wake.set()

    def forget(self, resource: str) -> None:
        """The kubelet may have written its own, or may be about to: write again, for a while."""
        if self._written.pop(resource, None) is not None:
            self._uneasy_until[resource] = self._clock() + UNEASY_S

    async def farewell(self, patience: float) -> None:
        """Tell the scheduler that nothing is to be had here, before the agent ends.

        The kubelet loses the devices with the agent and would say so only seconds later; a pod
        that is bound meanwhile fails for good. Pods on their way get `patience` seconds to arrive.
        """
        leaving = {one: replace(counts, allocatable=0) for one, counts in self._written.items()}
        if not leaving:
            return
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._client.patch_merge(self._ref, _patch(leaving), subresource="status")
                await asyncio.sleep(patience)
        except (KubeError, TimeoutError) as error:
            log.warning("the node's status could not be lowered before the end", error=error)

    async def run(self) -> None:
        """Write whenever something differs, for ever."""
        backoff = Backoff(first=0.1, most=5.0)
        while True:
            await self._wait()
            due = self._due()
            if not due:
                continue
            try:
                await self._write(due)
                backoff.reset()
            except KubeError as error:
                log.warning("the node's status cannot be written", error=error)
                await asyncio.sleep(error.retry_after or backoff.next())
                self._wake.set()

    async def _wait(self) -> None:
        await woken(self._wake, within=INSIST_EVERY_S if self._restless() else None)
        self._wake.clear()

    def _due(self) -> dict[str, Counts]:
        return {
            resource: counts
            for resource, counts in self._wanted.items()
            if counts != self._written.get(resource) or self._is_insisted(resource)
        }

    def _is_insisted(self, resource: str) -> bool:
        age = self._clock() - self._written_at.get(resource, float("-inf"))
        return resource in self._restless() and age >= INSIST_EVERY_S

    def _restless(self) -> frozenset[str]:
        """Resources that somebody else may be writing just now."""
        now = self._clock()
        return self._insist | {one for one, until in self._uneasy_until.items() if now < until}

    async def _write(self, due: dict[str, Counts]) -> None:
        began = self._clock()
        await self._client.patch_merge(self._ref, _patch(due), subresource="status")
        for resource, counts in due.items():
            self._written[resource] = counts
            self._written_at[resource] = began
        self._changed()


def _patch(counts: Mapping[str, Counts]) -> dict[str, Any]:
    return {
        "status": {
            "capacity": {resource: str(one.capacity) for resource, one in counts.items()},
            "allocatable": {resource: str(one.allocatable) for resource, one in counts.items()},
        }
    }
