"""The command of docs/upgrade.md that removes Mizar's resources from nodes after an uninstall."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from mizar_core.names import SPOT_RESOURCE, resource_name, tenant_resource_name

PAGE = Path(__file__).parents[3] / "docs/upgrade.md"
KUBECTL = """#!/bin/sh
case "$1" in
get) cat nodes ;;
patch) echo "$2 $*" >>patches ;;
esac
"""


def _command() -> str:
    """The block of docs/upgrade.md that writes to the nodes' status."""
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = (one for one in blocks if "--subresource=status" in one)
    return str(found)


def _removed(folder: Path, resource: str) -> bool:
    """Whether the command takes a resource of 0 off a node."""
    (folder / "nodes").write_text(f"n1 {resource}\n")
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", _command()], cwd=folder, env=env, check=True, timeout=30)
    patches = folder / "patches"
    return patches.exists() and f'"{resource}":null' in patches.read_text()


@pytest.mark.parametrize(
    "resource",
    [
        tenant_resource_name("team-a", "mizar.share", 2),
        resource_name("mizar.share", 16),
        tenant_resource_name("team-a", "cards.example.com", 10),
        SPOT_RESOURCE,
    ],
)
def test_it_removes_the_resources_of_every_pool(tmp_path: Path, resource: str) -> None:
    """Whatever its resourcePrefix, which nobody may remember once the pools are gone."""
    assert _removed(tmp_path, resource)


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "hugepages-2Mi"],
)
def test_it_leaves_the_resources_of_others(tmp_path: Path, resource: str) -> None:
    assert not _removed(tmp_path, resource)
