"""Cards through a real libnvidia-ml.so.1: the simulated one, in a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import nvidia_driver
import simgpu
from mizar_nodeagent import nvml
from support.waiting import PATIENCE_S, wait_for
from unit.simgpu.harness import NAMESPACE, compile_sample

READER = """
import asyncio, json, pynvml, sys
import support.without_rich
from mizar_nodeagent.nvml import Nvml

seen = set()
waits, wait = [], pynvml.nvmlEventSetWait_v2

def noted(events, patience):
    waits.append(patience)
    return wait(events, patience)

async def main():
    pynvml.nvmlEventSetWait_v2 = noted
    nvml, faults = Nvml(), asyncio.Queue()
    telling = asyncio.create_task(nvml.faults(lambda uuid, xid: faults.put_nowait([uuid, xid])))
    for line in sys.stdin:
        if line.startswith("read"):
            cards = await nvml.read(seen.union(line.split()[1:]))
            seen.update(cards)
            answer = {uuid: [c.model, c.memory_bytes >> 20] for uuid, c in cards.items()}
        elif line == "minors\\n":
            answer = await nvml.minors(seen)
        elif line == "health\\n":
            answer = [vars(card.readings) for card in (await nvml.read()).values()]
        elif line == "workers\\n":
            answer = await nvml.workers(await nvml.read())
        elif line == "loads\\n":
            found = (await nvml.loads(await nvml.read())).items()
            answer = {
                uuid: {pid: one.percent for pid, one in loads.items()} for uuid, loads in found
            }
        elif line == "utilization\\n":
            answer = {uuid: await nvml.utilization(uuid) for uuid in await nvml.read()}
        elif line == "free\\n":
            answer = {uuid: await nvml.free_bytes(uuid) for uuid in await nvml.read()}
        elif line == "cards\\n":
            answer = {
                uuid: [c.memory_bytes >> 20, c.instance and vars(c.instance), c.divided, c.numa]
                for uuid, c in (await nvml.read()).items()
            }
        elif line == "waits\\n":
            while not waits:
                await asyncio.sleep(0.005)
            answer = max(waits)
        else:
            answer = await faults.get()
        print(json.dumps(answer), flush=True)
    nvml.close()

asyncio.run(main())
"""


OF_RELEASE = """
import pynvml

find = pynvml._nvmlGetFunctionPointer

def found(name):
    if name not in EXPORTED:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return find(name)

pynvml._nvmlGetFunctionPointer = found
"""
"""Hides the functions that a release of the driver does not export."""


class Reader:
    """A process that sees the simulated cards, by the driver of a release if one is given."""

    def __init__(
        self, machine: simgpu.Machine, under: Sequence[str] = (), release: int | None = None
    ) -> None:
        exported = nvidia_driver.read().exported[release] if release else None
        hides = f"EXPORTED = {set(exported)}{OF_RELEASE}" if exported else ""
        self._process = subprocess.Popen(
            [*under, sys.executable, "-c", hides + READER],
            env={**os.environ, **simgpu.environment(machine.directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str) -> object:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[simgpu.Machine]:
    with simgpu.create(tmp_path, cards=2, memory_mib=1024) as made:
        yield made


@pytest.fixture
def reader(machine: simgpu.Machine) -> Iterator[Reader]:
    made = Reader(machine)
    yield made
    made.close()


def test_cards_are_read_missed_and_found_again(machine: simgpu.Machine, reader: Reader) -> None:
    first, second = (card.uuid for card in machine.cards)
    expected = {
        first: ["NVIDIA A100-SXM4-40GB", 1024],
        second: ["NVIDIA A100-SXM4-40GB", 1024],
    }
    assert reader.ask("read") == expected
    machine.remove(first)
    assert reader.ask("read") == {second: expected[second]}
    machine.restore(first)
    # Not every read looks for a missing card again.
    assert expected in [reader.ask("read") for _ in range(4)]


def test_a_card_that_is_missing_at_the_start_is_found(
    machine: simgpu.Machine, reader: Reader
) -> None:
    """The card fell off the bus while no agent ran, or took the agent along."""
    first, second = (card.uuid for card in machine.cards)
    machine.remove(first)
    assert set(reader.ask(f"read {first}")) == {second}  # type: ignore[call-overload]
    machine.restore(first)
    found = [reader.ask(f"read {first}") for _ in range(4)]
    assert {first, second} in [set(one) for one in found]  # type: ignore[call-overload]


def test_the_minor_number_is_what_the_driver_says_now(
    machine: simgpu.Machine, reader: Reader
) -> None:
    first, second = (card.uuid for card in machine.cards)
    reader.ask("read")
    assert reader.ask("minors") == {first: 0, second: 1}
    machine.renumber(second, first)
    assert reader.ask("minors") == {first: 1, second: 0}
    machine.remove(first)
    assert reader.ask("minors") == {second: 0}


def test_no_question_waits_behind_the_wait_for_faults(reader: Reader) -> None:
    """NVML's only thread never waits inside NVML."""
    reader.ask("read")
    assert reader.ask("waits") == 0


