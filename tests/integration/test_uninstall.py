"""The commands that docs/upgrade.md has an administrator run on nodes after an uninstall."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cluster import Cluster
from support.kube import Kube, Object

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PAGE = Path(__file__).resolve().parents[2] / "docs/upgrade.md"
LEFT = ("team-a.mizar.share/gpu.2", "mizar.share/gpu.4", "team-b.example.com/gpu.16")
"""Resources of pools, of which one has a prefix of its own."""
OTHERS = {"example.com/gpu": "0", "team-c.mizar.share/gpu.2": "3"}
"""Resources of another plugin, and of Mizar, which serves them."""


def command() -> str:
    """The block of docs/upgrade.md that changes the status of nodes."""
    blocks = PAGE.read_text().split("\n```")
    (found,) = [one for one in blocks if "--subresource=status" in one and "\n\n" not in one]
    return found


def status(kube: Kube, node: str) -> Object:
    found = kube.get("node", node)
    assert found is not None
    return dict(found["status"])


def test_former_resources_go_from_the_nodes_and_no_others(cluster: Cluster) -> None:
    kube, node = Kube(cluster), cluster.nodes[0].name
    before = status(kube, node)
    counts = {**dict.fromkeys(LEFT, "0"), **OTHERS}
    patch = ("patch", "node", node, "--subresource=status", "--type=merge")
    added = {"status": {"capacity": counts, "allocatable": counts}}
    kube.run(*patch, f"--patch={json.dumps(added)}")
    path = f"{cluster.tool('kubectl').parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command()],
        env={**cluster.environment(), "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    after = status(kube, node)
    none = {"status": dict.fromkeys(("capacity", "allocatable"), dict.fromkeys(counts))}
    kube.run(*patch, f"--patch={json.dumps(none)}")
    assert done.returncode == 0, done.stderr
    for field in ("capacity", "allocatable"):
        assert {name: after[field].get(name) for name in counts} == {
            **dict.fromkeys(LEFT),
            **OTHERS,
        }
        # Tests before this one may have left some of Mizar's resources on the node.
        others = {name for name in before[field] if "mizar.share/gpu" not in name}
        assert others <= after[field].keys()
