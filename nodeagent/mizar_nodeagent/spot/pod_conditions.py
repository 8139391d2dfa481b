"""Writes the agent's pod conditions to the pods' status, by server-side apply."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from mizar_core.model_base import format_time
from mizar_core.names import FIELD_MANAGER_NODEAGENT, POD_CONDITION_BORROWS
from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict, NotFound
from mizar_kube.kinds import POD, Object, Ref
from mizar_kube.logs import get_logger
from mizar_kube.work_queue import WorkQueue, work
from mizar_nodeagent.condition_body import condition_body
from mizar_nodeagent.read_again import ReadAgain
from mizar_nodeagent.spot.owner_events import PodIdentity

log = get_logger(__name__)

MANAGERS: Final = {POD_CONDITION_BORROWS: f"{FIELD_MANAGER_NODEAGENT}-borrows"}
"""The field manager of a condition, by its type, if it is not that of the others: a write of
another condition leaves this one in place. Policies of earlier versions do not know it, and refuse
an agent that removes it."""


@dataclass(frozen=True)
class PodCondition:
    """A condition of a pod, without its transition time."""

    type: str
    is_true: bool
    reason: str
    message: str


class PodConditionWriter:
    """Writes the conditions that were set by `set_desired`, one for each pod, when they differ from
    those last written. A failed write is retried for as long as the condition is desired. Pods are
    read again from time to time, and conditions that they lack are written again (see
    `read_again`). `now` returns the transition time; `clock` returns seconds, `random` numbers in
    [0, 1)."""

    def __init__(
        self,
        client: KubeClient,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._now = now
        self._wanted: Mapping[PodIdentity, PodCondition] = {}
        self._written: dict[PodIdentity, PodCondition] = {}
        self._read_again: ReadAgain[PodIdentity] = ReadAgain(clock, random)
        self._outdated: set[PodIdentity] = set()
        self._queue: WorkQueue[PodIdentity] = WorkQueue(first_delay=0.1, max_delay=5.0)

    def set_desired(self, conditions: Mapping[PodIdentity, PodCondition]) -> None:
        """Set the desired conditions of all pods of this node. Pods without a UID are skipped,
        since another pod of the same name must not get the condition. Must be called every few
        seconds."""
        self._wanted = {pod: one for pod, one in conditions.items() if pod.uid}
        self._written = {pod: one for pod, one in self._written.items() if pod in self._wanted}
        for pod, one in self._wanted.items():
            if self._written.get(pod) != one:
                self._queue.add(pod)
        self._outdated &= self._wanted.keys()
        for pod in self._read_again.due(self._wanted):
            self._outdated.add(pod)
            self._queue.add(pod)

    async def run(self) -> None:
        """Write conditions until cancelled. May run several times concurrently."""
        await work(self._queue, self._write)

    async def _write(self, pod: PodIdentity) -> None:
        wanted = self._wanted.get(pod)
        if wanted is None:
            return
        try:
            await self._forget_if_gone(pod)
            if self._written.get(pod) != wanted:
                await self._apply(pod, wanted)
        except (NotFound, Conflict) as error:
            # Or another client wrote to the pod at that moment.
            if isinstance(error, Conflict) and await self._is_there(pod):
                raise
            log.info("the pod is gone", namespace=pod.namespace, pod=pod.name, error=error)
        self._written[pod] = wanted

    async def _forget_if_gone(self, pod: PodIdentity) -> None:
        """Read the pod if that is due, and forget the last write if the pod lacks its condition."""
        if pod not in self._outdated:
            return
        self._outdated.discard(pod)  # It may be due again while it is read.
        try:
            found = await self._client.get(Ref(POD, pod.name, pod.namespace), cached=True)
        except BaseException:
            self._outdated.add(pod)
            raise
        written = self._written.get(pod)
        if written is not None and not _has(found, written):
            del self._written[pod]

    async def _is_there(self, pod: PodIdentity) -> bool:
        """Whether this very pod exists. Raises KubeError."""
        try:
            found = await self._client.get(Ref(POD, pod.name, pod.namespace), cached=True)
        except NotFound:
            return False
        return bool(found["metadata"].get("uid") == pod.uid)

    async def _apply(self, pod: PodIdentity, wanted: PodCondition) -> None:
        manager = MANAGERS.get(wanted.type, FIELD_MANAGER_NODEAGENT)
        await self._client.apply(
            self._body(pod, wanted), field_manager=manager, subresource="status"
        )

    def _body(self, pod: PodIdentity, wanted: PodCondition) -> dict[str, Any]:
        condition = {
            "type": wanted.type,
            "status": str(wanted.is_true),
            "reason": wanted.reason,
            "message": wanted.message,
            "lastTransitionTime": format_time(self._now()),
        }
        return condition_body(pod.namespace, pod.name, condition, pod.uid)


def _has(pod: Object, wanted: PodCondition) -> bool:
    """Whether the pod's status has the condition, or the pod is being deleted: then other
    components may have overwritten it with their own reason."""
    if "deletionTimestamp" in pod["metadata"]:
        return True
    fields = {**vars(wanted), "status": str(wanted.is_true)}
    del fields["is_true"]
    found = pod.get("status", {}).get("conditions") or ()
    return any(fields.items() <= {"message": "", **one}.items() for one in found)
