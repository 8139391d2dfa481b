"""Cards that MIG divides: what CUDA, NVML, the device plugin and tests see of their instances."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import simgpu
from simgpu.device_plugin import announced, container_response, list_response
from simgpu.mig import MINORS, Profile, capabilities
from unit.simgpu.harness import Bench, compile_sample

MIB = 1 << 20
SMALL, LARGE = 4864, 9728  # MiB of 1g.5gb and 2g.10gb
CONTEXT = 300

NVML = """
import json, pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)

def refused(ask, *what):
    try:
        ask(*what)
    except n.NVMLError as error:
        return type(error).__name__.removeprefix("NVMLError_")
"""


@pytest.fixture
def divided(bench: Bench) -> Iterator[tuple[Bench, list[str]]]:
    """A machine whose first card has two instances, with their UUIDs."""
    yield bench, bench.machine.divide(bench.machine.cards[0].uuid, "1g.5gb", "2g.10gb")


def _visible(bench: Bench, *names: str) -> dict[str, str]:
    """The environment of a process that has only these device nodes."""
    folder = bench.machine.directory / "dev-of-one"
    for name in ("nvidiactl", *names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return {"SIMGPU_DEV": str(folder)}


def _nodes(bench: Bench, uuid: str) -> tuple[str, ...]:
    return next(one.nodes for one in bench.machine.health() if one.uuid == uuid)


def test_cuda_sees_the_one_instance_that_is_named(divided: tuple[Bench, list[str]]) -> None:
    bench, (small, large) = divided
    for uuid, memory in ((small, SMALL), (large, LARGE)):
        process = bench.start("hold", str(memory - CONTEXT), CUDA_VISIBLE_DEVICES=uuid)
        assert process.stdout
        assert process.stdout.readline() == "CUDA_SUCCESS\n"
    used = {one.uuid: one.used // MIB for one in bench.machine.instances}
    assert used == {small: SMALL, large: LARGE}
    again = bench.call(bench.snippets, "hold", "1", CUDA_VISIBLE_DEVICES=small)
    assert "cuDevicePrimaryCtxRetain(&context, 0) is 2" in again.stderr, "out of memory"


def test_without_its_capabilities_an_instance_is_not_seen(
    divided: tuple[Bench, list[str]],
) -> None:
    bench, (small, large) = divided
    nodes = _nodes(bench, large)
    assert nodes[0] == "nvidia0" and all(one.startswith("nvidia-caps/") for one in nodes[1:])
    process = bench.start("hold", "1", **_visible(bench, *nodes))
    assert process.stdout
    assert process.stdout.readline() == "CUDA_SUCCESS\n"
    assert [bool(one.processes) for one in bench.machine.instances] == [False, True]
    refused = bench.call(
        bench.snippets, "hold", "1", CUDA_VISIBLE_DEVICES=small, **_visible(bench, *nodes)
    )
    assert "cuInit(0) is 100" in refused.stderr, "no device"


def test_nvml_tells_of_instances(divided: tuple[Bench, list[str]]) -> None:
    bench, (small, large) = divided
    out = bench.python(
        NVML
        + """
found = []
for index in range(n.nvmlDeviceGetMaxMigDeviceCount(card)):
    try:
        one = n.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
    except n.NVMLError_NotFound:
        continue
    parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(one)
    found.append({
        "uuid": n.nvmlDeviceGetUUID(one),
        "name": n.nvmlDeviceGetName(one),
        "mib": n.nvmlDeviceGetMemoryInfo(one).total >> 20,
        "sms": n.nvmlDeviceGetAttributes(one).multiprocessorCount,
        "ids": [n.nvmlDeviceGetGpuInstanceId(one), n.nvmlDeviceGetComputeInstanceId(one)],
        "of": n.nvmlDeviceGetUUID(parent) == n.nvmlDeviceGetUUID(card),
        "refused": [refused(ask, one) for ask in (
            n.nvmlDeviceGetUtilizationRates, n.nvmlDeviceGetMinorNumber)],
    })
