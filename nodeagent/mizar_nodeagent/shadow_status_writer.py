"""Writes the agent's part of ShadowPods' status, by server-side apply, as soon as it differs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from mizar_core.condition import find_condition
from mizar_core.models import ShadowPodStatus
from mizar_core.names import API_VERSION, FIELD_MANAGER_NODEAGENT, ConditionType
from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict, NotFound
from mizar_kube.kinds import SHADOW_POD, Ref
from mizar_kube.logs import get_logger
from mizar_kube.work_queue import WorkQueue, work
from mizar_nodeagent.planning.shadow_status import Report
from mizar_nodeagent.pods import Key
from mizar_nodeagent.read_again import ReadAgain

log = get_logger(__name__)

MISSING_GRACE_S = 3.0
"""Seconds for which a ready ShadowPod stays ready after its devices went missing, as they do for a
moment whenever kubelet or agent restart."""
_PASSING = frozenset({"NotAdvertised", "KubeletAway"})


@dataclass(frozen=True)
class _Known:
    """A ShadowPod's UID and status in the API server. `idle`: the idleSince that an earlier agent
    wrote for the same idle time, and this agent's later one, which must not replace it."""

    uid: str
    status: ShadowPodStatus
    idle: tuple[datetime, datetime] | None = None


class ShadowStatusWriter:
    """Writes the reports of the last plan (`set_desired`) that differ from the statuses in the API
    server. These are read again from time to time (see `read_again`). `now` returns the time of
    day, `clock` monotonic seconds, `random` numbers in [0, 1)."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._node = node
        self._now = now
        self._clock = clock
        self._missing_since: dict[Key, float] = {}
        self._wanted: dict[Key, Report] = {}
        self._known: dict[Key, _Known] = {}
        self._read_again: ReadAgain[Key] = ReadAgain(clock, random)
        self._outdated: set[Key] = set()
        self._queue: WorkQueue[Key] = WorkQueue(first_delay=0.1, max_delay=10.0)

    def set_desired(self, reports: Iterable[Report]) -> None:
        """Set the reports on all ShadowPods of this node. Must be called every few seconds."""
        before, self._wanted = self._wanted, {report.key: report for report in reports}
        for key, report in self._wanted.items():
            if before.get(key) != report:
                self._queue.add(key)
        for key in self._read_again.due(self._wanted):
            self._outdated.add(key)
            self._queue.add(key)
        for key in self._known.keys() - self._wanted.keys():
            del self._known[key]
            self._missing_since.pop(key, None)
            self._outdated.discard(key)

    async def run(self) -> None:
        """Write reports, for ever. A failed write is tried again later. May run several times
        concurrently."""
        await work(self._queue, self._write)

    async def _write(self, key: Key) -> None:
        if key not in self._wanted:
            return
        try:
            known = self._known[key] = await self._read(key)
            report = self._wanted.get(key)
            # Another ShadowPod of this name may have come meanwhile.
            if report is not None and report.uid in ("", known.uid):
                await self._apply(report, known)
        except NotFound:
            log.info("the ShadowPod is gone", namespace=key[0], shadow=key[1])
            self._known.pop(key, None)
        except Conflict:
            # Another ShadowPod has the name, which the next attempt reads and leaves alone, or
            # another client wrote to it at that moment.
            self._known.pop(key, None)
            raise

    async def _read(self, key: Key) -> _Known:
        """The ShadowPod in the API server, which is read if it is not known or may be outdated."""
        known = self._known.get(key)
        wanted = self._wanted[key]
        if known is not None and wanted.uid not in ("", known.uid):
            known = None
        if known is not None and key not in self._outdated:
            return known
        ref = Ref(SHADOW_POD, key[1], key[0])
        found = await self._client.get(ref, cached=known is not None)
        self._outdated.discard(key)
        uid = str(found["metadata"]["uid"])
        status = ShadowPodStatus.from_dict(found.get("status") or {})
        if known is not None and known.uid == uid:
            # This agent wrote the times before: an older status now is not an earlier agent's.
            return replace(known, status=status)
        return _Known(uid, status, _idle(status, wanted))

    async def _apply(self, report: Report, known: _Known) -> None:
        if known.idle and report.idle_since == known.idle[1]:
            report = replace(report, idle_since=known.idle[0])
        report = self._with_grace(report, known.status)
        status = report.status(self._node, known.status.conditions, self._now())
        if status != known.status.changed(phase=None, conditions=_own(known.status, report)):
            await self._client.apply(
                _body(report.key, known.uid, status),
                field_manager=FIELD_MANAGER_NODEAGENT,
                subresource="status",
            )
        self._known[report.key] = replace(known, status=status)

    def _with_grace(self, report: Report, status: ShadowPodStatus) -> Report:
        """The report, but a ready ShadowPod stays so for a moment after its devices went
        missing."""
        ready, *others = report.conditions
        was = find_condition(status.conditions, ConditionType.READY)
        if ready.reason not in _PASSING or was is None or was.status != "True":
            self._missing_since.pop(report.key, None)
            return report
        missing = self._clock() - self._missing_since.setdefault(report.key, self._clock())
        if missing >= MISSING_GRACE_S:
            return report
        self._queue.add(report.key, after=MISSING_GRACE_S - missing)
        as_before = replace(ready, status=was.status, reason=was.reason, message=was.message)
        return replace(report, conditions=(as_before, *others))


def _idle(status: ShadowPodStatus, wanted: Report) -> tuple[datetime, datetime] | None:
    """See `_Known`."""
    if status.idle_since and wanted.idle_since and status.idle_since < wanted.idle_since:
        return status.idle_since, wanted.idle_since
    return None


def _own(status: ShadowPodStatus, report: Report) -> tuple[Any, ...]:
    """The conditions that the agent owns."""
    types = {one.type for one in report.conditions}
    return tuple(one for one in status.conditions if one.type in types)


def _body(key: Key, uid: str, status: ShadowPodStatus) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": SHADOW_POD.name,
        # The UID keeps this from being applied to another ShadowPod of the same name.
        "metadata": {"namespace": key[0], "name": key[1], "uid": uid},
        "status": status.to_dict(),
    }
