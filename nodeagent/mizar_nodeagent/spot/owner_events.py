"""Events that detectors report about the owners of cards."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, order=True)
class PodIdentity:
    """Identifies a pod. `uid` is empty if the pod is known from the kubelet only."""

    namespace: str
    name: str
    uid: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Activity(StrEnum):
    """The kind of an event about an owner."""

    ALIVE = "Alive"
    """The owner holds the devices now."""
    GONE = "Gone"
    """The owner no longer holds the devices."""
    BUSY = "Busy"
    """The owner works on one of the devices, or is about to."""
    IDLE = "Idle"
    """The owner works on none of the devices."""


class Source(StrEnum):
    """The source of a BUSY or IDLE event. A card is lent only after every source has reported each
    of its owners idle."""

    PODS = "Pods"
    """Starts of the owner's containers, from the pod's status."""
    USAGE = "Usage"
    """The usage files of the owner's containers that run with the shim."""
    PROCESSES = "Processes"
    """The owner's processes on the card, as NVML lists them."""


@dataclass(frozen=True)
class OwnerEvent:
    """An event about the owner `target`.

    `devices`: UUIDs of the cards concerned. For BUSY and IDLE these are all cards that the owner
    holds, since work on one of them counts for all. `at`: monotonic seconds; for IDLE, when the
    owner last worked. `source`: set for BUSY and IDLE. `agrees`: for ALIVE, whether the owner
    agreed to lend the devices.
    """

    activity: Activity
    target: PodIdentity
    devices: frozenset[str]
    at: float
    source: Source | None = None
    agrees: bool = False
