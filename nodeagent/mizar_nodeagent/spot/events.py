"""What detectors tell of the owners of cards."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, order=True)
class PodIdentity:
    """A pod. `uid`: empty where only the kubelet has told of it."""

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
    """What an owner does."""

    ALIVE = "Alive"
    """It holds the devices now."""
    GONE = "Gone"
    """It does not hold them any more."""
    BUSY = "Busy"
    """It works on one of them, or is about to."""
    IDLE = "Idle"
    """It works on none of them."""


class Source(StrEnum):
    """Who has seen it. All must have seen an owner idle before its card is lent."""

    PODS = "Pods"
    """The pod's life: whether its containers start."""
    USAGE = "Usage"
    """The usage files of its containers with the shim."""
    PROCESSES = "Processes"
    """Its processes on the card, by NVML."""


@dataclass(frozen=True)
class OwnerEvent:
    """`target` does something on `devices`, cards by UUID: on all that it holds, since an owner
    that works on one of them is awake on all.

    `agrees`: it agreed to lend. `at`: monotonic seconds, for IDLE of when it began.
    """

    activity: Activity
    target: PodIdentity
    devices: frozenset[str]
    at: float
    source: Source | None = None
    agrees: bool = False
