"""A failed test's report shows what Mizar's containers logged while it ran."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from cluster.cluster import Cluster, Node
from cluster.layout import Layout
from cluster.local_cluster import LocalCluster
from cluster.spec import ClusterSpec
from e2e import component_logs

DAY = "2026-01-01T00:00"
BEGAN = 1767225610.0
"""Ten seconds after the beginning of DAY."""


def entry(second: int, event: str, **keys: Any) -> str:
    line = {"timestamp": f"{DAY}:{second:02}Z", "level": "info", "event": event, **keys}
    return f"{DAY}:{second:02}.1Z stderr F {json.dumps(line)}\n"


def shown(tmp_path: Path, *entries: str) -> str:
    file = tmp_path / "var/log/pods/mizar-system_mizar-nodeagent-x_uid/nodeagent/0.log"
    file.parent.mkdir(parents=True)
    file.write_text("".join(entries))
    node = Node("node-1", "", tmp_path, tmp_path)
    return component_logs.recent(cast(Cluster, SimpleNamespace(nodes=[node])), BEGAN)


def test_lines_since_the_test_began(tmp_path: Path) -> None:
    found = shown(
        tmp_path,
        entry(9, "too early"),
        entry(11, "answered", call="allocate"),
        f"{DAY}:11.1Z stderr F what a library in C writes\n",
        f'{DAY}:11.1Z stderr F {{"timestamp": "{DAY}:11Z", "eve\n',
        f'{DAY}:11.1Z stderr F {{"ts": 1, "msg": "of another program"}}\n',
        entry(12, "a card's loan changes", message="Lendable → Busy"),
    )
    assert found.splitlines() == [
        "mizar-nodeagent-x, 0.log:",
        '  00:00:12Z a card\'s loan changes {"message": "Lendable → Busy"}',
    ]


def test_the_last_lines_only(tmp_path: Path) -> None:
    found = shown(tmp_path, *(entry(20, f"line {n}", error="e" * 500) for n in range(60)))
    _, *lines = found.splitlines()
    assert len(lines) == component_logs.MOST_LINES and "line 59" in lines[-1]
    assert max(map(len, lines)) == component_logs.LONGEST_LINE


def test_a_log_that_was_just_removed(tmp_path: Path) -> None:
    gone = tmp_path / "var/log/pods/mizar-system_mizar-nodeagent-x_uid/nodeagent/0.log"
    gone.parent.mkdir(parents=True)
    gone.symlink_to("nowhere")
    node = Node("node-1", "", tmp_path, tmp_path)
    assert component_logs.recent(cast(Cluster, SimpleNamespace(nodes=[node])), BEGAN) == ""


def test_a_cluster_that_was_removed(tmp_path: Path) -> None:
    """An error here would hide the failure that is reported."""
    removed = LocalCluster(Layout("removed", tmp_path), ClusterSpec("removed"), tmp_path)
    assert component_logs.recent(removed, BEGAN) == ""


def test_nothing_of_a_container_that_logged_nothing(tmp_path: Path) -> None:
    assert shown(tmp_path, entry(1, "long ago")) == ""
