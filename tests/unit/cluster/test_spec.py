import pytest

from cluster.errors import SpecError
from cluster.spec import ClusterSpec


def test_nodes_are_numbered_from_one() -> None:
    assert ClusterSpec(nodes=3).node_names() == ["node-1", "node-2", "node-3"]


def test_the_card_is_called_as_nvml_calls_it() -> None:
    assert ClusterSpec(card_model="NVIDIA-A100-SXM4-40GB").card_name == "NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "Upper"},
        {"name": "../etc"},
        {"name": "a" * 31},
        {"name": "-a"},
        {"nodes": 0},
        {"nodes": 65},
        {"cards": -1},
        {"card_memory_mib": 1},
        {"card_model": "NVIDIA A100"},
    ],
)
def test_what_cannot_be_built_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        ClusterSpec(**wrong)  # type: ignore[arg-type]