def test_what_a_card_shows_of_its_health(machine: simgpu.Machine, reader: Reader) -> None:
    uuid = machine.cards[0].uuid
    for figure, value in {"nvlinks": 3, "nvlinks_down": 1, "temperature_celsius": 95}.items():
        machine.set_figure(uuid, figure, value)
    machine.set_figure(uuid, "remap_failed", 1)
    work = {"used_bytes": 0, "busy_percent": 0}
    assert reader.ask("health") == [
        {"celsius": 95, "slowdown": 92, "remap_failed": True, "links": [False, True, True], **work},
        {"celsius": 35, "slowdown": 92, "remap_failed": False, "links": [], **work},
    ]


def test_a_fault_is_told(machine: simgpu.Machine, reader: Reader) -> None:
    reader.ask("read")
    reader.ask("waits")  # from then on the reader listens
    broken = machine.cards[1].uuid
    machine.set_health(broken, 79)
    assert reader.ask("fault") == [broken, 79]


def test_a_divided_card_and_its_instances(tmp_path: Path) -> None:
    with simgpu.create(tmp_path, cards=2) as machine:
        first, second = (card.uuid for card in machine.cards)
        machine.set_numa(first, 1)
        small, large = machine.divide(first, "1g.5gb", "2g.10gb")
        reader = Reader(machine)
        try:
            assert reader.ask("cards") == {
                first: [16384, None, True, [1]],
                small: [4864, {"card": first, "gpu": 1, "compute": 0}, False, [1]],
                large: [9728, {"card": first, "gpu": 2, "compute": 0}, False, [1]],
                second: [16384, None, False, []],
            }
            reader.ask("read")
            assert reader.ask("minors") == {first: 0, small: 0, large: 0, second: 1}
            loads = reader.ask("loads")
            assert loads == {second: {}}, "what is divided tells no utilisation"
            assert reader.ask("utilization") == {first: None, small: None, large: None, second: {}}
            machine.set_figure(first, "temperature_celsius", 95)
            told = reader.ask("health")
            assert [one["celsius"] for one in told] == [95, 95, 95, 35]  # type: ignore[attr-defined]
            with sample(machine, "hold", "100") as holder:
                found = reader.ask("workers")
                assert [*found[small]] == [str(holder)] and not found[large]  # type: ignore[index,call-overload]
            machine.divide(first)
            assert first in (now := reader.ask("cards")) and small not in now  # type: ignore[operator]
        finally:
            reader.close()


def test_a_fault_of_an_instance_is_not_its_cards(tmp_path: Path) -> None:
    with simgpu.create(tmp_path, cards=1) as machine:
        (card,) = (card.uuid for card in machine.cards)
        _, large = machine.divide(card, "1g.5gb", "2g.10gb")
        reader = Reader(machine)
        try:
            reader.ask("read")
            reader.ask("waits")
            machine.set_health(large, 48)
            assert reader.ask("fault") == [large, 48]
            machine.set_health(card, 79)
            assert reader.ask("fault") == [card, 79]
        finally:
            reader.close()


