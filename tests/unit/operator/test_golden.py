"""Golden plans: real objects in, the operator's plan out. tests/golden/plan/NAME/given.yaml holds
the objects (and the time, as a comment-like first document), planned.yaml what is done about them.

MIZAR_UPDATE_GOLDEN=1 writes planned.yaml anew; read the difference before you commit it.
"""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from mizar_core.model_base import Model, format_time, parse_time
from mizar_core.planning import Snapshot, plan
from mizar_core.planning.actions import Action
from mizar_core.planning.node_fit import Needs
from mizar_operator.reconcile_state import NODE_GONE_AFTER_S
from stateful.harness import Harness
from stateful.model import Model as Cluster

GOLDEN = Path(__file__).parents[2] / "golden" / "plan"
SCENARIOS = sorted(path.parent.name for path in GOLDEN.glob("*/given.yaml"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_plan(name: str) -> None:
    folder = GOLDEN / name
    planned = _planned((folder / "given.yaml").read_text())
    expected = folder / "planned.yaml"
    if os.environ.get("MIZAR_UPDATE_GOLDEN"):
        expected.write_text(yaml.safe_dump(planned, sort_keys=False, width=100))
    assert planned == yaml.safe_load(expected.read_text())


def _planned(text: str) -> dict[str, Any]:
    first, *objects = yaml.safe_load_all(text)
    cluster = Cluster()
    cluster.time = parse_time(first["now"])
    for obj in objects:
        obj["metadata"].setdefault("creationTimestamp", "2026-01-31T11:00:00Z")
        cluster.api.put(obj)
    made = plan(_snapshot(cluster, first.get("key", "mizar.share")), cluster.time)
    due = format_time(made.due) if made.due else None
    return {"actions": [_plain(action) for action in made.actions], "due": due}


def _snapshot(cluster: Cluster, key: str) -> Snapshot:
    """The snapshot of an operator that has run for so long that missing nodes count as gone."""
    operator = Harness(cluster)
    cluster.tick(-NODE_GONE_AFTER_S)
    operator.snapshot(key)
    cluster.tick(NODE_GONE_AFTER_S)
    return operator.snapshot(key)


def _plain(value: Any) -> Any:
    if isinstance(value, Needs):
        return _needs(value)
    if is_dataclass(value) and not isinstance(value, type):
        content = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {type(value).__name__: content} if isinstance(value, Action) else content
    if isinstance(value, Model):
        return value.to_dict()
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, frozenset):
        return dict(sorted(value))
    if isinstance(value, tuple):
        return "/".join(value) if len(value) == 2 else [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value


def _needs(needs: Needs) -> dict[str, Any]:
    """What a pod needs, without the constraints that it does not have."""
    found: dict[str, Any] = {"selector": dict(sorted(needs.selector))}
    if needs.terms:
        found["terms"] = [
            [" ".join((one.key, one.operator, *one.values)) for one in term.labels + term.fields]
            for term in needs.terms
        ]
    found |= {
        key: sorted(value)
        for key in ("excluded_nodes", "anti_affinity")
        if (value := getattr(needs, key))
    }
    found["tolerations"] = sorted("/".join(one[:4]) for one in needs.tolerations)
    return found


def test_scenarios_are_found() -> None:
    assert len(SCENARIOS) >= 10, SCENARIOS
