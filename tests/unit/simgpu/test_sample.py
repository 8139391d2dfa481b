"""examples/sample: what it prints is what the demo and the end-to-end tests look for."""

import signal
import subprocess
from pathlib import Path

import pytest

import simgpu
from unit.simgpu.harness import Bench, compile_sample


@pytest.mark.parametrize("api", ["alloc", "pitch", "managed", "async"])
def test_alloc_says_ok(stepped: Bench, api: str) -> None:
    done = stepped.call(compile_sample(), "alloc", "100", "--api", api)
    assert (done.returncode, done.stdout) == (0, "OK\n")


@pytest.mark.parametrize("api", ["alloc", "pitch", "async"])
def test_alloc_names_the_error_and_exits_with_3(stepped: Bench, api: str) -> None:
    done = stepped.call(compile_sample(), "alloc", "16384", "--api", api)
    assert (done.returncode, done.stdout) == (3, "CUDA_ERROR_OUT_OF_MEMORY\n")


def test_smi_shows_every_card(stepped: Bench) -> None:
    out = stepped.call(compile_sample(), "smi").stdout
    for card in stepped.machine.cards:
        assert f"{card.uuid} |      0MiB /  16384MiB |" in out


def test_info_shows_memory_as_the_process_sees_it(stepped: Bench) -> None:
    out = stepped.call(compile_sample(), "info", "--device", "1").stdout
    assert out == "free 16084 MiB\ntotal 16384 MiB\ndevice total 16384 MiB\n"


def test_hold_holds_until_it_is_told_to_end(bench: Bench) -> None:
    holder = subprocess.Popen(
        [compile_sample(), "hold", "1000"],
        env=bench.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    bench.started.append(holder)
    assert holder.stdout and holder.stdout.readline() == "holding 1000 MiB\n"
    assert bench.machine.cards[0].used == 1300 << 20
    holder.send_signal(signal.SIGTERM)
    assert holder.communicate()[0] == "released\n"
    assert holder.returncode == 0


def test_busy_says_how_much_of_the_time_its_kernels_ran(snippets: Path, tmp_path: Path) -> None:
    """It says so every second, until it gets a signal; a busy machine may leave the card idle."""
    bench = Bench(simgpu.create(tmp_path / "machine", clock="real"), snippets)
    command = [compile_sample(), "busy"]
    worker = subprocess.Popen(command, env=bench.environment(), stdout=subprocess.PIPE, text=True)
    bench.started.append(worker)
    assert worker.stdout and worker.stdout.readline() == "working\n"
    while float(worker.stdout.readline().removeprefix("busy ").removesuffix(" %\n")) < 20:
        pass
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    bench.end()


@pytest.mark.parametrize("words", [[], ["alloc"], ["alloc", "x"], ["hold", "1", "--api", "no"]])
def test_wrong_usage_exits_with_2(stepped: Bench, words: list[str]) -> None:
    assert stepped.call(compile_sample(), *words).returncode == 2


def test_without_a_driver_it_says_so(stepped: Bench) -> None:
    done = stepped.call(compile_sample(), "smi", LD_LIBRARY_PATH="/nowhere")
    assert done.returncode == 1
    assert "no GPU driver here" in done.stderr
