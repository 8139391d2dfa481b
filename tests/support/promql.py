"""What a PromQL expression is about: its metrics, and the labels that it uses of them.

No parser: promtool says whether an expression is one. This finds names in those that are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from support.metrics import Documented

_METRIC = re.compile(r"\b(mizar_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_CLAUSE = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_OF_HISTOGRAM = re.compile(r"_(bucket|sum|count)$")


OF_PODS = {"namespace", "pod"}
"""The labels that Prometheus gives to everything that it reads from a pod."""


def metrics(expression: str) -> list[tuple[str, str]]:
    """The metrics of an expression, each with its matchers."""
    return [(name, matchers) for name, matchers in _METRIC.findall(expression)]


def problems(
    expression: str, known: Mapping[str, Iterable[Documented]], legend: str = ""
) -> list[str]:
    """Metrics and labels that no program exposes, a sentence each. `known`: by name, once for each
    program that has the metric."""
    told: list[str] = []
    labels: set[str] = set()
    for name, matchers in metrics(expression):
        own = labels_of(name, known)
        if own is None:
            told.append(f"{name} is exposed by no program")
            continue
        labels |= own
        told += [
            f"{name} has no label {one}" for one in _MATCHER.findall(matchers) if one not in own
        ]
    used = {one.strip() for list in _CLAUSE.findall(expression) for one in list.split(",")}
    used |= set(_LEGEND.findall(legend))
    return told + [
        f"{one} is a label of none of the metrics" for one in sorted(used - labels - OF_PODS - {""})
    ]


def labels_of(name: str, known: Mapping[str, Iterable[Documented]]) -> set[str] | None:
    """The labels of a series of that name; None if there is none."""
    if name in known:
        found = [one for one in known[name] if one.type != "histogram"]
        return {label for one in found for label in one.labels} if found else None
    family = _OF_HISTOGRAM.sub("", name)
    parts = [one for one in known.get(family, ()) if one.type == "histogram"]
    more = {"le"} if name.endswith("_bucket") else set()
    return {label for one in parts for label in one.labels} | more if parts else None
