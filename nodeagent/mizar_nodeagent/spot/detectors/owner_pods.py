"""Detects from the kubelet's claims which pods own each card, and whether they agree to lend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Key
from mizar_nodeagent.spot.owner_events import Activity, OwnerEvent, PodIdentity
from mizar_nodeagent.spot.owners import CardOwner, owners

Agrees = Callable[[CardOwner, str], bool]
"""Returns whether the owner agrees that the card with this UUID is lent."""


class OwnerPodDetector:
    """Reports owners that came, went or changed their consent to lend since the last look.
    `owners`: the owners that the last look found."""

    def __init__(self) -> None:
        self.owners: tuple[CardOwner, ...] = ()
        self._known: dict[tuple[str, PodIdentity], bool] = {}

    def look(
        self, snapshot: NodeSnapshot, carvings: Mapping[Key, Carving], agrees: Agrees
    ) -> Iterable[OwnerEvent]:
        """Yield ALIVE for each card and owner that is new or has changed its consent, and GONE for
        each that is there no longer."""
        self.owners = owners(snapshot, carvings)
        found = {(uuid, one.pod): agrees(one, uuid) for one in self.owners for uuid in one.cards}
        gone = self._known.keys() - found.keys()
        new = {key: agreed for key, agreed in found.items() if self._known.get(key) != agreed}
        self._known = found
        at = snapshot.now
        yield from (_event(Activity.GONE, key, at) for key in sorted(gone))
        yield from (_event(Activity.ALIVE, key, at, new[key]) for key in sorted(new))


def _event(
    activity: Activity, key: tuple[str, PodIdentity], at: float, agrees: bool = False
) -> OwnerEvent:
    uuid, pod = key
    return OwnerEvent(activity, pod, frozenset({uuid}), at, agrees=agrees)
