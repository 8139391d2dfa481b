"""README and the pages of docs/ name only metrics, values, labels and the like that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mizar_core import names
from support.chart import CHART
from support.metrics import all_documented

ROOT = CHART.parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [one for one in PAGES if one.parent.name != "adr"]
METRIC = re.compile(r"\bmizar_(?!core|kube|operator|nodeagent)[a-z_]*[a-z]")
TOP = r"(?:image|nodeagent|webhook|operator|shadowPods|policies|metrics|uninstall|defaultPool)"
VALUE = re.compile(rf"`({TOP}(?:\.[A-Za-z]+)+)[`:]")
KEY = re.compile(r"\bmizar\.share/([a-z][a-z-]*[a-z])\b(?!\.)")
NOT_KEYS = {"gpu", "half", "card-percent"}
"""Parts of resources' names."""


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


def is_value(path: str) -> bool:
    """Whether the chart has this value, by its schema. Below one of free content everything is."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    here: Any = schema
    for step in path.split("."):
        if "$ref" in here:
            here = schema["definitions"][here["$ref"].rpartition("/")[2]]
        if "properties" not in here:
            return True
        if step not in here["properties"]:
            return False
        here = here["properties"][step]
    return True


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_metrics(page: Path) -> None:
    found = {one.removesuffix("_bucket") for one in METRIC.findall(page.read_text())}
    assert found - {"mizar_build_info", "mizar_device"} <= all_documented().keys()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_values_of_the_chart(page: Path) -> None:
    found = set(VALUE.findall(page.read_text()))
    assert [one for one in found if not is_value(one)] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_labels_annotations_gates_and_conditions(page: Path) -> None:
    known = {
        one.removeprefix("mizar.share/")
        for one in vars(names).values()
        if isinstance(one, str) and one.startswith("mizar.share/")
    }
    assert set(KEY.findall(page.read_text())) - NOT_KEYS <= known
