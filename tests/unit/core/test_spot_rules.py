"""The rules for spot cards, from the pools to the agents."""

from __future__ import annotations

import pytest

from mizar_core.errors import SpotRulesRefused
from mizar_core.models import GPUPool
from mizar_core.names import card_of_spot_device, spot_device_id
from mizar_core.spot_rules import SpotRules, spot_rules


def _pool(name: str, **spec: object) -> GPUPool:
    return GPUPool.from_dict({"metadata": {"name": name}, "spec": spec})


def test_they_name_pools_that_lend_in_order() -> None:
    lends = {"enabled": True, "idleAfterSeconds": 5, "namespaces": ["inference"]}
    made = spot_rules(
        [
            _pool("b", spot=lends, nodeSelector={"zone": "b"}, cardModels=["NVIDIA-A100-*"]),
            _pool("keeps"),
            _pool("a", spot={"enabled": True}, physicalResource="vendor.example/gpu"),
        ]
    )
    a, b = made.rules
    assert (a.pool, a.physical_resource, a.spot.idle_after_seconds) == (
        "a",
        "vendor.example/gpu",
        60,
    )
    assert (b.pool, b.node_selector, b.card_models) == ("b", {"zone": "b"}, ("NVIDIA-A100-*",))
    assert (b.spot.idle_after_seconds, b.spot.namespaces) == (5, ("inference",))


def test_agents_read_what_the_operator_writes() -> None:
    made = spot_rules([_pool("a", spot={"enabled": True, "reserve": "2Gi"})])
    assert SpotRules.from_json(made.to_json()) == made


@pytest.mark.parametrize("text", ["", "[]", '{"rules": [{}]}', '{"rules": [{"pool": "a"}]}'])
def test_damaged_rules_are_refused(text: str) -> None:
    with pytest.raises(SpotRulesRefused, match="damaged"):
        SpotRules.from_json(text)


def test_a_spot_device_names_its_card() -> None:
    assert spot_device_id("GPU-1") == "GPU-1-spot"
    assert card_of_spot_device("GPU-1-spot") == "GPU-1"
    assert card_of_spot_device("GPU-1") is None
    assert card_of_spot_device("-spot") is None
