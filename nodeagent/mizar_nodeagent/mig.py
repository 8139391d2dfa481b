"""MIG: a card that is divided into instances, each of which is carved like a card of its size.

NVML reports less of an instance (a MIG device) than of a card: neither temperature nor utilisation,
nor a device node. What it does not report is read from its card. Its UUID, `MIG-...`, lasts as long
as the instance; an instance that is made anew is another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pynvml

from mizar_nodeagent.errors import CardsUnknown

PREFIX: Final = "MIG-"
"""Prefix of an instance's UUID."""
UUIDS: Final = ("GPU-", PREFIX)
"""How the UUIDs of cards and of instances begin."""
NOBODYS: Final = 0xFFFFFFFF
"""The instance ID of an event that concerns a whole card."""


@dataclass(frozen=True)
class Instance:
    """The place of a MIG device: its card's UUID, and the IDs of its GPU and compute instance."""

    card: str
    gpu: int
    compute: int

    def has(self, gpu: int, compute: int) -> bool:
        """Whether an event with these IDs concerns it; that of a GPU instance may name no compute
        instance."""
        return gpu == self.gpu and compute in (self.compute, NOBODYS)


def handles(card: Any) -> Iterator[Any]:
    """NVML's handles of a card's instances; none where it is not divided. Raises NVMLError where it
    is not known of one whether it is there."""
    if not is_divided(card):
        return
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        with suppress(pynvml.NVMLError_NotFound):
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)


def is_divided(card: Any) -> bool:
    """Whether MIG is on, so that only instances of the card can be used. Raises NVMLError where
    the card is lost."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(card)[0])
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False  # a card, or a driver, without MIG


def place_of(handle: Any, card_uuid: str) -> Instance:
    """Where an instance is."""
    return Instance(
        card_uuid,
        int(pynvml.nvmlDeviceGetGpuInstanceId(handle)),
        int(pynvml.nvmlDeviceGetComputeInstanceId(handle)),
    )


def card_of(handle: Any) -> Any:
    """The handle of an instance's card; a card's own is left as it is."""
    try:
        if pynvml.nvmlDeviceIsMigDeviceHandle(handle):
            return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except pynvml.NVMLError_FunctionNotFound:
        pass  # a driver without MIG
    return handle


def capability_nodes(instance: Instance, minor: int, minors: Path) -> tuple[str, str]:
    """Names, below /dev, of the two device nodes that give the right to an instance. `minor`: its
    card's; `minors`: the driver's list of their numbers. Raises CardsUnknown."""
    gpu = f"gpu{minor}/gi{instance.gpu}"
    try:
        listed = dict(line.split() for line in minors.read_text().splitlines() if line)
        numbers = [listed[f"{gpu}/access"], listed[f"{gpu}/ci{instance.compute}/access"]]
    except (OSError, ValueError, LookupError) as error:
        raise CardsUnknown(
            f"the device nodes of the MIG device {gpu}/ci{instance.compute} cannot be told from "
            f"{minors} ({error!r}): see that cardAccess.migMinors names the driver's list"
        ) from error
    first, second = (f"nvidia-caps/nvidia-cap{number}" for number in numbers)
    return first, second
