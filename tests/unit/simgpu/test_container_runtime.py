"""The stand-in for NVIDIA's container runtime."""

from pathlib import Path
from typing import Any

import pytest

import simgpu
from simgpu.container_runtime import give, script, wanted

CARDS = ["GPU-a", "GPU-b"]
MARKS = "/var/run/nvidia-container-devices"


def spec(*env: str, mounts: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "process": {"env": ["PATH=/bin", *env]},
        "mounts": [{"destination": one} for one in mounts],
        "linux": {},
    }


@pytest.mark.parametrize(
    ("env", "mounts", "cards"),
    [
        ((), (), []),
        (("NVIDIA_VISIBLE_DEVICES=void",), (), []),
        (("NVIDIA_VISIBLE_DEVICES=GPU-b",), (), ["GPU-b"]),
        (("NVIDIA_VISIBLE_DEVICES=GPU-b", "NVIDIA_VISIBLE_DEVICES=all"), (), CARDS),
        (("NVIDIA_VISIBLE_DEVICES=all",), (f"{MARKS}/GPU-a", "/data"), ["GPU-a"]),
        ((f"NVIDIA_VISIBLE_DEVICES={MARKS}",), (f"{MARKS}/all",), CARDS),
        (("NVIDIA_VISIBLE_DEVICES=void",), (f"{MARKS}/void",), []),
        (("NVIDIA_VISIBLE_DEVICES=GPU-b",), (f"{MARKS}/GPU-a", f"{MARKS}/void"), ["GPU-b"]),
    ],
)
def test_it_believes_the_specification(
    env: tuple[str, ...], mounts: tuple[str, ...], cards: list[str]
) -> None:
    assert wanted(spec(*env, mounts=mounts), CARDS) == cards


def test_a_card_that_is_not_there() -> None:
    with pytest.raises(KeyError, match="no card GPU-c"):
        wanted(spec("NVIDIA_VISIBLE_DEVICES=GPU-c"), CARDS)


def test_what_a_container_gets(tmp_path: Path) -> None:
    simgpu.create(tmp_path / "m", cards=2).close()
    given = spec()
    give(given, ["GPU-b"], {"GPU-a": ["nvidia0"], "GPU-b": ["nvidia1"]}, tmp_path / "m")
    nodes = ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert [one["path"] for one in given["linux"]["devices"]] == nodes
    assert all(one["allow"] for one in given["linux"]["resources"]["devices"])
    assert [one["destination"] for one in given["mounts"]] == [
        "/usr/local/nvidia",
        "/run/simgpu/state",
    ]
    bare = spec()
    give(bare, [], {}, tmp_path)
    assert bare == spec()


def test_it_is_runc_otherwise() -> None:
    assert 'exec runc "$@"' in script("/venv/python") and "/venv/python -m simgpu" in script(
        "/venv/python"
    )
