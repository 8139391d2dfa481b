"""Kopf's handlers: one module for each of Mizar's own kinds.

Each has two parts. The handler (`@kopf.on.event`) is the only watch of its kind: it puts what it is
told into the store that plans are made from. `follow` says what follows from a change of the kind,
whoever told of it: the handler, a list, or the answer to a write of our own. What follows is
always a plan for a pool, since cards are a matter of the whole pool: see `mizar_core.planning`.

`on.create`, `on.delete`, timers and daemons would keep annotations and a finalizer on every object:
see docs/adr/0014.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import kopf

from mizar_operator.caches import Caches

Add = Callable[[str], None]
"""Asks for a plan under a key: see `Caches.key_of_pool`."""


@dataclass(frozen=True)
class Memo:
    """What Kopf hands to each handler as `memo`."""

    caches: Caches
    login: Callable[[], kopf.AiohttpSession]
    ended: Callable[[], None]

    def __copy__(self) -> Memo:
        """Kopf copies the memo for each object; all objects share this one."""
        return self
