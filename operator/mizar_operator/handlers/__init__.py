"""Kopf's handlers: one module for each of Mizar's own kinds.

Each has two parts. The handler (`@kopf.on.event`) is the only watch of its kind: it puts each event
into the store that plans are made from. `follow` decides which plans a change of the kind asks for,
whether it came by the handler, by a list, or by the answer to a write of the operator's. Plans are
made for a whole pool, since shadow pods compete for its cards: see `mizar_core.planning`.

`on.create`, `on.delete`, timers and daemons would keep annotations and a finalizer on every object:
see docs/adr/0014.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import kopf

from mizar_operator.caches import Caches

Add = Callable[[str], None]
"""Requests a plan under a key: see `Caches.key_of_pool`."""


@dataclass(frozen=True)
class Memo:
    """The object that Kopf passes to each handler as `memo`."""

    caches: Caches
    login: Callable[[], kopf.AiohttpSession]
    ended: Callable[[], None]

    def __copy__(self) -> Memo:
        """Kopf copies the memo for each object; all objects share this one."""
        return self
