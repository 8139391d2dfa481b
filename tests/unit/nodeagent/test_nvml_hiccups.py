"""NVML that starts late, fails now and then, loses a card or has its clock set back. Its library is
played, since no simulated one fails so."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from mizar_nodeagent import nvml as module
from mizar_nodeagent.cards import GONE, UNREAD_FOR, CardInventory, ProcessLoad
from mizar_nodeagent.driver_root import NVML, load_driver
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.mig import Instance
from mizar_nodeagent.nvml import Nvml
from support.waiting import until
from unit.nodeagent.makers import card

ONE, TWO = "GPU-one", "GPU-two"
TIMEOUT = pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)


class Library:
    """`listed`: UUIDs of the cards. `silent`: those of which calls fail. `events`: faults that wait
    to be asked for. `samples`: (PID, time in us, percent). `sessions`: those that are open, of
    which only the end of the last one ends anything. `away`: whether it does not answer."""

    def __init__(self) -> None:
        self.starts = 0
        self.sessions = 0
        self.away = False
        self.listed = [ONE, TWO]
        self.silent: set[str] = set()
        self.events: list[tuple[str, int]] = []
        self.samples: list[tuple[int, int, int]] = []

    def init(self) -> None:
        self.starts += 1
        self.sessions += 1

    def shut_down(self) -> None:
        self.sessions -= 1
        if not self.sessions:
            self.events.clear()

    def count(self) -> int:
        if self.away:
            raise TIMEOUT
        return len(self.listed)

    def memory(self, uuid: str) -> Any:
        if uuid in self.silent:
            raise TIMEOUT
        return SimpleNamespace(total=1 << 30, used=0, free=1 << 30)

    def next_event(self, events: Any, patience: int) -> Any:
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        uuid, xid = self.events.pop(0)
        return SimpleNamespace(device=uuid, eventData=xid, gpuInstanceId=0xFFFFFFFF)

    def utilization(self, uuid: str, after: int) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent)
            for pid, at, percent in self.samples
            if at > after
        ]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    unsupported = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def refuse(*given: Any) -> Any:
        raise unsupported

    answers = {
        "nvmlInit": made.init,
        "nvmlShutdown": made.shut_down,
        "nvmlDeviceGetCount": made.count,
        "nvmlDeviceGetHandleByIndex": lambda index: made.listed[index],
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetUUID": lambda handle: handle,
        "nvmlDeviceGetName": lambda handle: "NVIDIA",
        "nvmlDeviceGetMinorNumber": lambda handle: made.listed.index(handle),
        "nvmlSystemGetDriverVersion": lambda: "580",
        "nvmlDeviceGetMemoryInfo": made.memory,
        "nvmlEventSetCreate": object,
        "nvmlDeviceRegisterEvents": lambda *given: None,
        "nvmlEventSetWait_v2": made.next_event,
        "nvmlDeviceGetComputeRunningProcesses_v3": lambda handle: [],
        "nvmlDeviceGetGraphicsRunningProcesses_v3": refuse,
        "nvmlDeviceGetMPSComputeRunningProcesses_v3": refuse,
        "nvmlDeviceGetProcessUtilization": made.utilization,
        "nvmlDeviceIsMigDeviceHandle": lambda handle: False,
        "nvmlDeviceGetMigMode": refuse,
        "nvmlDeviceGetMemoryAffinity": refuse,
        "nvmlDeviceGetRemappedRows": refuse,
        "nvmlDeviceGetUtilizationRates": refuse,
        "nvmlDeviceGetTemperature": refuse,
        "nvmlDeviceGetTemperatureThreshold": refuse,
        "nvmlDeviceGetNvLinkState": refuse,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return made


@pytest.fixture
def nvml(library: Library) -> Iterator[Nvml]:
    made = Nvml()
    yield made
    made.close()


async def test_a_request_for_device_nodes_waits_for_the_first_read_of_the_cards(nvml: Nvml) -> None:
    """The kubelet asks once: a refusal would fail the pod for good."""
    asked = asyncio.create_task(nvml.minors([ONE, TWO]))
    await asyncio.sleep(0)
    await nvml.read()
    assert await asked == {ONE: 0, TWO: 1}


async def test_where_nvml_does_not_start_it_is_refused(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MINORS_WITHIN_S", 0.01)
    with pytest.raises(CardsUnknown):
        await nvml.minors([ONE])


async def test_a_card_that_is_gone_for_good_has_nvml_restarted_ever_less_often(
    nvml: Nvml, library: Library
) -> None:
    await nvml.read()
    library.listed.remove(TWO)
    restarted = []
    for number in range(110):
        before = library.starts
        await nvml.read([ONE, TWO])
        if library.starts > before:
            restarted.append(number)
    assert restarted == [0, 3, 9, 21, 45, 75, 105]
    library.listed.append(TWO)
    await nvml.read([ONE, TWO])
    library.listed.remove(TWO)
    before = library.starts
    await nvml.read([ONE, TWO])
    assert library.starts == before + 1


async def test_a_read_that_fails_leaves_no_session_open(nvml: Nvml, library: Library) -> None:
    """With one, a later restart would find no card that has come back."""
    await nvml.read()
    library.away = True
    for _ in range(3):
        with pytest.raises(CardsUnknown):
            await nvml.read()
    library.away = False
    await nvml.read()
    assert library.sessions == 1


async def test_a_read_that_fails_loses_no_fault(nvml: Nvml, library: Library) -> None:
    await nvml.read()
    await nvml._run(nvml._register)
    library.events.append((ONE, 79))
    library.away = True
    with pytest.raises(CardsUnknown):
        await nvml.read()
    library.away = False
    await nvml.read()
    assert nvml._next(nvml._starts, None) == [(ONE, 79)]


async def test_a_restart_of_nvml_loses_no_fault(
    nvml: Nvml, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVENTS_EVERY_S", 0.001)
    told: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    await nvml.read()
    telling = asyncio.create_task(nvml.faults(lambda *fault: told.put_nowait(fault)))
    library.events.append((ONE, 48))
    assert await told.get() == (ONE, 48)  # from now on it listens
    telling.cancel()
    await asyncio.wait({telling})
    await nvml._run(lambda: None)  # whatever it has asked is answered
    library.events += [(ONE, 79), (TWO, 119)]
    library.listed.remove(TWO)
    nvml._keep_untold()

    def ended(events: Any, patience: int) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", ended)
    assert nvml._next(nvml._starts, None) == [(ONE, 79), (TWO, 119)]


@pytest.mark.usefixtures("library")
async def test_a_clock_that_is_set_back_hides_no_work(
    nvml: Nvml, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000.0
    monkeypatch.setattr(time, "time_ns", lambda: int(now * 1e9))
    await nvml.read()
    await nvml.loads([ONE])
    library.samples = [(7, int((now + 1) * 1e6), 80)]
    assert await nvml.loads([ONE]) == {ONE: {7: ProcessLoad(80)}}
    now -= 3600
    library.samples = []
    await nvml.loads([ONE])
    library.samples = [(7, int((now + 1) * 1e6), 90)]
    assert await nvml.loads([ONE]) == {ONE: {7: ProcessLoad(90)}}


async def test_processes_of_all_sorts_hold_memory(
    nvml: Nvml, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that renders and computes is in two of NVML's lists, with all that it holds."""
    lists = {"Compute": [(1, 10)], "Graphics": [(1, 10), (2, None)], "MPSCompute": [(3, 30)]}
    for sort, found in lists.items():
        made = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in found]
        name = f"nvmlDeviceGet{sort}RunningProcesses_v3"
        monkeypatch.setattr(pynvml, name, lambda handle, made=made: made)
    await nvml.read()
    assert await nvml.workers([ONE]) == {ONE: {1: 10, 2: 0, 3: 30}}
    found = {1: ProcessLoad(0, 10), 2: ProcessLoad(0, 0), 3: ProcessLoad(0, 30)}
    assert await nvml.loads([ONE]) == {ONE: found}


