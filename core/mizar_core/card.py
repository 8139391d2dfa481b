"""A physical card, as far as limits depend on it. Without pydantic, so that a process that only
asks NVML about cards starts fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """A physical card and the bytes of memory that it has."""

    uuid: str
    memory_bytes: int
