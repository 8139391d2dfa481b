"""Objects of the chart as they are in tests/golden/chart, so that a change of them is read."""

from __future__ import annotations

import os

import yaml

from support.chart import CHART, Object

GOLDEN = CHART.parents[1] / "tests" / "golden" / "chart"


def matches(name: str, objects: list[Object]) -> bool:
    """Whether these are the objects of the file; MIZAR_UPDATE_GOLDEN=1 writes it anew."""
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("MIZAR_UPDATE_GOLDEN"):
        file.write_text(yaml.safe_dump_all(objects, sort_keys=False, width=100))
    return list(yaml.safe_load_all(file.read_text())) == objects
