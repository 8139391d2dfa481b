"""Computes the environment variables that tell a container its share, if its pool sets them.

They are for the application's own use: limits are enforced by a file that no tenant can write to,
while a tenant can set these variables to anything. They keep the values of the time at which the
devices were allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mizar_core.carve import CardLimit
from mizar_core.models import ShareVariables
from mizar_core.quantities import WHOLE_CARD
from mizar_nodeagent.container.limits import ContainerLimits, DeviceGroup, container_limits
from mizar_nodeagent.errors import StartRefused

HAMI_MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT_{}"
"""HAMi's variable for the memory limit on the card with this index, in MiB, such as 8192m."""
HAMI_CORES: Final = "CUDA_DEVICE_SM_LIMIT"
"""HAMi's variable for the smallest share of a card's time, in percent."""
MEMORY_FRACTION: Final = "MIZAR_MEMORY_FRACTION"
"""Variable for the smallest share of a card's memory, such as 0.2500."""
COMPUTE_FRACTION: Final = "MIZAR_COMPUTE_FRACTION"
"""Variable for the smallest share of a card's time, such as 0.2500."""


def share_environment(groups: Sequence[DeviceGroup], uuids: Sequence[str]) -> dict[str, str]:
    """The variables of a container with these devices; empty if no pool sets any. `uuids`: its
    cards, in the order in which it gets them."""
    wanted = {one for carving, _ in groups for one in carving.carve.variables}
    if not wanted:
        return {}
    try:
        limits = container_limits(groups, 0)
    except StartRefused:
        return {}  # PreStartContainer reports this, and is called again
    return dict(_variables(wanted, limits, uuids))


def _variables(
    wanted: Iterable[ShareVariables], limits: ContainerLimits, uuids: Sequence[str]
) -> Iterable[tuple[str, str]]:
    cards = {one.uuid: one for one in limits.cards}
    ordered = [cards[uuid] for uuid in uuids]
    if "HAMi" in wanted:
        for at, card in enumerate(ordered):
            yield HAMI_MEMORY.format(at), f"{card.memory_bytes >> 20}m"
        if any(card.compute_mode != "None" for card in ordered):
            yield HAMI_CORES, str(max(1, min(_cores(ordered)) * 100 // WHOLE_CARD))
    if "Fractions" in wanted:
        memory = min(card.memory_bytes / limits.physical[card.uuid] for card in ordered)
        yield MEMORY_FRACTION, _fraction(memory)
        yield COMPUTE_FRACTION, _fraction(min(_cores(ordered)) / WHOLE_CARD)


def _cores(cards: Iterable[CardLimit]) -> list[int]:
    return [card.core_share for card in cards]


def _fraction(value: float) -> str:
    """The value with four decimals, rounded down so that parts never add up to more than the
    whole."""
    return f"{int(value * 10_000) / 10_000:.4f}"
