"""The chart's alerts, evaluated by Prometheus' own promtool on the series of alerts.yaml."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import promql
from support.chart import CHART, Chart, pick
from support.metrics import all_documented
from support.promtool import promtool_says

CASES = Path(__file__).with_name("alerts.yaml")
RUNBOOKS = CHART.parents[1] / "docs" / "runbooks" / "alerts.md"


def rendered(chart: Chart, **values: str) -> dict[str, Any]:
    """The rules in the form of a Prometheus file, which a PrometheusRule has in its spec."""
    metrics = {"alerts": True, **values}
    return dict(pick(chart.render(metrics=metrics), "PrometheusRule", "mizar")["spec"])


@pytest.fixture(scope="session")
def rules(chart: Chart) -> dict[str, Any]:
    return rendered(chart)


@pytest.fixture
def folder(tmp_path: Path, rules: dict[str, Any]) -> Path:
    """A folder with the rules and the cases."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    shutil.copy(CASES, tmp_path)
    return tmp_path


def test_prometheus_reads_them(promtool: Path, folder: Path, rules: dict[str, Any]) -> None:
    count = sum(len(one["rules"]) for one in rules["groups"])
    said = promtool_says(
        promtool, folder, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"
    )
    assert f"{count} rules found" in said


def test_they_fire_when_they_should_and_only_then(promtool: Path, folder: Path) -> None:
    promtool_says(promtool, folder, "test", "rules", CASES.name)


def test_each_is_seen_to_fire_and_not_to_fire(rules: dict[str, Any]) -> None:
    seen = {
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test["alert_rule_test"]
    }
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert seen == {(alert, fires) for alert in alerts for fires in (True, False)}


def test_they_are_about_what_the_programs_expose(rules: dict[str, Any]) -> None:
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert promql.problems(rule["expr"], all_documented()) == []


def links(rules: dict[str, Any]) -> dict[str, str | None]:
    """The runbook of each alert, in the order of the chart."""
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    return {one["alert"]: one["annotations"].get("runbook_url") for one in alerts}


def test_each_has_a_section_in_the_runbook(chart: Chart, rules: dict[str, Any]) -> None:
    """With the anchor that a link to it has."""
    assert re.findall(r"^## (.+)$", RUNBOOKS.read_text(), re.MULTILINE) == list(links(rules))
    assert set(links(rules).values()) == {None}
    page = "https://git.example.com/docs/runbooks/alerts.md"
    linked = links(rendered(chart, runbooks=page))
    assert linked == {name: f"{page}#{name.lower()}" for name in linked}
