"""What the shim takes for granted of a driver and its card: see README.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median

import pytest

import simgpu
from support.waiting import PATIENCE_S
from unit.shim.slot import ROOT, Slot
from unit.shim.test_relaxed import HARMLESS

from .conftest import Ask, answers, command

KERNEL_NS = 200_000
PERIOD_US, WINDOW_US = 30_000, 10_000  # 1000 s, by which a clock is shifted, end a third through


def constant(name: str) -> int:
    """A number that the shim's source defines, in ns."""
    text = (ROOT / "shim" / "src" / "time" / "context_meter.c").read_text()
    found = re.search(rf"#define {name} UINT64_C\((\d+)\)", text)
    assert found
    return int(found[1])


def test_an_idle_card_passes_an_event_at_once(ask: Ask) -> None:
    passed = {name: int(value) for name, value in ask("events")}["passed_ns"]
    assert passed <= constant("AT_ONCE"), "AT_ONCE has to be more"


def test_events_around_nothing_measure_nothing(ask: Ask) -> None:
    measured = {name: int(value) for name, value in ask("events")}["measured_ns"]
    assert measured <= constant("AT_ONCE")


def test_events_around_a_kernel_measure_it(ask: Ask) -> None:
    measured = [int(ns) for _, ns in ask("kernels", "50", str(KERNEL_NS))]
    assert KERNEL_NS <= median(measured) <= KERNEL_NS * 1.1


def test_nothing_relaxed_spoils_a_capture(ask: Ask) -> None:
    assert [name for name, _, relaxed in ask("captures") if relaxed != "allowed"] == []


def test_nothing_taken_for_harmless_spoils_a_capture(ask: Ask) -> None:
    bare = {name: word for name, word, _ in ask("captures") if name in HARMLESS}
    assert [name for name, word in bare.items() if word != "allowed"] == []


def test_captures_forbid_what_the_simulated_driver_does(ask: Ask, tmp_path: Path) -> None:
    """Of what the driver has: an older one knows fewer calls."""
    asked = {name: words for name, *words in ask("captures")}
    with simgpu.create(tmp_path / "machine", cards=1) as machine:
        simulated = ask("captures", **simgpu.environment(machine.directory))
    assert asked == {name: words for name, *words in simulated if name in asked}


def test_suffixed_names_are_limited(ask: Ask, limited: dict[str, str]) -> None:
    bare = {name for name, owner in ask("names") if owner == "driver"}
    print("found by their exported names:", sorted(bare))
    assert {name for name, owner in ask("names", **limited) if owner == "shim"} == bare


@pytest.mark.skipif(
    not Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")).is_dir(),
    reason="no MPS: start it by nvidia-cuda-mps-control -d",
)
def test_two_under_mps_pay_for_their_own_kernels() -> None:
    """Each kernel takes a part of the card: side by side, events tell each its own time."""
    wanted = command("kernels", "500", str(KERNEL_NS))
    both = [subprocess.Popen(wanted, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [one.communicate(timeout=PATIENCE_S)[0] for one in both]
    measured = [median(int(ns) for _, ns in answers(one)) for one in printed]
    assert max(measured) <= 1.2 * KERNEL_NS, "both are charged for the time that they share"


def kernels_in_window(
    slot: Slot, prefix: list[str], env: dict[str, str], output: Path
) -> list[tuple[int, int]]:
    """What `questions kernels` says under an agent that gives WINDOW_US of each PERIOD_US."""
    window = WINDOW_US | PERIOD_US << 40 | slot.constant("MIZAR_WINDOW_VALID")
    slot.set_live(0, "window", window, 8)
    wanted = [*prefix, *command("kernels", "2000", str(KERNEL_NS))]
    beat = 1
    with output.open("w") as file, subprocess.Popen(wanted, env=env, stdout=file) as process:
        while process.poll() is None:
            slot.set_live(0, "beat", beat := beat + 1)
            time.sleep(0.01)  # an agent's round
    assert process.returncode == 0
    return [(int(at), int(ns)) for at, ns in answers(output.read_text())]


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root, to shift a clock"
)
@pytest.mark.parametrize("shifted", [[], ["unshare", "--time", "--monotonic=1000", "--fork"]])
def test_a_time_namespace_moves_no_window(
    shifted: list[str], slot: Slot, limited: dict[str, str], tmp_path: Path
) -> None:
    """Work keeps to the window that the node agent gave, whatever CLOCK_MONOTONIC says inside."""
    done = kernels_in_window(slot, shifted, os.environ | limited, tmp_path / "done")
    offset = time.time_ns() - time.monotonic_ns()
    ends = [(at - offset) // 1000 % PERIOD_US for at, _ in done]
    outside = [at for at in ends if at > WINDOW_US + 2 * KERNEL_NS // 1000]
    assert len(outside) <= 0.1 * len(ends), "the namespace's clock shifts the window"
