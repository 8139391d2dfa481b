"""The chart's dashboard: Grafana can import it, and each of its panels asks for series that
exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from support import promql
from support.chart import Chart, pick
from support.dashboard import (
    FILE,
    RATE_INTERVAL,
    Board,
    as_prometheus_sees_them,
    empty_panels,
    load,
    panels,
    targets,
    variables,
)
from support.metrics import PROGRAMS, Documented, all_documented, documented
from support.promtool import MINUTES, fired, promtool_says

LABELS = {"health": "unhealthy"}
"""Values of labels that panels name."""


@pytest.fixture(scope="module")
def board() -> Board:
    """The dashboard."""
    return load()


def test_it_comes_where_the_values_say_so(chart: Chart) -> None:
    assert not [one for one in chart.render() if one["metadata"]["name"] == "mizar-dashboard"]
    for values, label in (
        ({}, ("grafana_dashboard", "1")),
        ({"label": "dashboards.example.com/take", "labelValue": "yes"}, None),
    ):
        objects = chart.render(metrics={"dashboard": {"enabled": True, **values}})
        made = pick(objects, "ConfigMap", "mizar-dashboard")
        key, value = label or (values["label"], values["labelValue"])
        assert made["metadata"]["labels"][key] == value
        assert ("grafana_dashboard" in made["metadata"]["labels"]) == (label is not None)
        assert json.loads(made["data"]["mizar.json"]) == json.loads(FILE.read_text())


def test_its_folder_is_settable(chart: Chart) -> None:
    notes = {"grafana_folder": "GPUs"}
    objects = chart.render(metrics={"dashboard": {"enabled": True, "annotations": notes}})
    assert pick(objects, "ConfigMap", "mizar-dashboard")["metadata"]["annotations"] == notes


def test_it_can_be_imported_anywhere(board: Board) -> None:
    """It has an identity of its own and names no particular data source."""
    assert board["id"] is None and board["uid"] and board["title"]
    assert board["schemaVersion"] >= 36
    named = {"prometheus": "${datasource}"}
    assert variables(board)["datasource"]["query"] == "prometheus"
    for one in (
        *panels(board),
        *(target for panel in panels(board) for target in panel["targets"]),
        *(one for one in variables(board).values() if one["type"] == "query"),
    ):
        assert named[one["datasource"]["type"]] == one["datasource"]["uid"]


def test_it_is_for_the_pools_nodes_and_namespaces_that_one_chooses(board: Board) -> None:
    found = variables(board)
    assert found.keys() == {"datasource", "pool", "node", "namespace"}
    used = {
        name
        for text in (*(one for _, one, _ in targets(board)), *_queries(board))
        for name in re.findall(r"\$(\w+)", text.replace(RATE_INTERVAL, ""))
    }
    assert used == found.keys() - {"datasource"}


def test_panels_are_filtered_by_what_one_chooses(board: Board) -> None:
    """By all variables that are labels of their metrics, even where the user chooses several
    values."""
    known = all_documented()
    missing = [
        (title, metric, name)
        for title, expression, _ in targets(board)
        for metric, matchers in promql.metrics(expression)
        for name in variables(board).keys() & (promql.labels_of(metric, known) or set())
        if f'{name}=~"${name}' not in matchers
    ]
    assert missing == []


def test_no_panel_covers_another(board: Board) -> None:
    places = [one["gridPos"] for one in board["panels"]]
    assert len({one["id"] for one in board["panels"]}) == len(places)
    for one in places:
        assert one["x"] + one["w"] <= 24
    for a, b in combinations(places, 2):
        apart = (
            *(a["x"] + a["w"] <= b["x"], b["x"] + b["w"] <= a["x"]),
            *(a["y"] + a["h"] <= b["y"], b["y"] + b["h"] <= a["y"]),
        )
        assert any(apart), (a, b)


def test_each_panel_says_what_it_shows(board: Board) -> None:
    for panel in panels(board):
        assert panel["title"] and panel["description"]
        refs = [one["refId"] for one in panel["targets"]]
        assert refs == sorted(set(refs))


def test_it_shows_what_each_tenant_holds_and_uses(board: Board) -> None:
    """A tenant pays for the cards that it holds, whether it works on them or not."""
    by_tenant = {
        expression.partition("(mizar_")[2].partition("{")[0]
        for _, expression, legend in targets(board)
        if expression.startswith("sum by (namespace)") and legend == "{{namespace}}"
    }
    assert {"shadow_pod_card_info", "device_utilization_ratio"} <= by_tenant


def test_each_panel_asks_for_what_the_programs_expose(board: Board) -> None:
    known = all_documented()
    told = [
        (title, one)
        for title, expression, legend in targets(board)
        for one in promql.problems(expression, known, legend)
    ]
    for query in _queries(board):
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert match, query
        told += [(query, one) for one in promql.problems(f"{match[1]} by ({match[2]})", known)]
    assert told == []


def test_prometheus_understands_each_expression(
    board: Board, promtool: Path, tmp_path: Path
) -> None:
    rules = [
        {"record": f"panel:{at}", "expr": expression}
        for at, (_, expression) in enumerate(as_prometheus_sees_them(board))
    ]
    groups = [{"name": "dashboard", "rules": rules}]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    said = promtool_says(promtool, tmp_path, "check", "rules", "rules.yaml")
    assert f"{len(rules)} rules found" in said


def test_each_panel_shows_something(board: Board, promtool: Path, tmp_path: Path) -> None:
    """The programs expose all that they can: no operator in an expression joins series that have
    nothing in common."""
    assert empty_panels(promtool, tmp_path, board, series()) == set()
    assert empty_panels(promtool, tmp_path, board, ()) > {"Cards", "Quotas"}


def test_cards_that_two_pools_share_are_shown_once(
    board: Board, promtool: Path, tmp_path: Path
) -> None:
    """As docs/tenants.md advises for both tenancies: two pools, by default of the same nodes. The
    node's MIG devices are cards of their own."""
    resources = {"shared": "nvidia.com/gpu", "own": "nvidia.com/gpu", "mig": "nvidia.com/mig-1g"}
    given = [
        {"series": f"mizar_{name}", "values": f"{count}x{MINUTES}"}
        for pool, resource in resources.items()
        for name, count in (
            (f'pool_cards{{pool="{pool}"}}', 8),
            (_node_cards(pool, resource, "healthy"), 7),
            (_node_cards(pool, resource, "unhealthy"), 1),
        )
    ]
    wanted = {
        ("Cards", "all"): 16,
        ("Unhealthy cards", "unhealthy"): 2,
        ("Cards by health", "{{health}}"): 16,
    }
    rules = [
        {"alert": title.replace(" ", ""), "expr": f"sum({expression}) != {wanted[title, legend]}"}
        for (title, _, legend), (_, expression) in zip(
            targets(board), as_prometheus_sees_them(board), strict=True
        )
        if (title, legend) in wanted
    ]
    assert len(rules) == len(wanted)
    groups = {"groups": [{"name": "panels", "rules": rules}]}
    assert fired(promtool, tmp_path, groups, given) == set()


