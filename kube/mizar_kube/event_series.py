"""Decides which events are written: repeats only raise a count, and new events of each object are
rate-limited."""

from dataclasses import dataclass, field
from datetime import datetime

from mizar_kube.kinds import Kind, Object, kind_of
from mizar_kube.token_bucket import TokenBucket

SERIES_WINDOW_S = 600.0
"""Seconds after which a repeat starts a new event, which `kubectl get events --watch` shows
again."""
UPDATE_EVERY_S = 30.0
"""Seconds between two writes of an event's count."""
BURST = 10
"""How many new events one object may have at once."""
REFILL_S = 60.0
"""Seconds after which one more new event of an object is permitted."""
REFUSED_AGAIN_S = 5.0
"""Seconds between two tries to write an event that the API server forbids."""
REFUSED_S = 60.0
"""Seconds for which an event that the API server forbids is tried again: an API server that has
just started forbids everything until it has read all roles."""


@dataclass(frozen=True)
class Regarding:
    """The object that an event is about."""

    kind: Kind
    name: str
    namespace: str = ""
    uid: str = ""


@dataclass(frozen=True)
class Occurrence:
    """Something that happened to an object. Equal occurrences are one event with a count."""

    regarding: Regarding
    reason: str
    note: str
    warning: bool = False
    action: str = ""


@dataclass
class Series:
    """One event and how often it occurred. `seen_at`, `written_at`, `refused_at` (for the first
    time), `retry_at`: monotonic seconds."""

    occurrence: Occurrence
    name: str
    first: datetime
    last: datetime
    seen_at: float
    count: int = 1
    written_count: int = 0
    written_at: float = 0.0
    refused_at: float | None = None
    retry_at: float = 0.0

    @property
    def wants_update(self) -> bool:
        """Whether the API server does not have the count yet."""
        return self.count > self.written_count


@dataclass
class EventLog:
    """The recent events, without I/O."""

    _series: dict[Occurrence, Series] = field(default_factory=dict)
    _buckets: dict[Regarding, TokenBucket] = field(default_factory=dict)

    def record(self, occurrence: Occurrence, name: str, now: float, at: datetime) -> None:
        """Count the occurrence. `now`: monotonic seconds; `at`: UTC; `name`: of the event if it is
        a new one."""
        known = self._series.get(occurrence)
        if known is not None and now - known.seen_at <= SERIES_WINDOW_S:
            known.count, known.last, known.seen_at = known.count + 1, at, now
        elif self._buckets.setdefault(occurrence.regarding, TokenBucket(BURST, REFILL_S, now)).take(
            now
        ):
            self._series[occurrence] = Series(occurrence, name, at, at, now)

    def due(self, now: float) -> list[Series]:
        """The events to write now: all new ones, and counts that have not been written lately."""
        return [
            one
            for one in self._series.values()
            if one.wants_update
            and now >= one.retry_at
            and (not one.written_count or now - one.written_at >= UPDATE_EVERY_S)
        ]

    def written(self, series: Series, count: int, now: float) -> None:
        """Note that the API server has this count now."""
        series.written_count, series.written_at, series.refused_at = count, now, None

    def refused(self, series: Series, now: float) -> bool:
        """Note that the API server forbids writing the event. Returns whether it may be tried
        again."""
        if series.refused_at is None:
            series.refused_at = now
        series.retry_at = now + REFUSED_AGAIN_S
        return now - series.refused_at < REFUSED_S

    def discard(self, series: Series) -> None:
        """Forget an event that cannot be written."""
        self._series.pop(series.occurrence, None)

    def tidy(self, now: float) -> None:
        """Forget events that are too old for repeats; it frees memory and writes nothing."""
        self._series = {
            key: one
            for key, one in self._series.items()
            if one.wants_update or now - one.seen_at <= SERIES_WINDOW_S
        }
        self._buckets = {key: one for key, one in self._buckets.items() if not one.is_full(now)}

    def __len__(self) -> int:
        return len(self._series)


def regarding(obj: Object) -> Regarding:
    """The reference by which events name the object, which must have apiVersion, kind and
    metadata."""
    meta = obj["metadata"]
    return Regarding(
        kind_of(obj), meta["name"], meta.get("namespace") or "", str(meta.get("uid") or "")
    )
