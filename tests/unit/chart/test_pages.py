"""The chart accepts the values that the pages show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import reduce
from typing import Any

import pytest
import yaml

from support.chart import CHART, Chart, Object, pick

ROOT = CHART.parents[1]
BLOCK = re.compile(r"^( *)```yaml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def documents(page: str) -> Iterator[Any]:
    """What the YAML blocks of a page contain."""
    for _, block in BLOCK.findall((ROOT / page).read_text()):
        yield from yaml.safe_load_all(block)


def shown(kind: str) -> Object:
    """The object of this kind on the page about Argo CD and Flux."""
    found = documents("docs/runbooks/gitops.md")
    return dict(next(one for one in found if one.get("kind") == kind))


def values(page: str, key: str) -> Object:
    """The first block of a page with this value of the chart."""
    return next(one for one in documents(page) if key in one)


def table() -> Iterator[Object]:
    """The values of the README's table of nodes."""
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^ +\| (?:with|of) .*$", readme, re.MULTILINE)
    for row in rows:
        yield from (yaml.safe_load(one) for one in re.findall(r"`(nodeagent: \{.*?\})`", row))


def test_the_readmes(chart: Chart) -> None:
    mine = {**values("README.md", "defaultPool"), **values("README.md", "metrics")}
    found = list(table())
    assert len(found) == 4
    for nodes in found:
        assert chart.render(**mine, **nodes)


def test_the_charts_own_names_all_values() -> None:
    readme = (CHART / "README.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", readme, re.MULTILINE)
    told = [one for row in rows for one in re.findall(r"`(\w+)`", row)]
    assert sorted(told) == sorted(yaml.safe_load((CHART / "values.yaml").read_text()))
    ignored = (CHART / ".helmignore").read_text().split()
    assert not [one for one in ignored if fnmatch("README.md", one)], "helm would not show it"


def test_the_charts_own_names_what_strict_clusters_set() -> None:
    """By its whole name, or as every program has it."""
    readme = (CHART / "README.md").read_text()
    table = readme.partition("\n## In a cluster with strict policies\n")[2].partition("\n## ")[0]
    (_, _, *rows) = [one.split("|") for one in table.splitlines() if one.startswith("|")]
    given = yaml.safe_load((CHART / "values.yaml").read_text())
    programs = [given[one] for one in ("operator", "webhook", "nodeagent")]
    for name in [one for row in rows for one in re.findall(r"`([\w.]+)`", row[2])]:
        *sections, last = name.split(".")
        found = [reduce(dict.__getitem__, sections, given)] if sections else [given, *programs]
        assert any(last in one for one in found), name


def test_argo_cds(chart: Chart) -> None:
    """Argo CD calls the release as the Application, and creates the labelled namespace."""
    spec = shown("Application")["spec"]
    assert (ROOT / spec["source"]["path"]).samefile(CHART)
    objects = chart.render(**spec["source"]["helm"]["valuesObject"])
    agent = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    assert agent["runtimeClassName"] == "nvidia"
    labels = spec["syncPolicy"]["managedNamespaceMetadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "privileged"}


def selector(chart: Chart, values: str) -> Object:
    objects = chart.render(**yaml.safe_load(values))
    pod = pick(objects, "DaemonSet", "mizar-nodeagent")["spec"]["template"]["spec"]
    return dict(pod["nodeSelector"])


def test_nodes_without_the_label_of_gpu_feature_discovery(chart: Chart) -> None:
    """helm adds a value's entries to the chart's own: only null removes one."""
    (words,) = re.findall(r"`(nodeagent: \{nodeSelector.*\})`", (ROOT / "README.md").read_text())
    assert selector(chart, words) == {"gpu": "true"}
    page = (ROOT / "docs/runbooks/switch-from-hami.md").read_text()
    (words,) = re.findall(r"`(nodeSelector: \{.*null\})`", page)
    assert selector(chart, f"nodeagent: {{{words}}}") == {"gpu-sharing": "mizar"}


def test_fluxs(chart: Chart) -> None:
    spec = shown("HelmRelease")["spec"]
    assert (ROOT / spec["chart"]["spec"]["chart"]).samefile(CHART)
    assert chart.render(**spec["values"])


@pytest.mark.parametrize(
    ("page", "key"),
    [
        ("docs/runbooks/switch-from-hami.md", "defaultPool"),
        ("docs/runbooks/gitops.md", "uninstall"),
        ("docs/security.md", "networkPolicy"),
        ("docs/security.md", "openshift"),
    ],
)
def test_a_pages(chart: Chart, page: str, key: str) -> None:
    assert chart.render(**values(page, key))
