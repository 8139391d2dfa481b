"""Writes the pod condition mizar.share/isolation-enforced: False while a process of a share pod
uses a card past the pod's limits, True afterwards. Pods that never had such a process do not get
it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from mizar_core.condition import Status
from mizar_core.model_base import format_time
from mizar_core.names import FIELD_MANAGER_NODEAGENT, POD_CONDITION_ISOLATION
from mizar_kube.backoff import Backoff
from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict, KubeError, NotFound
from mizar_kube.logs import get_logger
from mizar_nodeagent.condition_body import condition_body
from mizar_nodeagent.pods import Key, Pod

log = get_logger(__name__)

EVERY_S: Final = 1.0
"""Seconds between two looks for conditions that must be written."""
RETRY_MOST_S: Final = 60.0
"""Most seconds until a failed write is tried again, unless the API server asks for more."""
MANAGER: Final = f"{FIELD_MANAGER_NODEAGENT}-isolation"
"""The condition's field manager. It is a separate one, so that the fields that others write to a
pod's status stay theirs."""


@dataclass(frozen=True)
class _Condition:
    status: Status
    reason: str
    message: str


ENFORCED: Final = _Condition("True", "AllBound", "no process uses a card past the pod's limits")
"""The condition of a pod that had such processes and has none any more."""


@dataclass
class _Retry:
    """When a failed write is tried again (seconds of the clock)."""

    backoff: Backoff
    due: float = 0.0


class IsolationConditions:
    """Writes the conditions. `unbound` returns a sentence for each pod with processes that no
    limits bind, by the pod's key; None while that is not known. `pods` returns the node's pods.
    `clock` returns seconds, `random` numbers in [0, 1). A failed write is tried again, after at
    most RETRY_MOST_S seconds or as the API server asks.
    """

    def __init__(
        self,
        client: KubeClient,
        pods: Callable[[], Iterable[Pod]],
        unbound: Callable[[], Mapping[Key, str] | None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._pods = pods
        self._unbound = unbound
        self._now = now
        self._clock = clock
        self._random = random
        self._written: dict[str, Status] = {}
        self._retries: dict[str, _Retry] = {}

    async def run(self) -> None:
        """Write conditions that differ, for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Write the conditions that differ now, except those whose retry is not due yet."""
        unbound, pods = self._unbound(), list(self._pods())
        if unbound is None:
            return
        there = {pod.uid for pod in pods}
        # Remember a write only until the watch shows it: a restored API server may lose it later.
        shown = {(pod.uid, pod.isolation) for pod in pods}
        self._written = {
            uid: one
            for uid, one in self._written.items()
            if uid in there and (uid, one) not in shown
        }
        self._retries = {uid: one for uid, one in self._retries.items() if uid in there}
        for pod in pods:
            wanted = _wanted(unbound.get(pod.key), self._written.get(pod.uid, pod.isolation))
            if wanted is not None and not pod.ended and self._is_due(pod):
                await self._write(pod, wanted)

    def _is_due(self, pod: Pod) -> bool:
        retry = self._retries.get(pod.uid)
        return retry is None or self._clock() >= retry.due

    async def _write(self, pod: Pod, wanted: _Condition) -> None:
        try:
            await self._client.apply(
                self._body(pod, wanted), field_manager=MANAGER, subresource="status"
            )
        except KubeError as error:
            self._failed(pod, error)
        else:
            self._retries.pop(pod.uid, None)
            self._written[pod.uid] = wanted.status

    def _failed(self, pod: Pod, error: KubeError) -> None:
        """Schedule a retry. If the pod is gone or another pod has its name, the watch will show
        that."""
        first = Backoff(EVERY_S, RETRY_MOST_S, self._random)
        retry = self._retries.setdefault(pod.uid, _Retry(first))
        delay = max(retry.backoff.next(), error.retry_after or 0.0)
        retry.due = self._clock() + delay
        if not isinstance(error, NotFound | Conflict):
            log.warning(
                "a pod's condition cannot be written",
                namespace=pod.namespace,
                pod=pod.name,
                error=error,
                retry_s=round(delay, 1),
            )

    def _body(self, pod: Pod, wanted: _Condition) -> dict[str, Any]:
        condition = {"type": POD_CONDITION_ISOLATION, **vars(wanted)}
        condition["lastTransitionTime"] = format_time(self._now())
        return condition_body(pod.namespace, pod.name, condition, pod.uid)


def _wanted(sentence: str | None, has: str) -> _Condition | None:
    """The condition to write; None if the pod's is right. `sentence`: about its processes that no
    limits bind, None if it has none. `has`: the present status of its condition, empty if it has
    none."""
    if sentence is not None:
        return None if has == "False" else _Condition("False", "ProcessWithoutShim", sentence)
    return ENFORCED if has == "False" else None