print(json.dumps([n.nvmlDeviceGetCount(), n.nvmlDeviceGetMigMode(card),
    refused(n.nvmlDeviceGetUtilizationRates, card), found]))"""
    )
    name = "NVIDIA A100-SXM4-40GB MIG"
    refused = ["NotSupported"] * 2
    common = {"of": True, "refused": refused}
    assert json.loads(out) == [
        2,
        [1, 1],
        "NotSupported",
        [
            {
                **{"uuid": small, "name": f"{name} 1g.5gb", "mib": SMALL, "sms": 14},
                **{"ids": [1, 0], **common},
            },
            {
                **{"uuid": large, "name": f"{name} 2g.10gb", "mib": LARGE, "sms": 28},
                **{"ids": [2, 0], **common},
            },
        ],
    ]


def test_nvml_tells_the_sizes_of_instances(divided: tuple[Bench, list[str]]) -> None:
    """As NVIDIA's container toolkit asks for them: it looks for the sizes whose IDs the instances
    have."""
    bench, _ = divided
    out = bench.python(
        NVML
        + """
def sizes(count, ask):
    found = {}
    for number in range(count):
        try:
            info = ask(number)
        except n.NVMLError_NotSupported:
            continue
        found[info.id] = info.sliceCount
    return found

found = []
for id in (1, 2):
    whole = n.nvmlDeviceGetGpuInstanceById(card, id)
    part = n.nvmlGpuInstanceGetComputeInstanceById(whole, 0)
    gpu, compute = n.nvmlGpuInstanceGetInfo(whole), n.nvmlComputeInstanceGetInfo(part)
    gpus = sizes(n.NVML_GPU_INSTANCE_PROFILE_COUNT,
        lambda number: n.nvmlDeviceGetGpuInstanceProfileInfo(card, number, version=1))
    computes = sizes(n.NVML_COMPUTE_INSTANCE_PROFILE_COUNT,
        lambda number: n.nvmlGpuInstanceGetComputeInstanceProfileInfo(whole, number, 0, version=1))
    found.append([gpu.id, gpus[gpu.profileId], compute.id, computes[compute.profileId]])
print(json.dumps([found, refused(n.nvmlDeviceGetGpuInstanceById, card, 3)]))"""
    )
    assert json.loads(out) == [[[1, 1, 0, 1], [2, 2, 0, 2]], "NotFound"]


def test_the_sample_shows_instances(divided: tuple[Bench, list[str]]) -> None:
    bench, (small, large) = divided
    shown = bench.call(compile_sample(), "smi").stdout
    assert all(one in shown for one in (small, large, bench.machine.cards[1].uuid))
    assert f"{SMALL}MiB" in shown and bench.machine.cards[0].uuid not in shown


def test_nvml_tells_whose_a_process_is(divided: tuple[Bench, list[str]]) -> None:
    bench, (_, large) = divided
    process = bench.start("hold", "100", CUDA_VISIBLE_DEVICES=large)
    assert process.stdout
    process.stdout.readline()
    out = bench.python(
        NVML
        + f"""
own = n.nvmlDeviceGetHandleByUUID({large!r})
print(json.dumps([[[one.pid, one.usedGpuMemory >> 20, one.gpuInstanceId]
    for one in n.nvmlDeviceGetComputeRunningProcesses(it)] for it in (card, own)]))"""
    )
    assert json.loads(out) == [[[process.pid, 100 + CONTEXT, 2]]] * 2


def test_an_instances_error_is_told_of_its_card(divided: tuple[Bench, list[str]]) -> None:
    bench, (_, large) = divided
    out = bench.python(
        NVML
        + f"""
