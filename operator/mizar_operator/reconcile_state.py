"""The state that the operator keeps from plan to plan, in memory only: after a restart, some events
and calls are repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from mizar_core.planning.exclusion import Part, PartName
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.snapshot import THE_QUOTA_ITSELF, Attempt, Key, Refused
from mizar_operator.posted_events import PostedEvents

K = TypeVar("K")


@dataclass(frozen=True)
class Backoff:
    """One obstacle: until when it is not tried again (seconds of the clock), the delay in seconds,
    and the message about it."""

    until: float
    delay: float
    message: str


class Backoffs(Generic[K]):
    """Obstacles found by trying, each with an exponential backoff from `first` to `most` seconds,
    so that a lasting obstacle costs few calls and a passing one little time."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._entries: dict[K, Backoff] = {}

    def record(self, key: K, now: float, message: str = "", *, anew: bool = False) -> None:
        """Record that the obstacle was met at `now`. The delay doubles each time; it starts again
        if `anew` is set and the message has changed."""
        before = self._entries.get(key)
        if anew and before is not None and before.message != message:
            before = None
        delay = min(2 * before.delay, self._most) if before else self._first
        self._entries[key] = Backoff(now + delay, delay, message)

    def is_waiting(self, key: K, now: float) -> bool:
        """Whether it is too soon to try again."""
        entry = self._entries.get(key)
        return entry is not None and entry.until > now

    def active(self, now: float) -> Iterator[tuple[K, str]]:
        """The obstacles that are not to be tried again yet, each with its message."""
        return ((key, one.message) for key, one in self._entries.items() if one.until > now)

    def next(self, now: float) -> float | None:
        """Seconds until the first obstacle may be tried again; None if there is none."""
        left = [one.until - now for one in self._entries.values() if one.until > now]
        return min(left, default=None)

    def forget_after(self, seconds: float, now: float) -> None:
        """Forget the obstacles that were not met again for so many seconds after their delay."""
        self._entries = {k: e for k, e in self._entries.items() if e.until + seconds > now}

    def forget(self, keys: Collection[K]) -> None:
        """Forget these obstacles, since they are gone."""
        self._entries = {k: e for k, e in self._entries.items() if k not in keys}

    def forget_where(self, is_gone: Callable[[K], bool]) -> None:
        """Forget the obstacles for which this is true."""
        self._entries = {k: e for k, e in self._entries.items() if not is_gone(k)}

    def keep_only(self, keys: Collection[K]) -> None:
        """Forget all obstacles but these."""
        self._entries = {k: e for k, e in self._entries.items() if k in keys}


CONTESTED_FIRST_S = 1.0
"""Seconds until a shadow pod that turned out to be in use is tried again: long enough for its node
agent to have reported which container got the device."""
CONTESTED_MOST_S = 10.0
"""The most seconds between two tries to delete a shadow pod in use."""
REFUSED_FIRST_S = 2.0
"""Seconds until a shadow pod or the opening of a gate that the API server has refused for the first
time is tried again; each further refusal doubles them."""
REFUSED_MOST_S = 30.0
"""The most seconds until a shadow pod or the opening of a gate that the API server has refused is
tried again."""
TRIED_FIRST_S = 60.0
"""Seconds until the first attempt to replace a shadow pod that did not help is repeated; each
further attempt doubles them."""
TRIED_MOST_S = 3600.0
"""The most seconds until an attempt to replace a shadow pod is repeated."""
EXCLUDED_FOR_S = 300.0
"""Seconds for which an object that planning fails for stays excluded, until it is tried again."""
REFUSED_NODE_FOR_S = 600.0
"""Seconds for which a node that the scheduler refused a share pod counts as refused."""
NAME_TAKEN_FOR_S = 600.0
"""Seconds for which a name counts as taken: until the quota's next sequence number is past it."""
SILENT_NODE_FOR_S = 180.0
"""Seconds for which the node of a silent agent is avoided."""
NODE_GONE_AFTER_S = 30.0
"""Seconds that a Node must have been missing until it counts as gone. Pods run on while their Node
is deleted and registered again, as is done to change labels that only its kubelet may set.
Kubernetes deletes the pods of such a node no sooner than after 40 s (quarantineTime in its podgc
package), without saying why to anybody."""