def test_processes_of_a_card_are_listed_with_their_bytes(
    machine: simgpu.Machine, reader: Reader
) -> None:
    first, second = (card.uuid for card in machine.cards)
    with subprocess.Popen(
        [compile_sample(), "hold", "100"],
        env={**os.environ, **simgpu.environment(machine.directory)},
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout and holder.stdout.readline() == "holding 100 MiB\n"
            found = reader.ask("workers")
            assert isinstance(found, dict)
            assert found[second] == {}
            assert 100 << 20 < found[first][str(holder.pid)] < 1000 << 20
        finally:
            holder.terminate()
    assert reader.ask("workers") == {first: {}, second: {}}


@contextmanager
def sample(machine: simgpu.Machine, *arguments: str, under: Sequence[str] = ()) -> Iterator[int]:
    """The PID of a sample program, or of what it is started by, that has said something."""
    command = [*under, str(compile_sample()), *arguments]
    env = simgpu.environment(machine.directory)
    with subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout and process.stdout.readline()
            yield process.pid
        finally:
            process.kill()  # unshare does not heed SIGTERM


@pytest.fixture(params=sorted(nvidia_driver.read().exported))
def reader_of_release(machine: simgpu.Machine, request: pytest.FixtureRequest) -> Iterator[Reader]:
    made = Reader(machine, release=request.param)
    yield made
    made.close()


def test_a_driver_of_any_release_reports_what_the_agent_asks(
    machine: simgpu.Machine, reader_of_release: Reader
) -> None:
    reader = reader_of_release
    first, second = (card.uuid for card in machine.cards)
    assert set(reader.ask("read")) == {first, second}  # type: ignore[call-overload]
    with sample(machine, "hold", "100") as holder:
        found = reader.ask("workers")
        assert isinstance(found, dict)
        assert found[second] == {}
        assert 100 << 20 < found[first][str(holder)] < 1000 << 20
        loads = reader.ask("loads")
        assert loads == {first: {str(holder): 0}, second: {}}
    assert reader.ask("minors") == {first: 0, second: 1}


def test_what_each_process_does_on_a_card_and_what_is_free_there(
    machine: simgpu.Machine, reader: Reader
) -> None:
    first, second = (card.uuid for card in machine.cards)
    before = reader.ask("free")
    assert before == {first: 1024 << 20, second: 1024 << 20}
    with sample(machine, "busy") as busy, sample(machine, "hold", "100") as holder:

        def works() -> bool:
            found = reader.ask("loads")
            assert found[second] == {} and found[first][str(holder)] == 0  # type: ignore[index]
            return found[first][str(busy)] > 50  # type: ignore[index]

        wait_for("a sample of the work", works, PATIENCE_S, 0.05)

        def used() -> bool:
            found = reader.ask("utilization")
            assert found[second] == {} and str(holder) not in found[first]  # type: ignore[index]
            return 0.5 < found[first].get(str(busy), 0) <= 1  # type: ignore[index]

        wait_for("its part of the card's time", used, PATIENCE_S, 0.05)
        free = reader.ask("free")
        assert free[second] == before[second]  # type: ignore[index]
        assert free[first] < before[first] - (100 << 20)  # type: ignore[index]
    assert reader.ask("loads") == {first: {}, second: {}}


async def test_work_that_is_over_is_no_part_of_the_cards_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NVML has no sample of a period without work: the last one of a process that worked for a
    second and has done nothing since says that it used the whole card."""
    now = time.time_ns() // 1000
    samples = [
        SimpleNamespace(pid=500, timeStamp=now - 3_000_000, smUtil=100),
        SimpleNamespace(pid=501, timeStamp=now, smUtil=50),
    ]
    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetHandleByUUID", str)
    monkeypatch.setattr(nvml.pynvml, "nvmlDeviceGetProcessUtilization", lambda *_: samples)
    made = nvml.Nvml()
    monkeypatch.setattr(made, "_ready", True)
    assert await made.utilization("GPU-1") == {501: 0.5}
    made.close()


@pytest.mark.parametrize("foreign", [1, 2])
def test_the_agent_needs_the_nodes_pid_namespace_to_know_processes(
    machine: simgpu.Machine, reader: Reader, foreign: int
) -> None:
    """As with the chart's nodeagent.hostPID. Without it, drivers tell of nobody, or of PIDs none of
    which is a process that the agent could take for a container's."""
    first = machine.cards[0].uuid
    machine.state.set_number(0, "nvml_foreign", foreign)
    with sample(machine, "hold", "100", under=NAMESPACE) as started:
        (pid,) = Path(f"/proc/{started}/task/{started}/children").read_text().split()
        assert list(reader.ask("workers")[first]) == [pid]  # type: ignore[index, call-overload]
        assert list(reader.ask("loads")[first]) == [pid]  # type: ignore[index, call-overload]
        inside = Reader(machine, under=NAMESPACE)
        strange = inside.ask("workers")[first]  # type: ignore[index, call-overload]
        inside.close()
        assert len(strange) == foreign - 1
        assert not any(Path(f"/proc/{one}").exists() for one in strange)
