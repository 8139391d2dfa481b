"""A share pod whose containers ask for devices of several resources, all of which must be on one
node."""

from __future__ import annotations

import pytest

from mizar_kube.kinds import POD, Object
from stateful.harness import Harness
from stateful.model import Model

NODES = ("n1", "n2")


KEYS = ("mizar.share", "cards.example")


def _model() -> Model:
    """Two nodes of two cards; two pools, with a quota of one shadow pod in each."""
    made = Model()
    for node in NODES:
        made.add_node(node)
    for name, prefix in zip(("pool", "other"), KEYS, strict=True):
        made.add_pool(name, resourcePrefix=prefix)
        made.add_quota("team-a", [{"devices": 2, "min": 0, "max": 1}], name, pool=name)
    return made


def _pod(model: Model, name: str) -> Object:
    found = model.api.find(POD, name, "team-a")
    assert found is not None
    return found


def _rounds(operator: Harness, count: int, seconds: float = 1) -> None:
    for _ in range(count):
        for node in NODES:
            operator.catch_up(node)
        for key in KEYS:
            operator.reconcile(key)
        operator.model.tick(seconds)


@pytest.mark.parametrize("started", [0, 60, 119])
def test_it_runs_though_its_devices_come_to_different_nodes(started: int) -> None:
    """Its shadow pods must not change places for ever."""
    model = _model()
    model.tick(started)
    operator = Harness(model)
    # A card of n1 is taken until the shadow pods have their nodes.
    model.add_whole("team-a", "whole", 1)
    _rounds(operator, 3)
    model.add_share_of("team-a", "wide", {f"team-a.{key}/gpu.2": 1 for key in KEYS})
    _rounds(operator, 8)
    model.api.start_delete(_pod(model, "whole"))
    assert _pod(model, "wide")["status"]["phase"] == "Pending"
    _rounds(operator, 200, seconds=3)
    assert _pod(model, "wide")["status"]["phase"] == "Running"
