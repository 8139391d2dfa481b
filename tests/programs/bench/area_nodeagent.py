"""Measures the node agent on a node of 16 simulated cards: the real process over real gRPC, with a
simulated kubelet and API server.

Answers are timed as the kubelet waits for them. The machine's part in that time is measured by
calls to a gRPC server that only answers. MIZAR_BENCH_RUNS sets the number of containers that are
started (at least 500).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc

from bench.figures import Figure, Report, figure
from bench.node.busy import busy
from bench.node.lent import lend_all
from bench.node.node import CARDS, ROOT, TENANT, Node, node, until
from mizar_core.names import SPOT_RESOURCE
from mizar_nodeagent.proto import deviceplugin_pb2 as pb
from mizar_nodeagent.proto import deviceplugin_pb2_grpc as rpc
from unit.nodeagent.fake_kubelet import KubePod

RUNS = max(500, int(os.environ.get("MIZAR_BENCH_RUNS", "500")))
DEVICES = 16
STORM = 100
STORMS = max(5, RUNS // STORM)
HELD = 64
MANY = 2000
REBOOTS = 5
QUIET_S = 20.0
REST_S = 0.2
"""Seconds between two containers that come one at a time."""
BARE = "bare_grpc_call_p99_ms"


def measure() -> Report:
    """All figures, in one run: on one node for calls, and on another for the long list."""
    subprocess.run(["make", "--silent", "-C", str(ROOT / "shim")], check=True)
    return Report("nodeagent", asyncio.run(_figures()))


async def _figures() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="mizar-bench-") as folder:
        bare = await _bare_calls(Path(folder))
        found = await _of_calls(Path(folder), bare)
    with tempfile.TemporaryDirectory(prefix="mizar-bench-") as folder:
        found.append(await _of_lent_cards(Path(folder)))
    with tempfile.TemporaryDirectory(prefix="mizar-bench-") as folder:
        return [*found, await _of_a_long_list(Path(folder))]


async def _of_calls(folder: Path, bare: list[float]) -> list[Figure]:
    async with node(folder) as made:
        resource = await _served(made)
        idle = await made.agent.cpu_percent(QUIET_S)
        _said(f"idle: {idle:.2f} % of a CPU")
        working = await _busy_percent(made, resource)
        alone = await _one_by_one(made, resource, REST_S)
        in_a_row = await _one_by_one(made, resource, 0)
        storm = await _storms(made, resource)
        pods = await _hold(made, resource, CARDS * DEVICES)
        memory = made.agent.memory_mib()
        for pod in pods:
            made.remove(pod)
        reboots = [await _reboot(made) for _ in range(REBOOTS)]
    return [
        figure(BARE, bare, 99, "ms"),
        figure("allocate_p99_ms", alone["Allocate"], 99, "ms", "<= 5", BARE),
        figure("allocate_in_a_row_p99_ms", in_a_row["Allocate"], 99, "ms", "", BARE),
        figure("allocate_storm_p99_ms", storm["Allocate"], 99, "ms", "<= 5", BARE),
        figure("prestart_p99_ms", alone["PreStartContainer"], 99, "ms", "<= 20", BARE),
        figure("prestart_in_a_row_p99_ms", in_a_row["PreStartContainer"], 99, "ms", "", BARE),
        figure("prestart_storm_p99_ms", storm["PreStartContainer"], 99, "ms", "", BARE),
        figure("rss_mib", [memory], 50, "MiB", "<= 120"),
        figure("idle_cpu_percent", [idle], 50, "%", "<= 1"),
        figure("cpu_64_busy_containers_percent", [working], 50, "%", "<= 5"),
        figure("reboot_to_ready_s", reboots, 50, "s", "<= 5"),
    ]


async def _served(made: Node) -> str:
    made.start_agent()
    await made.agent.wait_ready()
    resources = {made.add_shadow(DEVICES) for _ in range(CARDS)}
    await until(made.is_serving, "the shadow pods to serve")
    return resources.pop()


async def _busy_percent(made: Node, resource: str) -> float:
    """Percent of a CPU that the agent uses while HELD containers work. It is measured before the
    storms, since the agent keeps the files of ended containers for two minutes and reads them as
    well."""
    pods = await _hold(made, resource, HELD)
    async with busy(_usage_files(made)):
        await asyncio.sleep(2)
        working = await made.agent.cpu_percent(QUIET_S)
    _said(f"{HELD} busy containers: {working:.2f} % of a CPU")
    for pod in pods:
        made.remove(pod)
    return working


async def _of_lent_cards(folder: Path) -> Figure:
    """Percent of a CPU that the agent uses while all cards are lent to borrowers that work. In
    AREA=spot, real programs and a kubelet work on the same processors."""
    async with node(folder) as made, busy(await lend_all(made)):
        await asyncio.sleep(2)
        used = await made.agent.cpu_percent(QUIET_S)
        if len(made.kubelet.healthy(SPOT_RESOURCE)) < CARDS:
            raise RuntimeError("a card was taken back, though no owner works")
    _said(f"{CARDS} lent cards: {used:.2f} % of a CPU")
    return figure(f"cpu_{CARDS}_lent_cards_percent", [used], 50, "%")


async def _one_by_one(made: Node, resource: str, rest: float) -> dict[str, list[float]]:
    """Containers one after the other; each is removed `rest` seconds before the next comes. Without
    a rest, the agent still handles the removal of a pod when it is asked about the next one."""
    made.kubelet.forget()
    for _ in range(RUNS):
        (pod,) = made.pods(1, resource)
        await asyncio.sleep(rest)
        await made.admit(pod, resource)
        await made.start(pod, resource)
        made.remove(pod)
    _said(f"{RUNS} containers, {rest:g} s apart")
    return dict(made.kubelet.waited_ms)


async def _storms(made: Node, resource: str) -> dict[str, list[float]]:
    """STORM pods at once: the kubelet admits one after the other, and those admitted start
    concurrently."""
    made.kubelet.forget()
    for _ in range(STORMS):
        pods = await _hold(made, resource, STORM)
        for pod in pods:
            made.remove(pod)
    _said(f"{STORMS} storms of {STORM} pods")
    found = dict(made.kubelet.waited_ms)
    made.kubelet.forget()  # the pods that come next are more at once
    return found


async def _hold(made: Node, resource: str, count: int) -> list[KubePod]:
    pods = made.pods(count, resource)
    starting = []
    for pod in pods:
        await made.admit(pod, resource)
        starting.append(asyncio.create_task(_started(made, pod, resource)))
    await asyncio.gather(*starting)
    return pods


async def _started(made: Node, pod: KubePod, resource: str) -> None:
    await made.start(pod, resource)


def _usage_files(made: Node) -> list[Path]:
    """The usage files of all containers that hold devices now."""
    mounts = (one for held in made.kubelet.allocated.values() for one in held.answer.mounts)
    return [Path(one.host_path) for one in mounts if one.container_path == "/run/mizar/usage"]


async def _reboot(made: Node) -> float:
    """Seconds from the agent's start after a boot of the node until it offers all devices."""
    await made.agent.stop(kill=True)
    for key, shadow in made.api.shadows.items():
        assert key[0] == TENANT
        shadow["status"] = {}
    made.pretend_reboot()
    made.start_agent()
    return await until(made.is_serving, "the devices after a boot") - made.agent.begun


