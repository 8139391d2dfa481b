"""MIG: finds the instances (MIG devices) into which a card is divided. Each is carved like a card
of its size.

NVML reports less about an instance than about a card: neither temperature nor utilisation, nor a
device node. These are read from the instance's card. An instance's UUID, `MIG-...`, lasts as long
as the instance; one that is created anew has another.
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
"""Prefixes of the UUIDs of cards and of instances."""
NOBODYS: Final = 0xFFFFFFFF
"""The instance ID in an event that concerns no particular instance, as one of a whole card."""


@dataclass(frozen=True)
class Instance:
    """The place of a MIG device: its card's UUID, and the IDs of its GPU and compute instance."""

    card: str
    gpu: int
    compute: int

    def has(self, gpu: int, compute: int) -> bool:
        """Whether an event with these IDs concerns this instance. An event of a GPU instance may
        name no compute instance."""
        return gpu == self.gpu and compute in (self.compute, NOBODYS)


def handles(card: Any) -> Iterator[Any]:
    """NVML's handles of a card's instances; none if it is not divided. Raises NVMLError if NVML
    does not say whether an instance exists."""
    if not is_divided(card):
        return
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        with suppress(pynvml.NVMLError_NotFound):
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)


def is_divided(card: Any) -> bool:
    """Whether MIG is on, so that only instances of the card can be used. Raises NVMLError if the
    card is lost."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(card)[0])
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False  # a card, or a driver, without MIG


def place_of(handle: Any, card_uuid: str) -> Instance:
    """The place of an instance, given its handle and its card's UUID."""
    return Instance(
        card_uuid,
        int(pynvml.nvmlDeviceGetGpuInstanceId(handle)),
        int(pynvml.nvmlDeviceGetComputeInstanceId(handle)),
    )


def card_of(handle: Any) -> Any:
    """The handle of an instance's card; a card's own handle is returned as it is."""
    try:
        if pynvml.nvmlDeviceIsMigDeviceHandle(handle):
            return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except pynvml.NVMLError_FunctionNotFound:
        pass  # a driver without MIG
    return handle


def capability_nodes(instance: Instance, minor: int, minors: Path) -> tuple[str, str]:
    """Names, below /dev, of the two device nodes that give access to an instance. `minor`: minor
    number of its card. `minors`: file in which the driver lists their minor numbers. Raises
    CardsUnknown if they are not in it."""
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
