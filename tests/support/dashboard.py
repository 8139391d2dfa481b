"""The chart's dashboard, and what its panels show of some series."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from support.chart import CHART
from support.promtool import fired

FILE = CHART / "dashboards" / "mizar.json"
RATE_INTERVAL = "$__rate_interval"
"""What Grafana itself puts something in for."""

Board = dict[str, Any]


def load() -> Board:
    """The dashboard."""
    return dict(json.loads(FILE.read_text()))


def panels(board: Board) -> list[dict[str, Any]]:
    """All but the rows' titles."""
    return [one for one in board["panels"] if one["type"] != "row"]


def variables(board: Board) -> dict[str, dict[str, Any]]:
    """By name."""
    return {one["name"]: one for one in board["templating"]["list"]}


def targets(board: Board) -> Iterator[tuple[str, str, str]]:
    """(title of the panel, expression, legend) of all."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


def as_prometheus_sees_them(board: Board) -> Iterator[tuple[str, str]]:
    """(title of the panel, expression) of all, with everything chosen."""
    for title, expression, _ in targets(board):
        text = expression.replace(RATE_INTERVAL, "5m")
        for name in variables(board):
            text = text.replace(f"${name}", ".*")
        assert "$" not in text, title
        yield title, text


def empty_panels(
    promtool: Path, folder: Path, board: Board, series: Iterable[Mapping[str, str]]
) -> set[str]:
    """The titles of panels of which an expression finds nothing after nine minutes of these."""
    shown = list(as_prometheus_sees_them(board))
    rules = [
        {"alert": f"Panel{at}", "expr": f"(count({expression}) or vector(0)) == 0"}
        for at, (_, expression) in enumerate(shown)
    ]
    groups = {"groups": [{"name": "panels", "rules": rules}]}
    return {shown[int(one[5:])][0] for one in fired(promtool, folder, groups, series)}
