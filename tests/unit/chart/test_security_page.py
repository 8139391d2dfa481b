"""docs/security.md tells the rights and privileges that the chart gives to its programs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from support.chart import CHART, Chart, Object, pick

PAGE = (CHART.parents[1] / "docs" / "security.md").read_text()
PARTS = {"The operator": "operator", "The webhook": "webhook", "The node agents": "nodeagent"}
ROW = re.compile(r"^\| `([^|]+)` \| ([a-z, ]+) \| ([^|]+) \|", re.MULTILINE)
Rights = dict[tuple[str, str], set[str]]


def where(kind: str, rule: Object) -> str:
    names = ", ".join(f"`{one}`" for one in rule.get("resourceNames", ()))
    return ", ".join(part for part in (f"{kind}", f"only {names}" if names else "") if part)


def granted(objects: list[Object], part: str) -> Iterator[tuple[tuple[str, str], set[str]]]:
    scopes = {"ClusterRole": "cluster", "Role": "own namespace"}
    for one in objects:
        if one["kind"] in scopes and one["metadata"]["name"] == f"mizar-{part}":
            for rule in one["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        name = ".".join(word for word in (resource, group) if word)
                        yield (name, where(scopes[one["kind"]], rule)), set(rule["verbs"])


def together(rights: Iterator[tuple[tuple[str, str], set[str]]]) -> Rights:
    found: Rights = defaultdict(set)
    for key, verbs in rights:
        found[key] |= verbs
    return found


def told(title: str) -> Rights:
    text = PAGE.partition(f"\n### {title}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    rows = ROW.findall(text)
    return together(
        ((name, scope.strip()), set(verbs.split(", ")))
        for names, verbs, scope in rows
        for name in names.split("`, `")
    )


@pytest.fixture(scope="module")
def objects(chart: Chart) -> list[Object]:
    return chart.render()


@pytest.mark.parametrize("title", PARTS)
def test_each_right(objects: list[Object], title: str) -> None:
    assert told(title) == together(granted(objects, PARTS[title]))


def test_the_node_agents_folders(objects: list[Object]) -> None:
    """Those that the chart mounts without further values."""
    pod = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    folders = {one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    text = PAGE.partition("\n## What the node agent may do on its node\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(/[^`]+)` \|", text, re.MULTILINE)) == folders
