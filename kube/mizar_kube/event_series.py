"""Which events are worth writing: repeats are counted, and no object may fill the event log."""

from dataclasses import dataclass, field
from datetime import datetime

from mizar_kube.kinds import Kind, Object, kind_of
from mizar_kube.rate import Rate

# A repeat later than this starts a new event, which also shows up anew for people who watch.
SERIES_WINDOW_S = 600.0
# Counts reach the API server no more often than this.
UPDATE_EVERY_S = 30.0
# New events per object: this many at once, then one each REFILL_S.
BURST = 10
REFILL_S = 60.0


@dataclass(frozen=True)
class Regarding:
    """The object that an event is about."""

    kind: Kind
    name: str
    namespace: str = ""
    uid: str = ""


@dataclass(frozen=True)
class Happening:
    """What happened to an object: equal happenings are one event that counts."""

    regarding: Regarding
    reason: str
    note: str
    warning: bool = False
    action: str = ""


@dataclass
class Series:
    """One event in the log and how often it has happened; times are seconds of the clock."""

    happening: Happening
    name: str
    first: datetime
    last: datetime
    seen_at: float
    count: int = 1
    written_count: int = 0
    written_at: float = 0.0

    @property
    def wants_update(self) -> bool:
        """Whether the log is behind the count."""
        return self.count > self.written_count


@dataclass
class EventLog:
    """What has happened lately, without I/O. `dropped` counts what nobody will read."""

    dropped: int = 0
    _series: dict[Happening, Series] = field(default_factory=dict)
    _rates: dict[Regarding, Rate] = field(default_factory=dict)

    def record(self, happening: Happening, name: str, now: float, at: datetime) -> None:
        """It happened: `now` in seconds of a monotonic clock, `at` in UTC; `name` is the event's
        if it is a new one."""
        known = self._series.get(happening)
        if known is not None and now - known.seen_at <= SERIES_WINDOW_S:
            known.count, known.last, known.seen_at = known.count + 1, at, now
        elif self._rates.setdefault(happening.regarding, Rate(BURST, REFILL_S, now)).take(now):
            self._series[happening] = Series(happening, name, at, at, now)
        else:
            self.dropped += 1

    def due(self, now: float) -> list[Series]:
        """The events to write now: all new ones, and counts that have not been written lately."""
        return [
            one
            for one in self._series.values()
            if one.wants_update
            and (not one.written_count or now - one.written_at >= UPDATE_EVERY_S)
        ]

    def written(self, series: Series, count: int, now: float) -> None:
        """The log has this count now."""
        series.written_count, series.written_at = count, now

    def discard(self, series: Series) -> None:
        """Forget an event that cannot be written."""
        self._series.pop(series.happening, None)
        self.dropped += 1

    def tidy(self, now: float) -> None:
        """Forget what is too old to be repeated; tells memory, never the log."""
        self._series = {
            key: one
            for key, one in self._series.items()
            if one.wants_update or now - one.seen_at <= SERIES_WINDOW_S
        }
        self._rates = {key: one for key, one in self._rates.items() if not one.is_full(now)}

    def __len__(self) -> int:
        return len(self._series)


def regarding(obj: Object) -> Regarding:
    """The object itself, as events name it. It must carry apiVersion, kind and metadata."""
    meta = obj["metadata"]
    return Regarding(
        kind_of(obj), meta["name"], meta.get("namespace") or "", str(meta.get("uid") or "")
    )
