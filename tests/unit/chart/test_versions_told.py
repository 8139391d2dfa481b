"""CHANGELOG.md and SECURITY.md know the version of the chart."""

from __future__ import annotations

import re

import yaml

from support.chart import CHART

ROOT = CHART.parents[1]
VERSION = str(yaml.safe_load((CHART / "Chart.yaml").read_text())["version"])
SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
"""Those of Keep a Changelog. There may be known limits, and what an upgrade needs, as well."""


def test_the_changelog_begins_with_the_charts_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    entries = re.findall(r"^## \[(.+?)\](?: - (.+))?$", text, re.MULTILINE)
    versions = [name for name, _ in entries if name != "Unreleased"]
    assert versions[0] == VERSION
    assert len(entries) == len(re.findall("^## ", text, re.MULTILINE)), "a heading of another form"
    for name, date in entries:
        assert re.fullmatch(r"Unreleased|\d{4}-\d\d-\d\d", date or name)


def test_each_change_is_of_a_known_kind() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    kinds = re.findall("^### (.+)$", text, re.MULTILINE)
    assert kinds
    for kind in kinds:
        assert kind in SECTIONS or kind == "Known limits" or kind.startswith("Upgrade from "), kind


def test_the_charts_version_gets_fixes() -> None:
    minor, _, _ = VERSION.rpartition(".")
    text = (ROOT / "SECURITY.md").read_text()
    rows = re.findall(r"^\| ([0-9.]+) \| (yes|no) \|$", text, re.MULTILINE)
    assert (minor, "yes") in rows


def test_no_address_is_made_up() -> None:
    for page in ("SECURITY.md", "CHANGELOG.md"):
        assert not re.findall(r"[\w.+-]+@[\w-]+\.[a-z]+|mailto:", (ROOT / page).read_text())