Excluded = Mapping[PartName, tuple[Part, Exception]]
"""The parts of snapshots that plans leave out, each with the error that planning for it raises."""


@dataclass
class ReconcileState:
    """The state that is kept for one key of the queue.

    `posted_events`: the events that were posted. `contested`: UIDs of shadow pods that turned out
    to be in use when the API server was asked live. `refused`: (quota, devices) of shadow pods that
    the API server refused. `attempted`: attempts, with the UID of the pod that each was to help.
    `gone`: objects that were missing in a live read, and until when that counts (seconds of the
    clock). `taken`: whole cards that other pods had on a node, and until when that counts.
    `fitting`: nodes with cards of a resource that fit these needs, and until when that counts.
    `free_since`: since when 1, 2, … devices of a (resource, node) have been free. `unanswered`:
    (quota, devices, sequence) of shadow pods whose creation got no answer. `refused_nodes`: until
    when each node that the scheduler refused a share pod counts as refused, by (UID, resource).
    `names_taken`: until when the name of a shadow pod counts as taken by another client's object.
    `silent_nodes`: nodes whose agents were silent, when they last were, and until when that counts.
    `missing_nodes`: since when each node of a shadow pod has been missing (seconds of the clock).
    `gated_since`: since when the gates of share pods that may preempt have been closed, by UID.
    `unopenable`: UIDs of those whose gates the API server refused to open.
    `excluded`: objects that planning fails for.
    """

    posted_events: PostedEvents = field(default_factory=PostedEvents)
    contested: Backoffs[str] = field(
        default_factory=lambda: Backoffs(CONTESTED_FIRST_S, CONTESTED_MOST_S)
    )
    refused: Backoffs[tuple[Key, int]] = field(
        default_factory=lambda: Backoffs(REFUSED_FIRST_S, REFUSED_MOST_S)
    )
    attempted: Backoffs[str] = field(default_factory=lambda: Backoffs(TRIED_FIRST_S, TRIED_MOST_S))
    gone: dict[str, float] = field(default_factory=dict)
    taken: dict[str, tuple[float, Counter[str]]] = field(default_factory=dict)
    fitting: dict[tuple[Needs, str], tuple[float, frozenset[str]]] = field(default_factory=dict)
    free_since: dict[tuple[str, str], tuple[datetime, ...]] = field(default_factory=dict)
    unanswered: set[tuple[Key, int, int]] = field(default_factory=set)
    refused_nodes: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    names_taken: dict[Key, float] = field(default_factory=dict)
    silent_nodes: dict[str, tuple[datetime, float]] = field(default_factory=dict)
    missing_nodes: dict[str, float] = field(default_factory=dict)
    gated_since: dict[str, datetime] = field(default_factory=dict)
    unopenable: Backoffs[str] = field(
        default_factory=lambda: Backoffs(REFUSED_FIRST_S, REFUSED_MOST_S)
    )
    excluded: Excluded = field(default_factory=dict)
    excluded_until: float = 0.0
    statuses_late_since: float | None = None

    def note_status_writes(self, postponed: bool, now: float) -> None:
        """Note that statuses were written, or postponed because there was news."""
        if not postponed:
            self.statuses_late_since = None
        elif self.statuses_late_since is None:
            self.statuses_late_since = now

    def excluded_now(self, now: float) -> Excluded:
        """The objects that are excluded from the plan again, without trying them."""
        return self.excluded if now < self.excluded_until else {}

    def exclude(self, found: Excluded, now: float) -> None:
        """Note the objects that were excluded just now; a new one among them starts the time
        anew."""
        if found.keys() - self.excluded.keys() or now >= self.excluded_until:
            self.excluded_until = now + EXCLUDED_FOR_S
        self.excluded = found

    def note_free(self, free: Mapping[tuple[str, str], int], at: datetime) -> None:
        """Note how many devices of each (resource, node) are free now; those that are not named
        have none."""
        before, self.free_since = self.free_since, {}
        for key, count in free.items():
            known = before.get(key, ())[:count]
            self.free_since[key] = known + (at,) * (count - len(known))

    def note_gated(self, uids: Iterable[str], at: datetime) -> None:
        """Note the share pods whose gates are closed, and forget all others."""
        self.gated_since = {uid: self.gated_since.get(uid, at) for uid in uids}

    def note_attempts(self, attempts: Iterable[Attempt], now: float) -> None:
        """Record the attempts of a plan. If the last one was for another pod, it helped that pod,
        so the delay starts again."""
        for one in attempts:
            self.attempted.record(one.what, now, one.about, anew=True)

    def attempts(self, now: float, waiting: Collection[str]) -> frozenset[str]:
        """The attempts that are not to be repeated yet, since the pods that they were to help still
        wait. `waiting`: UIDs."""
        return frozenset(what for what, about in self.attempted.active(now) if about in waiting)

    def note_refused_nodes(
        self, found: Mapping[tuple[str, str], Collection[str]], now: float
    ) -> None:
        """Note the nodes that the scheduler refuses share pods now, by (UID, resource)."""
        until = now + REFUSED_NODE_FOR_S
        for share, nodes in found.items():
            self.refused_nodes.setdefault(share, {}).update(dict.fromkeys(nodes, until))

    def nodes_refused(self, now: float) -> Mapping[tuple[str, str], frozenset[str]]:
        """The nodes that the scheduler has recently refused share pods, by (UID, resource)."""
        return {
            share: frozenset(node for node, until in nodes.items() if until > now)
            for share, nodes in self.refused_nodes.items()
        }

    def note_names_taken(self, found: Iterable[Key], now: float) -> None:
        """Note the names of shadow pods that objects of other clients have."""
        self.names_taken.update(dict.fromkeys(found, now + NAME_TAKEN_FOR_S))

    def note_silent_nodes(self, found: Mapping[str, datetime], now: float) -> None:
        """Note the nodes whose agents are silent, and when they last were."""
        until = now + SILENT_NODE_FOR_S
        self.silent_nodes |= {node: (at, until) for node, at in found.items()}

    def note_heard_nodes(self, found: Iterable[str]) -> None:
        """Forget that the agents of these nodes were silent. The shadow pod by which they were
        heard may be gone by the next plan."""
        for node in found:
            self.silent_nodes.pop(node, None)

    def nodes_silent(self, now: float) -> Mapping[str, datetime]:
        """The nodes whose agents were silent recently, and when they last were."""
        return {node: at for node, (at, until) in self.silent_nodes.items() if until > now}

    def note_missing_nodes(self, names: Iterable[str], now: float) -> None:
        """Note the nodes that are missing now, and forget all others."""
        self.missing_nodes = {one: self.missing_nodes.get(one, now) for one in names}

    def nodes_expected_back(self, now: float) -> Iterator[tuple[str, float]]:
        """The missing nodes that do not count as gone yet, each with the seconds that are left."""
        for name, since in self.missing_nodes.items():
            if (left := since + NODE_GONE_AFTER_S - now) > 0:
                yield name, left

    def refusals(self, now: float) -> tuple[Refused, ...]:
        """The shadow pods that the API server is not to be asked for again yet."""
        return tuple(Refused(*key, message) for key, message in self.refused.active(now))

    def next_try(self, now: float) -> float | None:
        """Seconds until something may be tried again, or until a node whose agent was silent is
        avoided no longer; None if nothing waits for that."""
        waits = (self.contested, self.refused, self.attempted, self.unopenable)
        times = [one.next(now) for one in waits]
        times += [left for _, left in self.nodes_expected_back(now)]
        times += [until - now for _, until in self.silent_nodes.values() if until > now]
        return min((one for one in times if one is not None), default=None)

    def forget_old(self, now: float, uids: set[str], quotas: set[Key]) -> None:
        """Forget entries that have expired, and those about objects that are not among these UIDs
        and quotas: what comes later under a quota's name may be in a new namespace."""
        self.contested.keep_only(uids)
        self.unopenable.keep_only(uids)
        self.refused.forget_after(REFUSED_MOST_S, now)
        self.refused.forget_where(lambda one: one[1] != THE_QUOTA_ITSELF and one[0] not in quotas)
        self.attempted.forget_after(TRIED_MOST_S, now)
        self.refused_nodes = {
            share: nodes
            for share, nodes in self.refused_nodes.items()
            if share[0] in uids and max(nodes.values()) > now
        }
        self.silent_nodes = {
            node: (at, until) for node, (at, until) in self.silent_nodes.items() if until > now
        }
        self.gone = {key: until for key, until in self.gone.items() if until > now}
        self.names_taken = {key: until for key, until in self.names_taken.items() if until > now}
