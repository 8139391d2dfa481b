"""Numbers without the quotes that Kubernetes wants."""

from typing import Any

import pytest

from mizar_operator.webhook.unquoted import unquoted


@pytest.mark.parametrize(
    ("spec", "sentences"),
    [
        (
            {"memoryScaling": 1.5},
            [
                'spec.memoryScaling: write 1.5 in quotes, "1.5": Kubernetes takes no such number'
                " here",
            ],
        ),
        (
            {"memoryScaling": False, "coreScaling": True},
            [
                'spec.memoryScaling: false is no number: write one in quotes, such as "1.5"',
                'spec.coreScaling: true is no number: write one in quotes, such as "1.5"',
            ],
        ),
        (
            {"profiles": [{"devices": 1}, {"memory": 1e9}, {"memory": False}]},
            [
                'spec.profiles[1].memory: write 1000000000.0 in quotes, "1000000000.0": Kubernetes'
                " takes no such number here",
                'spec.profiles[2].memory: false is no number: write one in quotes, such as "8Gi"',
            ],
        ),
        ({"memoryScaling": "1.5", "coreScaling": 2, "profiles": [{"memory": "8Gi"}]}, []),
        ({"memoryScaling": None, "profiles": None}, []),
        ({"profiles": 3}, []),
        ({"profiles": [3]}, []),
        (3, []),
        (None, []),
    ],
)
def test_each_gets_a_sentence(spec: Any, sentences: list[str]) -> None:
    assert list(unquoted({"spec": spec})) == sentences
