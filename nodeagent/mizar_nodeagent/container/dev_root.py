"""Checks that cardAccess.devRoot is the folder of the device nodes itself: NVIDIA's plugin has a
setting for the folder above it instead."""

from __future__ import annotations

from mizar_nodeagent.config import CardAccess
from mizar_nodeagent.errors import ConfigRefused


def check_dev_root(access: CardAccess) -> None:
    """Raise ConfigRefused if the device nodes are in the dev folder of `dev_root`."""
    root = access.dev_root
    if (access.seen(root) / "dev" / "nvidiactl").exists():
        raise ConfigRefused(
            f"cardAccess.devRoot {root} must be the folder of the device nodes themselves, not the "
            f"one above it, as nvidiaDevRoot of NVIDIA's plugin: set it to {root / 'dev'}"
        )
