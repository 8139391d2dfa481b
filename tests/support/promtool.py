"""Prometheus' own promtool, and what its alerts make of series."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

MINUTES = 30
"""Minutes for which the series of a page exist, without a change."""


def promtool_says(promtool: Path, folder: Path, *words: str) -> str:
    """The output of promtool with these arguments in that folder; fails where promtool does."""
    done = _run(promtool, folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def series_of(page: str, **more: str) -> Iterator[dict[str, str]]:
    """A program's page as if it were scraped for MINUTES. `more`: labels that Prometheus adds to
    series that have none of that name."""
    for family in text_string_to_metric_families(page):
        for one in family.samples:
            text = ", ".join(f'{key}="{value}"' for key, value in (more | one.labels).items())
            yield {"series": f"{one.name}{{{text}}}", "values": f"{one.value:f}x{MINUTES}"}


def fired(
    promtool: Path, folder: Path, rules: Mapping[str, Any], series: Iterable[Mapping[str, str]]
) -> set[str]:
    """The alerts among the rules that fire at the end of these series."""
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    silent = [{"alertname": one, "eval_time": f"{MINUTES}m", "exp_alerts": []} for one in names]
    test = {"interval": "1m", "input_series": list(series), "alert_rule_test": silent}
    (folder / "rules.yaml").write_text(yaml.safe_dump(dict(rules)))
    (folder / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]})
    )
    done = _run(promtool, folder, "test", "rules", "test.yaml")
    found = set(re.findall(r"alertname: (\w+), time", done.stdout + done.stderr))
    assert bool(done.returncode) == bool(found), done.stdout + done.stderr
    return found


def _run(promtool: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(promtool), *words], cwd=folder, capture_output=True, text=True, timeout=60
    )