import sys; sys.path.insert(0, {str(Path(simgpu.__file__).parents[1])!r})
import simgpu
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(card, n.nvmlEventTypeXidCriticalError, events)
simgpu.Machine({str(bench.machine.directory)!r}).set_health({large!r}, 48)
event = n.nvmlEventSetWait_v2(events, 1000)
print(json.dumps([n.nvmlDeviceGetUUID(event.device), event.eventData, event.gpuInstanceId]))"""
    )
    assert json.loads(out) == [bench.machine.cards[0].uuid, 48, 2]


def test_a_card_is_divided_anew_while_nobody_uses_it(divided: tuple[Bench, list[str]]) -> None:
    bench, (_, large) = divided
    machine, (card, _) = bench.machine, bench.machine.cards
    process = bench.start("hold", "1", CUDA_VISIBLE_DEVICES=large)
    assert process.stdout
    process.stdout.readline()
    with pytest.raises(ValueError, match=f"{large} is in use"):
        machine.divide(card.uuid)
    process.kill()
    process.wait()
    again = machine.divide(card.uuid, "1g.5gb", "1g.5gb", "1g.5gb")
    assert [one.uuid for one in machine.instances] == again
    assert machine.divide(card.uuid) == [] and machine.instances == []
    assert bench.start("hold", "15000").stdout.readline() == "CUDA_SUCCESS\n"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("profiles", "why"),
    [(["1g"], "no MIG profile"), (["4g.5gb", "4g.5gb"], "7 slices"), (["1g.80gb"], "16384 MiB")],
)
def test_what_cannot_be_divided(bench: Bench, profiles: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        bench.machine.divide(bench.machine.cards[0].uuid, *profiles)


def test_the_plugin_announces_instances_by_strategy(divided: tuple[Bench, list[str]]) -> None:
    bench, (small, large) = divided
    machine, (card, other) = bench.machine, bench.machine.cards

    def told(strategy: str) -> dict[str, list[str]]:
        found = announced(machine.health(), strategy)  # type: ignore[arg-type]
        return {name: [one.uuid for one in devices] for name, devices in found.items()}

    assert told("none") == {"nvidia.com/gpu": [card.uuid, other.uuid]}
    assert told("mixed") == {
        "nvidia.com/gpu": [other.uuid],
        "nvidia.com/mig-1g.5gb": [small],
        "nvidia.com/mig-2g.10gb": [large],
    }
    assert told("single") == {"nvidia.com/gpu": []}, "they are not alike"
    machine.divide(card.uuid, "1g.5gb")
    machine.divide(other.uuid, "1g.5gb")
    assert told("single") == {"nvidia.com/gpu": [one.uuid for one in machine.instances]}


def test_what_a_container_gets_for_an_instance(divided: tuple[Bench, list[str]]) -> None:
    bench, (small, _) = divided
    machine = bench.machine
    machine.set_numa(machine.cards[0].uuid, 1)
    machine.set_health(machine.cards[0].uuid, 79)
    devices = announced(machine.health(), "mixed")["nvidia.com/mig-1g.5gb"]
    (told,) = list_response(devices).devices
    assert (told.ID, told.health) == (small, "Unhealthy"), "its card is"
    assert [node.ID for node in told.topology.nodes] == [1]
    response = container_response(machine.directory, devices, [small])
    gpu, compute = capabilities(0, 1, 0)
    assert [one.container_path for one in response.devices] == [
        "/dev/nvidia0",
        f"/dev/nvidia-caps/nvidia-cap{gpu}",
        f"/dev/nvidia-caps/nvidia-cap{compute}",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]
    assert all(Path(one.host_path).exists() for one in response.devices)
    assert f"gpu0/gi1/ci0/access {compute}\n" in (machine.directory / MINORS).read_text()


def test_sizes_are_as_on_an_a100() -> None:
    sizes = {name: Profile.parse(name) for name in ("1g.5gb", "3g.20gb", "1g.10gb")}
    assert [one.memory_bytes // MIB for one in sizes.values()] == [4864, 19456, 9728]
    assert [one.sms(108) for one in sizes.values()] == [14, 42, 14]
