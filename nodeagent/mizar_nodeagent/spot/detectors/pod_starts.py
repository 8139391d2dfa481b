"""Detects starts of owners' containers: an owner whose container starts or restarts is about to
work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mizar_nodeagent.pods import Key, Pod
from mizar_nodeagent.spot.owner_events import Activity, OwnerEvent, Source
from mizar_nodeagent.spot.owners import CardOwner


class PodStartDetector:
    """Reports owners' containers that started between two looks. Containers that the first look
    finds may have run for long, so their owners count as idle."""

    def __init__(self) -> None:
        self._known: dict[str, frozenset[str]] | None = None

    def look(
        self, found: Iterable[CardOwner], pods: Mapping[Key, Pod], now: float
    ) -> Iterable[OwnerEvent]:
        """Yield BUSY and then IDLE for each owner that is new or has a new container. The first
        look yields only IDLE, for each owner. `now`: monotonic seconds."""
        before, self._known = self._known, {}
        for owner in found:
            pod = pods.get(owner.pod.key)
            containers = frozenset(one for one, _ in pod.container_ids) if pod else frozenset()
            known = None if before is None else before.get(owner.pod.uid)
            self._known[owner.pod.uid] = containers | (known or frozenset())
            if before is not None and (known is None or not containers <= known):
                yield _event(Activity.BUSY, owner, now)
                yield _event(Activity.IDLE, owner, now)
            elif known is None:
                yield _event(Activity.IDLE, owner, now)


def _event(activity: Activity, owner: CardOwner, at: float) -> OwnerEvent:
    return OwnerEvent(activity, owner.pod, owner.cards, at, Source.PODS)