async def test_a_card_that_does_not_list_its_instances_is_unread(
    nvml: Nvml, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it had would be gone otherwise, and reset when they are listed again."""

    def fails(handle: Any, index: int) -> Any:
        raise TIMEOUT

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda handle: [handle == TWO, 0])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxMigDeviceCount", lambda handle: 7)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", fails)
    found = await nvml.read()
    assert (found[ONE].unread, found[TWO].unread) == ("", str(TIMEOUT))


async def test_a_card_of_which_nvml_tells_nothing_is_still_listed(
    nvml: Nvml, library: Library
) -> None:
    await nvml.read()
    library.silent = {TWO}
    found = await nvml.read()
    assert (found[ONE].unread, found[TWO].unread) == ("", str(TIMEOUT))
    assert library.starts == 1


class TestInventory:
    """What follows from a card that NVML lists and of which it tells nothing."""

    silent = replace(card(), unread="Timeout")

    def test_once_is_no_problem_and_twice_is_one(self) -> None:
        inventory = CardInventory()
        inventory.update({self.silent.uuid: card()})
        problems = []
        for found in (self.silent, self.silent, card()):
            inventory.update({found.uuid: found})
            problems.append(inventory.cards()[found.uuid].problem)
        assert problems == ["", "NVML reports nothing about it: Timeout", ""]

    def test_it_was_not_reset(self) -> None:
        inventory = CardInventory()
        uuid = self.silent.uuid
        inventory.update({uuid: card()})
        inventory.fault(uuid, 119)
        for found in (self.silent, card()):
            inventory.update({uuid: found})
            assert "XID 119" in inventory.cards()[uuid].problem
        for _ in range(UNREAD_FOR):
            inventory.update({})
        inventory.update({uuid: card()})
        assert inventory.cards()[uuid].problem == ""

    def test_its_instances_are_still_there(self) -> None:
        inventory = CardInventory()
        whole = self.silent.uuid
        part = replace(card(), uuid="MIG-1", instance=Instance(whole, 1, 0))
        inventory.update({whole: card(), "MIG-1": part})
        inventory.fault("MIG-1", 48)
        for _ in range(2):
            inventory.update({whole: self.silent})
        problem = inventory.cards()["MIG-1"].problem
        assert "XID 48" in problem and "reports nothing" in problem and GONE not in problem
        inventory.update({whole: card()})
        assert inventory.cards()["MIG-1"].problem == GONE


def test_a_library_that_is_being_installed_is_a_card_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / NVML).write_bytes(b"\x7fELF")
    with pytest.raises(CardsUnknown, match="cannot be loaded"):
        load_driver(tmp_path)


async def test_a_fault_whose_instance_cannot_be_found_is_the_cards(
    nvml: Nvml, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML reports it only once."""

    def fails(handle: Any, index: int) -> Any:
        raise TIMEOUT

    def next_event(events: Any, patience: int) -> Any:
        uuid, xid = library.events.pop(0) if library.events else (None, 0)
        if uuid is None:
            raise TIMEOUT
        return SimpleNamespace(device=uuid, eventData=xid, gpuInstanceId=1, computeInstanceId=0)

    await nvml.read()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda handle: [1, 1])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMaxMigDeviceCount", lambda handle: 7)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", fails)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", next_event)
    library.events = [(TWO, 48)]
    told: list[tuple[str, int]] = []
    following = asyncio.create_task(nvml.faults(lambda uuid, xid: told.append((uuid, xid))))
    try:
        await until(lambda: told)
    finally:
        following.cancel()
    assert told == [(TWO, 48)]


async def test_a_card_that_is_overlooked_once_was_not_reset(
    nvml: Nvml, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another card is gone for good, so NVML is not restarted at each card that is missing."""
    inventory = CardInventory()

    async def read() -> None:
        inventory.update(await nvml.read(inventory.expected))

    def fails(index: int) -> str:
        raise TIMEOUT

    await read()
    library.listed = [ONE]
    await read()
    inventory.fault(ONE, 48)
    with monkeypatch.context() as once:
        once.setattr(pynvml, "nvmlDeviceGetHandleByIndex", fails)
        await read()
    await read()
    assert "XID 48" in inventory.cards()[ONE].problem
