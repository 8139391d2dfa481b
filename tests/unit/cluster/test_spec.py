import pytest

from cluster.errors import SpecError
from cluster.spec import ClusterSpec


def test_nodes_are_numbered_from_one() -> None:
    assert ClusterSpec(nodes=3).node_names() == ["node-1", "node-2", "node-3"]


def test_the_card_is_called_as_nvml_calls_it() -> None:
    assert ClusterSpec(card_model="NVIDIA-A100-SXM4-40GB").card_name == "NVIDIA A100-SXM4-40GB"


def test_the_last_nodes_have_the_dra_driver() -> None:
    spec = ClusterSpec(nodes=3, dra_nodes=2)
    assert [spec.uses_dra(number) for number in (1, 2, 3)] == [False, True, True]
    assert not ClusterSpec(nodes=3).uses_dra(3)


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
        {"nodes": 2, "dra_nodes": 3},
        {"dra_nodes": -1},
    ],
)
def test_what_cannot_be_built_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        ClusterSpec(**wrong)  # type: ignore[arg-type]