async def _of_a_long_list(folder: Path) -> Figure:
    """Milliseconds from the arrival of a shadow pod until the kubelet has the list with its
    devices, with MANY shadow pods in all."""
    each, taken = MANY // CARDS, []
    async with node(folder) as made:
        made.start_agent()
        await made.agent.wait_ready()
        for number in range(CARDS):
            began = time.monotonic()
            resource = made.add_shadow(each)
            devices = (number + 1) * each
            at = await until(
                lambda: len(made.kubelet.healthy(resource)) == devices,  # noqa: B023
                f"a list of {devices} devices",
            )
            taken.append((at - began) * 1000)
            await until(made.is_serving, "the shadow pod to serve")
    return figure(f"list_update_{MANY}_devices_ms", taken[-3:], 50, "ms", "<= 50")


async def _bare_calls(folder: Path) -> list[float]:
    """Milliseconds of calls to a server in another process that only answers."""
    socket = folder / "bare.sock"
    script = Path(__file__).parent / "node" / "bare_server.py"
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), str(socket))
    try:
        await until(socket.exists, "the bare server")
        async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
            stub, taken = rpc.DevicePluginStub(channel), list[float]()  # type: ignore[no-untyped-call]
            for _ in range(RUNS):
                began = time.perf_counter()
                await stub.GetDevicePluginOptions(pb.Empty())
                taken.append((time.perf_counter() - began) * 1000)
            return taken[10:]
    finally:
        process.terminate()
        await process.wait()


def _said(what: str) -> None:
    print(f"  {what}; load {os.getloadavg()[0]:.1f}", flush=True)
