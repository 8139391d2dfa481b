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
            f"cardAccess.devRoot {root} must be the folder that has the device nodes in it; only "
            "nvidiaDevRoot of NVIDIA's device plugin is the folder above that one: set devRoot to "
            f"{root / 'dev'}"
        )
