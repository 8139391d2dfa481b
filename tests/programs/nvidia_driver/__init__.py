"""NVIDIA's own driver libraries, of several versions, on a machine without a card.

Debian distributes them. Without a card cuInit fails, but a library still says which functions it
exports and which of them cuGetProcAddress hands out, and nvidia-smi runs on simulated cards."""

from nvidia_driver.debian import RELEASES, Driver, DriverError, Release, get
from nvidia_driver.facts import FACTS, Facts, read

__all__ = [
    "FACTS",
    "RELEASES",
    "Driver",
    "DriverError",
    "Facts",
    "Release",
    "base_of",
    "get",
    "read",
]
