"""The nodes to which volumes restrict a pod: read from the API server for waiting share pods, and
cached, so that the operator need not watch claims and volumes, of which there may be very many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from mizar_core.planning.node_fit import Term, combined_terms
from mizar_core.planning.snapshot import Key
from mizar_kube.client import KubeClient
from mizar_kube.errors import Forbidden, KubeError
from mizar_kube.kinds import PERSISTENT_VOLUME, VOLUME_CLAIM, Object, Ref
from mizar_kube.logs import get_logger
from mizar_operator.live_objects import find
from mizar_operator.node_needs import CONSTRAINTS_MAX, selector_terms

log = get_logger(__name__)

BOUND_BELIEVED_S = 30.0
"""Seconds for which the volume of a bound claim is cached. A bound claim keeps its volume, and a
volume its nodes, but either may be deleted and created again under the same name."""
UNBOUND_BELIEVED_S = 5.0
"""Seconds for which it is cached that a claim is not bound: few, since it may be bound at any time.
Also the seconds until a claim is read again whose read failed."""
UNREAD_BELIEVED_S = 60.0
"""Seconds until a claim is read again whose read was forbidden: many, since the operator may lack
the permission for good."""

READS_AT_ONCE = 16
"""Maximum number of claims that are read concurrently."""
READS_MAX = 64
"""The most claims that are read for one plan, so that other pods do not wait for it too long. The
rest are read for later plans; until then, earlier results are used."""

Terms = tuple[Term, ...]
"""A volume's node affinity: a node must satisfy one of the terms; empty for any node."""


class VolumeNodes:
    """A cache of the nodes of volumes, by claim. `clock` returns monotonic seconds."""

    def __init__(self, client: KubeClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._found: dict[Key, tuple[float, Terms]] = {}
        self._limit = asyncio.Semaphore(READS_AT_ONCE)

    async def of(self, claims: Collection[Key]) -> dict[Key, Terms]:
        """The node affinity of the volumes of these claims, each given as (namespace, name). Claims
        are left out that are not bound, whose volume has no affinity, or that could never be read,
        since planning has to continue without them; for those that cannot be read now, earlier
        results are used."""
        self._found = {key: one for key, one in self._found.items() if key in claims}
        due = [key for key in claims if self._until(key) <= self._clock()]
        first = sorted(due, key=lambda key: (self._until(key), key))[:READS_MAX]
        await asyncio.gather(*(self._read(key) for key in first))
        return {key: terms for key, (_, terms) in self._found.items() if terms}

    def _until(self, claim: Key) -> float:
        return self._found[claim][0] if claim in self._found else 0.0

    async def _read(self, claim: Key) -> None:
        try:
            async with self._limit:
                volume = await self._volume(claim)
        except KubeError as error:
            log.info("the volume could not be read", namespace=claim[0], name=claim[1], error=error)
            # The last result is more likely right than that the pod may run anywhere.
            _, known = self._found.get(claim, (0.0, ()))
            refused = isinstance(error, Forbidden)
            believed_s = UNREAD_BELIEVED_S if refused else UNBOUND_BELIEVED_S
            self._found[claim] = self._clock() + believed_s, known
            return
        believed_s = UNBOUND_BELIEVED_S if volume is None else BOUND_BELIEVED_S
        self._found[claim] = self._clock() + believed_s, _terms(volume)

    async def _volume(self, claim: Key) -> Object | None:
        """The volume that a claim is bound to; None if it is bound to none."""
        found = await find(self._client, Ref(VOLUME_CLAIM, claim[1], claim[0]))
        name = ((found or {}).get("spec") or {}).get("volumeName")
        return await find(self._client, Ref(PERSISTENT_VOLUME, name)) if name else None


def _terms(volume: Object | None) -> Terms:
    affinity = ((volume or {}).get("spec") or {}).get("nodeAffinity") or {}
    return selector_terms(affinity.get("required") or {})


def together(claims: Collection[Key], known: Mapping[Key, Terms]) -> Terms:
    """The node affinity of the volumes of all these claims together. The terms of each multiply
    those of the others; if there are too many to evaluate, no constraint is returned, and the
    planner learns from the scheduler which nodes it refuses."""
    found: Terms = ()
    for claim in claims:
        found = combined_terms(found, known.get(claim, ()))
        if len(found) > CONSTRAINTS_MAX:
            return ()
    return found
