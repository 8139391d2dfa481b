"""The chart's alerts, evaluated by Prometheus' own promtool on the series of alerts.yaml."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import promql
from support.chart import Chart, pick
from support.metrics import all_documented
from support.promtool import promtool_says

CASES = Path(__file__).with_name("alerts.yaml")


@pytest.fixture(scope="session")
def rules(chart: Chart) -> dict[str, Any]:
    """The rules in the form of a Prometheus file, which a PrometheusRule has in its spec."""
    found: dict[str, Any] = pick(chart.render(metrics={"alerts": True}), "PrometheusRule", "mizar")
    return dict(found["spec"])


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
