"""Records Kubernetes events: `emit` keeps them in memory, and a background task writes them."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from mizar_kube.client import KubeClient
from mizar_kube.errors import (
    Forbidden,
    KubeError,
    NotFound,
    Unauthorized,
    Unavailable,
    is_refusal,
)
from mizar_kube.event_series import EventLog, Occurrence, Regarding, Series, regarding
from mizar_kube.kinds import EVENT, Object, Ref
from mizar_kube.logs import get_logger
from mizar_kube.timed_wait import wait_until_set

log = get_logger(__name__)

NOTE_MAX = 1024
"""The most bytes of an event's note: the API server refuses longer ones."""
ACTION_DEFAULT = "Reconcile"
FLUSH_EVERY_S = 5.0
"""Seconds between two checks for counts to write, while there are no new events."""
TIDY_EVERY_S = 60.0
"""Seconds between two searches for outdated events: if each new event caused a search, many pods at
once would make the program search all events for each pod."""
OTHERS_FIRST_S = 5.0
"""The most seconds for which events wait behind the program's other work."""
RETRY_AFTER_S = 2.0
"""Seconds, at least, until an unavailable API server is tried again."""
MOST_KEPT = 25_000
"""Events that wait to be written or are kept to count repeats: some 30 MB, for 10,000 pods that get
a new message every five minutes. The bound matters while the API server is unreachable."""


class EventRecorder:
    """Emits events.k8s.io/v1 Events as `controller` (`mizar-operator`), from `instance` (the pod).

    `emit` never waits and never fails; `run` writes, for ever. An event that cannot be written is
    dropped: nothing may depend on events. `others_done` waits until the program's other work is
    done, for so many seconds at most: in a burst, the API server does that first.
    """

    def __init__(
        self,
        client: KubeClient,
        controller: str,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        others_done: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self._client = client
        self._others_done = others_done
        self._controller = controller
        self._instance = instance[:128]
        self._clock = clock
        self._now = now
        self._log = EventLog()
        self._tidied_at = clock()
        self._wake = asyncio.Event()

    def emit(
        self,
        about: Regarding | Object,
        reason: str,
        note: str,
        *,
        warning: bool = False,
        action: str = ACTION_DEFAULT,
    ) -> None:
        """Record that something happened to an object. `reason` is CamelCase, `note` a sentence.

        A repeat within ten minutes only raises the event's count.
        """
        if len(self._log) >= MOST_KEPT:
            return
        target = about if isinstance(about, Regarding) else regarding(about)
        cut = note.encode()[:NOTE_MAX].decode(errors="ignore")
        occurrence = Occurrence(target, str(reason), cut, warning, action)
        # Event names are at most 253 characters long.
        name = f"{target.name[:230].rstrip('-.')}.{secrets.token_hex(8)}"
        self._log.record(occurrence, name, self._clock(), self._now())
        self._wake.set()

    async def run(self) -> None:
        """Write events as they happen, and counts now and then, until cancelled."""
        while True:
            self._wake.clear()
            if self._others_done is not None:
                await self._others_done(OTHERS_FIRST_S)
            try:
                await self.flush()
            except Unavailable as error:
                log.info("events cannot be written yet", error=error)
                await asyncio.sleep(max(RETRY_AFTER_S, error.retry_after or 0.0))
                continue
            await wait_until_set(self._wake, within=FLUSH_EVERY_S)

    async def flush(self) -> None:
        """Write all events and counts that are due. Raises Unavailable when the API server does not
        answer; the rest is kept for the next call."""
        for series in self._log.due(self._clock()):
            try:
                await self._write(series)
            except KubeError as error:
                if isinstance(error, Unavailable) and not is_refusal(error):
                    raise
                # A webhook that fails does so for some namespaces; the others' events go on.
                if self._may_be_permitted_later(series, error):
                    continue
                log.info("event dropped", reason=series.occurrence.reason, error=error)
                self._log.discard(series)
        if (now := self._clock()) - self._tidied_at >= TIDY_EVERY_S:
            self._log.tidy(now)
            self._tidied_at = now

    def _may_be_permitted_later(self, series: Series, error: KubeError) -> bool:
        refused = isinstance(error, Forbidden | Unauthorized | Unavailable)
        return refused and self._log.refused(series, self._clock())

    async def _write(self, series: Series) -> None:
        count = series.count
        if not series.written_count:
            await self._client.create(self._event(series))
        else:
            await self._write_count(series)
        self._log.written(series, count, self._clock())

    async def _write_count(self, series: Series) -> None:
        ref = Ref(EVENT, series.name, event_namespace(series.occurrence.regarding))
        try:
            await self._client.patch_merge(ref, {"series": _series(series)})
        except NotFound:
            # It was deleted, or has expired.
            await self._client.create(self._event(series))

    def _event(self, series: Series) -> Object:
        occurrence = series.occurrence
        about = occurrence.regarding
        event: Object = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"name": series.name, "namespace": event_namespace(about)},
            "regarding": _reference(about),
            "reason": occurrence.reason,
            "note": occurrence.note,
            "type": "Warning" if occurrence.warning else "Normal",
            "action": occurrence.action,
            "eventTime": micro_time(series.first),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
        }
        if series.count > 1:
            event["series"] = _series(series)
        return event


def event_namespace(about: Regarding) -> str:
    """The namespace of the event: the API server requires `default` for events about cluster-wide
    objects."""
    return about.namespace or "default"


def micro_time(at: datetime) -> str:
    """`2026-01-31T12:00:00.000000Z`: Kubernetes' MicroTime of a time in UTC."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _series(series: Series) -> Object:
    return {"count": max(2, series.count), "lastObservedTime": micro_time(series.last)}


def _reference(about: Regarding) -> Object:
    given = {
        "apiVersion": about.kind.api_version,
        "kind": about.kind.name,
        "name": about.name,
        "namespace": about.namespace,
        "uid": about.uid,
    }
    return {key: value for key, value in given.items() if value}
