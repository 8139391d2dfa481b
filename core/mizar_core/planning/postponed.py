"""Limits how many waiting share pods one plan considers, so that no namespace can make it take
arbitrarily long.

A plan considers at most JUDGED_MAX distinct needs of each namespace and resource: each may have to
be compared with every node. Needs that name a few nodes, and those of pods without constraints,
cost next to nothing and are always considered. If a namespace has more, a different pseudo-random
selection is considered every TURN, so that each of its needs is considered again and again,
whatever the other pods do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zlib import crc32

from mizar_core.planning.node_fit import NO_NEEDS, Needs
from mizar_core.planning.snapshot import ShareView

JUDGED_MAX = 64
"""The most distinct needs of one namespace and resource that a plan considers."""
TURN = timedelta(seconds=30)
"""How long the same selection of needs is considered."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def without_postponed(
    shares: Iterable[ShareView], now: datetime
) -> tuple[list[ShareView], list[ShareView]]:
    """The share pods that are considered now, and those that are left for a later turn."""
    found = list(shares)
    postponed = _postponed(found, (now - EPOCH) // TURN)
    later = [one for one in found if (one.namespace, one.needs) in postponed]
    if not later:
        return found, later
    return [one for one in found if (one.namespace, one.needs) not in postponed], later


def next_turn(now: datetime, turn: timedelta = TURN) -> datetime:
    """When the next turn of that length begins; by default, when the next selection is made."""
    return EPOCH + ((now - EPOCH) // turn + 1) * turn


def _postponed(shares: Iterable[ShareView], turn: int) -> set[tuple[str, Needs]]:
    needs = defaultdict[str, set[Needs]](set)
    for share in shares:
        if not share.needs.pins and share.needs != NO_NEEDS:
            needs[share.namespace].add(share.needs)
    return {
        (namespace, one)
        for namespace, some in needs.items()
        if len(some) > JUDGED_MAX
        for one in sorted(some, key=lambda one: _lot(one, turn))[JUDGED_MAX:]
    }


def _lot(needs: Needs, turn: int) -> tuple[int, str]:
    return crc32(f"{turn} {needs.text}".encode()), needs.text
