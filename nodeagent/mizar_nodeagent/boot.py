"""Which boot of the node this is."""

from __future__ import annotations

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID) -> str:
    """The kernel's random ID of this boot, the same in all containers; empty where there is
    none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
