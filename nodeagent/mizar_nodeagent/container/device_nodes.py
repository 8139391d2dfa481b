"""Looks up the device nodes of cards, /dev/nvidia{minor}, whose numbers change.

The driver gives a card the lowest number that is free, so that numbers move when a card drops out
and comes back. They are therefore looked up by UUID whenever they are used, never cached. The
numbers that a container got are recorded in its slot, and prestart_checks.py compares them before
each of its starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from mizar_nodeagent.errors import CardsUnknown

Minors = Callable[[Collection[str]], Awaitable[Mapping[str, int]]]
"""Returns the minor numbers of cards' device nodes by UUID: `minors` of a CardSource."""


async def minors_of(ask: Minors, uuids: Collection[str]) -> dict[str, int]:
    """The minor numbers of all of these cards now, by UUID. Raises CardsUnknown."""
    found = await ask(uuids)
    if missing := sorted(set(uuids) - found.keys()):
        raise CardsUnknown(
            f"NVML does not know card {missing[0]} now, so its device node cannot be told from "
            "another card's: look at the card with nvidia-smi -L on the node"
        )
    return {uuid: found[uuid] for uuid in uuids}
