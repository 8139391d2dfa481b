"""Writes the condition mizar.share/isolation-enforced of share pods: False while a process of one
uses a card past its limits, True again afterwards; pods that never had one do not get it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from mizar_core.condition import Status
from mizar_core.model_base import format_time
from mizar_core.names import FIELD_MANAGER_NODEAGENT, POD_CONDITION_ISOLATION
from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict, KubeError, NotFound
from mizar_kube.logs import get_logger
from mizar_nodeagent.pod_status import condition_body
from mizar_nodeagent.pods import Key, Pod

log = get_logger(__name__)

EVERY_S: Final = 1.0
MANAGER: Final = f"{FIELD_MANAGER_NODEAGENT}-isolation"
"""A field manager of its own: what others write of a pod's status stays theirs."""


@dataclass(frozen=True)
class _Condition:
    status: Status
    reason: str
    message: str


ENFORCED: Final = _Condition("True", "AllBound", "no process uses a card past the pod's limits")


class IsolationConditions:
    """`unbound`: a sentence for each pod with processes that no limits bind, by its key; None while
    that is not known. `pods`: the node's pods."""

    def __init__(
        self,
        client: KubeClient,
        pods: Callable[[], Iterable[Pod]],
        unbound: Callable[[], Mapping[Key, str] | None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._pods = pods
        self._unbound = unbound
        self._now = now
        self._written: dict[str, Status] = {}

    async def run(self) -> None:
        """Write what differs, for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Write what differs now. What fails is tried again the next time."""
        unbound, pods = self._unbound(), list(self._pods())
        if unbound is None:
            return
        self._written = {
            pod.uid: self._written[pod.uid] for pod in pods if pod.uid in self._written
        }
        for pod in pods:
            wanted = _wanted(unbound.get(pod.key), self._written.get(pod.uid, pod.isolation))
            if wanted is None or pod.ended:
                continue
            try:
                await self._client.apply(
                    self._body(pod, wanted), field_manager=MANAGER, subresource="status"
                )
            except (NotFound, Conflict):
                continue  # it is gone, or another one of its name
            except KubeError as error:
                log.warning(
                    "a pod's condition cannot be written",
                    namespace=pod.namespace,
                    pod=pod.name,
                    error=error,
                )
                continue
            self._written[pod.uid] = wanted.status

    def _body(self, pod: Pod, wanted: _Condition) -> dict[str, Any]:
        condition = {"type": POD_CONDITION_ISOLATION, **vars(wanted)}
        condition["lastTransitionTime"] = format_time(self._now())
        return condition_body(pod.namespace, pod.name, condition, pod.uid)


def _wanted(sentence: str | None, has: str) -> _Condition | None:
    """The condition to write; None where the pod's is right. `has`: its present status, empty if it
    has none."""
    if sentence is not None:
        return None if has == "False" else _Condition("False", "ProcessWithoutShim", sentence)
    return ENFORCED if has == "False" else None
