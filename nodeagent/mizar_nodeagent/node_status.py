"""Writes capacity and allocatable of Mizar's resources to the node's status, as soon as the kubelet
has the devices.

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
from mizar_kube.timed_wait import wait_until_set
from mizar_nodeagent.planning.snapshot import Counts

log = get_logger(__name__)

REWRITE_EVERY_S = 0.4
"""Seconds between two writes of a count that the kubelet may overwrite, such as a lowered one."""
WITHDRAW_TIMEOUT_S = 3.0
"""Most seconds for `withdraw`, including its grace."""
CONTENDED_S = 2.5
"""Seconds for which the kubelet may overwrite a count with an older one: when it starts, with the
one from before its plugins came back; when devices become unhealthy, with one that it was about to
write."""


class NodeStatusWriter:
    """Writes the newest desired counts to the node's status. `changed` is called when the API
    server has accepted a write. `clock` returns monotonic seconds."""

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
        self._rewrite: frozenset[str] = frozenset()
        self._written: dict[str, Counts] = {}
        self._written_at: dict[str, float] = {}
        self._contended_until: dict[str, float] = {}
        self._wake = asyncio.Event()

    @property
    def written(self) -> dict[str, Counts]:
        """The counts that the API server accepted last, by resource."""
        return dict(self._written)

    @property
    def written_at(self) -> dict[str, float]:
        """When the last accepted write of each resource began (monotonic seconds)."""
        return dict(self._written_at)

    def set_desired(
        self, counts: Mapping[str, Counts], rewrite: frozenset[str] = frozenset()
    ) -> None:
        """Set the counts to be written; other resources stay as they are. Resources in `rewrite`
        are written every REWRITE_EVERY_S, until CONTENDED_S after they were last in it."""
        until = self._clock() + CONTENDED_S
        self._contended_until |= dict.fromkeys(self._rewrite - rewrite, until)
        self._wanted = dict(counts)
        self._rewrite = rewrite
        if self._due():
            self._wake.set()

    def forget(self, resource: str) -> None:
        """Write the resource's counts again, and for CONTENDED_S repeatedly, since the kubelet has
        overwritten them or may do so."""
        if self._written.pop(resource, None) is not None:
            self._contended_until[resource] = self._clock() + CONTENDED_S

    async def withdraw(self, grace: float) -> None:
        """Write 0 allocatable before the agent ends, so that the scheduler binds no more pods here.

        The kubelet loses the devices when the agent ends, but would write that only seconds later,
        and a pod that is bound meanwhile fails for good. Returns `grace` seconds after the write,
        in which pods that were bound just before arrive. Errors are only logged.
        """
        # Resources without devices may have been taken off the node (stale_resources.py).
        withdrawn = {
            one: replace(counts, allocatable=0)
            for one, counts in self._written.items()
            if counts != Counts(0, 0)
        }
        if not withdrawn:
            return
        try:
            async with asyncio.timeout(WITHDRAW_TIMEOUT_S):
                await self._client.patch_merge(self._ref, _patch(withdrawn), subresource="status")
                await asyncio.sleep(grace)
        except (KubeError, TimeoutError) as error:
            log.warning(
                "the agent ends without withdrawing its devices from the node's status", error=error
            )

    async def run(self) -> None:
        """Write whenever a count differs, for ever."""
        backoff, failing = Backoff(first=0.1, most=5.0), False
        while True:
            await self._wait()
            due = self._due()
            if not due:
                continue
            try:
                await self._write(due)
                backoff.reset()
                failing = False
            except KubeError as error:
                # Warn once, since the API server may be away for hours.
                (log.debug if failing else log.warning)(
                    "the node's status cannot be written", error=error
                )
                failing = True
                await asyncio.sleep(error.retry_after or backoff.next())
                self._wake.set()

    async def _wait(self) -> None:
        await wait_until_set(self._wake, within=REWRITE_EVERY_S if self._contended() else None)
        self._wake.clear()

    def _due(self) -> dict[str, Counts]:
        return {
            resource: counts
            for resource, counts in self._wanted.items()
            if counts != self._written.get(resource) or self._must_rewrite(resource)
        }

    def _must_rewrite(self, resource: str) -> bool:
        age = self._clock() - self._written_at.get(resource, float("-inf"))
        return resource in self._contended() and age >= REWRITE_EVERY_S

    def _contended(self) -> frozenset[str]:
        """The resources that the kubelet may be writing now."""
        now = self._clock()
        return self._rewrite | {one for one, until in self._contended_until.items() if now < until}

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


async def runtime_version(client: KubeClient, node: str) -> str:
    """The node's container runtime with its version, such as containerd://2.2.9; empty if the API
    server does not answer."""
    try:
        found = await client.get(Ref(NODE, node))
    except KubeError as error:
        log.warning("the node's container runtime is not known", error=error)
        return ""
    info = (found.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion", ""))