def _node_cards(pool: str, resource: str, health: str) -> str:
    return f'node_cards{{pool="{pool}", node="n1", resource="{resource}", health="{health}"}}'


def series() -> Iterator[dict[str, str]]:
    """All that is documented, as two nodes would expose it: on the second, all gauges are 0."""
    for program in PROGRAMS:
        for one in documented(program).values():
            for node, gauge in (("n1", "1"), ("n2", "0")):
                grows = one.type in ("counter", "histogram")
                labels = {label: LABELS.get(label, "x") for label in one.labels} | {
                    "instance": node
                }
                labels |= {"node": node} if "node" in one.labels else {}
                for name, more in samples(one):
                    text = ", ".join(f'{key}="{value}"' for key, value in (labels | more).items())
                    values = f"0+1x{MINUTES}" if grows else f"{gauge}x{MINUTES}"
                    yield {"series": f'{name}{{{text}, job="{program}"}}', "values": values}


def samples(one: Documented) -> list[tuple[str, dict[str, str]]]:
    """The names of a metric's samples, with the labels that only they have."""
    if one.type != "histogram":
        return [(one.name, {})]
    return [(f"{one.name}_bucket", {"le": le}) for le in ("1", "+Inf")]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("mizar_new", "mizar_new is exposed by no program"),
        ('mizar_leader{node="n"}', "mizar_leader has no label node"),
        ("sum by (pool, nod) (mizar_pool_cards)", "nod is a label of none of the metrics"),
        ("mizar_spot_reclaim_seconds", "mizar_spot_reclaim_seconds is exposed by no program"),
        ("mizar_leader_bucket", "mizar_leader_bucket is exposed by no program"),
    ],
)
def test_what_is_not_there_is_noticed(expression: str, problem: str) -> None:
    assert promql.problems(expression, all_documented()) == [problem]


def _queries(board: Board) -> list[str]:
    return [one["definition"] for one in variables(board).values() if one["type"] == "query"]
