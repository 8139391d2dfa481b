"""Looks up and checks the device nodes of cards, /dev/nvidia{minor}, whose numbers change.

The driver gives a card the lowest number that is free, so that numbers move when a card drops out
and comes back. So they are looked up by UUID whenever they are used, and never cached. The numbers
that a container got are recorded in its slot and compared before each of its starts: the kubelet
restarts a container with the device nodes of its first start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from mizar_core.names import EventReason
from mizar_nodeagent.errors import CardsUnknown, NotYet, StartRefused

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


async def check_device_nodes(ask: Minors, given: Mapping[str, int]) -> None:
    """Check that the device nodes which a container got are still its cards'. `given`: their minor
    numbers, by the card's UUID. Raises StartRefused if they are not, NotYet while NVML does not
    know."""
    try:
        now = await minors_of(ask, given) if given else {}
    except CardsUnknown as error:
        raise NotYet(str(error)) from error
    for uuid, minor in sorted(given.items()):
        if now[uuid] != minor:
            raise StartRefused(
                f"the driver has renumbered its cards: /dev/nvidia{minor}, which this pod was "
                f"given for card {uuid}, is another card's now (its own is /dev/nvidia{now[uuid]}):"
                " delete the pod, and a new one gets the right one",
                EventReason.CARD_RENUMBERED,
            )
