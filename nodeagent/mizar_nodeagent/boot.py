"""Reads the ID of the node's present boot."""

from __future__ import annotations

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID) -> str:
    """The kernel's random ID of this boot, the same in all containers; empty if it cannot be
    read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
