"""What programs expose as metrics: linted by promtool, and compared with docs/metrics.md."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
COMMON = ("process_", "python_")
BUILD_INFO = "mizar_build_info"
OF_HISTOGRAM = {"le"}


@dataclass(frozen=True)
class Documented:
    """A line of the page: the metric's name as exposed, its type and its labels."""

    name: str
    type: str
    labels: frozenset[str]


def documented(program: str) -> dict[str, Documented]:
    """The metrics of a program by name; `program` as the page's headings name it. Every line has a
    unit, a meaning and an example."""
    section = PAGE.read_text().split(f"\n## {program}\n")[1].split("\n## ")[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            name, type, labels, *rest = (cell.strip() for cell in line.strip("|").split(" | "))
            assert len(rest) == 3 and all(rest), f"a cell is empty: {line}"
            name = name.strip("`")
            of_it = frozenset(one.strip("` ") for one in labels.split(",") if one.strip())
            assert name not in found, f"{name} is there twice"
            found[name] = Documented(name, type, of_it)
    return found


PROGRAMS = ("Node agent", "Operator", "Webhook")


def all_documented() -> dict[str, list[Documented]]:
    """The metrics of all programs by name; some are in two of them."""
    found: dict[str, list[Documented]] = {}
    for program in PROGRAMS:
        for name, one in documented(program).items():
            found.setdefault(name, []).append(one)
    return found


def problems(program: str, page: str) -> list[str]:
    """How a program's page and its documentation differ, and what is repeated, a sentence each."""
    told, known = [], documented(program)
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.startswith(COMMON) or name == BUILD_INFO:
            continue
        line = known.pop(name, None)
        if line is None:
            told.append(f"{name} is not documented")
        elif line.type != family.type:
            told.append(f"{name} is a {family.type}, documented as a {line.type}")
        else:
            labels = {frozenset(one.labels) - OF_HISTOGRAM for one in family.samples}
            told += [f"{name} has {sorted(one)}" for one in labels if one != line.labels]
        series = Counter((one.name, *sorted(one.labels.items())) for one in family.samples)
        told += [f"{one} is repeated" for one, count in series.items() if count > 1]
    return told + [f"{name} is documented and not exposed" for name in known]


def lint(promtool: Path, page: str) -> str:
    """What `promtool check metrics` objects to; empty if nothing."""
    done = subprocess.run(
        [str(promtool), "check", "metrics"], input=page, text=True, capture_output=True, timeout=60
    )
    return f"{done.stdout}{done.stderr}" if done.returncode else ""
