"""Measures the operator on a large cluster: 5,000 nodes, 40,000 cards, 10,000 share pods and 200
tenants on a real API server.

Nodes and pods exist only as objects: the scheduler, the kubelets and the node agents are simulated.
MIZAR_BENCH_SCALE=0.1 makes everything a tenth as large, to try the benchmark itself.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

from bench.figures import Figure, Report, figure
from bench.scale import process
from bench.scale.pinned import pinned
from bench.scale.population import DEVICES, Population, Size
from bench.scale.process import Operator
from cluster import ClusterSpec
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from mizar_core.names import DEFAULT_PREFIX
from mizar_core.planning import Snapshot, plan
from mizar_kube.client import KubeClient
from mizar_kube.informer import wait_synced
from mizar_kube.kinds import POD
from mizar_operator.caches import Caches
from mizar_operator.gather import Gatherer
from support.kube import Kube
from support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
SCALE = float(os.environ.get("MIZAR_BENCH_SCALE", "1"))
BURST = 1_000
QUIET_S = 60.0
STILL_S = 10.0
PLANS = 7
OTHER_DATA = 128 * 1024 * 1024
WRITES = re.compile(r"^apiserver_request_total{([^}]*)} (\S+)$", re.MULTILINE)


def measure() -> Report:
    """Start an API server, fill it, measure, and remove it."""
    full = Size()
    size = replace(
        full,
        nodes=int(full.nodes * SCALE),
        shares=int(full.shares * SCALE),
        tenants=max(20, int(full.tenants * SCALE)),
    )
    spec = ClusterSpec(name=f"bench-{os.getpid()}", cards=0, mizar=False, api_only=True)
    up = LocalProvider().up(spec, Progress())
    try:
        kube = Kube(up)
        kube.apply(ROOT / "crds")
        kube.run("wait", "--for=condition=Established", f"--filename={ROOT / 'crds'}")
        with tempfile.TemporaryDirectory() as folder:
            return Report(
                "operator", asyncio.run(_figures(kube, up.kubeconfig, size, Path(folder)))
            )
    finally:
        up.down()


async def _figures(kube: Kube, kubeconfig: Path, size: Size, folder: Path) -> list[Figure]:
    async with await KubeClient.connect(kubeconfig, timeout=60) as client:
        await _fill(client, kubeconfig, size, folder)
        with process.running(kubeconfig, folder) as operator:
            cold = await asyncio.to_thread(
                operator.wait_for, "the first plan", lambda: operator.plans()[0] >= 1
            )
            print(f"  first plan {cold:.1f} s after the start", flush=True)
            await asyncio.to_thread(_wait_quiet, operator, kube)
            quiet = await asyncio.to_thread(_quiet, operator, kube)
            print("  a quiet minute is over", flush=True)
            burst = await _burst(client, size)
            rss, peak = operator.memory_mib(), operator.memory_mib("VmHWM")
            shutdown = await asyncio.to_thread(operator.stop)
        small, large = await asyncio.to_thread(_planned_elsewhere, kubeconfig, size)
    growth = (_middle(large) / size.shares) / (_middle(small) / (size.shares // 10))
    return [
        figure("cold_start_to_plan_s", [cold], 50, "s", "<= 10"),
        figure("plan_10k_s", large, 50, "s", "<= 1"),
        figure("plan_growth", [growth], 50, "ratio", "<= 1.3", "plan of 1k, per pod"),
        figure("plan_pinned_5k_s", _timed(pinned(size)), 50, "s", "<= 2", "a pod for each node"),
        figure("rss_mib", [rss], 50, "MiB", "<= 400"),
        figure("rss_peak_mib", [peak], 50, "MiB"),
        figure("burst_1000_s", [burst], 50, "s", "<= 10"),
        figure("shutdown_s", [shutdown], 50, "s", "<= 1", "from SIGTERM, still busy"),
        figure("quiet_cpu_percent", [quiet[0]], 50, "%", "<= 1"),
        figure("quiet_writes_per_min", [quiet[1]], 50, "writes", "<= 0"),
    ]


async def _fill(client: KubeClient, kubeconfig: Path, size: Size, folder: Path) -> None:
    """Let an operator make the shadow pods. It has stopped when they get their nodes."""
    begun, population = time.monotonic(), Population(client, size)

    def said(what: str) -> None:
        print(f"  {time.monotonic() - begun:4.0f} s: {what}", flush=True)

    await population.tenants_and_nodes()
    said(f"{size.nodes} nodes and {size.tenants} tenants are there")
    await population.shares(size.shares, "share")
    said(f"{size.shares} share pods wait")
    with process.running(kubeconfig, folder):
        await _pods(client, size.shares + size.shadows)
    said(f"the operator has made {size.shadows} shadow pods")
    await population.serve_all()
    said("everybody has a device")


async def _pods(client: KubeClient, count: int) -> None:
    """Wait until there are that many pods."""
    deadline = time.monotonic() + process.PATIENCE_S
    while (found := await _count_pods(client)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found} of {count} pods in {process.PATIENCE_S:.0f} s")
        await asyncio.sleep(0.1)


async def _count_pods(client: KubeClient) -> int:
    """The number of pods. A list with one pod per page says how many remain, at little cost to the
    API server."""
    page = await client.request("GET", POD.path(), params={"limit": "1"})
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))


def _wait_quiet(operator: Operator, kube: Kube) -> None:
    """Wait until nothing has been planned or written for some seconds; events come last."""

    def quiet() -> bool:
        before = operator.plans()[0], _writes(kube)
        time.sleep(STILL_S)
        return (operator.plans()[0], _writes(kube)) == before

    wait_for("the operator being quiet", quiet, process.PATIENCE_S)


def _quiet(operator: Operator, kube: Kube) -> tuple[float, float]:
    """Returns (percent of a core, writes) in a minute in which nothing happens."""
    cpu, writes, begun = operator.cpu_s(), _writes(kube), time.monotonic()
    time.sleep(QUIET_S)
    took = time.monotonic() - begun
    return 100 * (operator.cpu_s() - cpu) / took, (_writes(kube) - writes) * 60 / took


def _writes(kube: Kube) -> float:
    """Writes to the API server, without those of its own Leases, and without dry runs."""
    page = kube.run("get", "--raw", "/metrics")
    return sum(
        float(count)
        for labels, count in WRITES.findall(page)
        if re.search(r'verb="(POST|PUT|PATCH|APPLY|DELETE)"', labels)
        and not re.search(r'"leases"|dry_run="All"', labels)
    )


async def _burst(client: KubeClient, size: Size) -> float:
    """Seconds from the creation of 1,000 share pods until all pods of their shadow pods exist."""
    before, begun = await _count_pods(client), time.monotonic()
    shadows = size.tenants * -(-(BURST // size.tenants) // DEVICES)
    creating = asyncio.create_task(Population(client, size).shares(BURST, "burst"))
    await _pods(client, before + BURST + shadows)
    await creating
    return time.monotonic() - begun


def _planned_elsewhere(kubeconfig: Path, size: Size) -> tuple[list[float], list[float]]:
    """As `_planned`, in a new process like that of an operator: the heap of this one is fragmented
    by the many objects that it has created for the cluster, which slows down large plans most."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        return other.submit(_run_planned, kubeconfig, size).result()


def _run_planned(kubeconfig: Path, size: Size) -> tuple[list[float], list[float]]:
    return asyncio.run(_planned(kubeconfig, size))


async def _planned(kubeconfig: Path, size: Size) -> tuple[list[float], list[float]]:
    """Seconds that plans take in this process, for a tenth of the cluster and for all of it."""
    async with await KubeClient.connect(kubeconfig, timeout=60) as client:
        caches = Caches(client)
        tasks = [asyncio.create_task(one.run()) for one in caches]
        await wait_synced(caches, process.PATIENCE_S)
        snapshot = await Gatherer(client, caches).gather(DEFAULT_PREFIX)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return _alternately(_tenth(snapshot, size), snapshot)


def _tenth(snapshot: Snapshot, size: Size) -> Snapshot:
    """A tenth of the tenants and nodes."""
    tenants = set(size.tenant_names()[: size.tenants // 10])
    shadows = tuple(one for one in snapshot.shadows if one.namespace in tenants)
    places = {one.on_node for one in shadows}
    others = [one for one in snapshot.nodes if one.name not in places]
    kept = [one for one in snapshot.nodes if one.name in places]
    return replace(
        snapshot,
        quotas=tuple(one for one in snapshot.quotas if one.metadata.namespace in tenants),
        shadows=shadows,
        shares=tuple(one for one in snapshot.shares if one.namespace in tenants),
        nodes=tuple([*kept, *others][: size.nodes // 10]),
    )


def _alternately(small: Snapshot, large: Snapshot) -> tuple[list[float], list[float]]:
    """Seconds that plans of both take. They take turns, ten plans of the small one for each of the
    large one, so that what else the machine does slows both down alike."""
    of_small, of_large = [], []
    for _ in range(PLANS):
        of_small += _timed(small, 10)
        of_large += _timed(large, 1)
    return of_small, of_large


def _timed(snapshot: Snapshot, plans: int = PLANS) -> list[float]:
    """Seconds that plans take which find nothing in the processor's caches: between two plans, an
    operator reads events and writes statuses. Plans of one snapshot in a row, which never happen,
    would find all of a small cluster there, and little of a large one."""
    now, taken, other_data = datetime.now(UTC), [], bytes(OTHER_DATA)
    for _ in range(plans):
        other_data.count(1)
        begun = time.perf_counter()
        plan(snapshot, now)
        taken.append(time.perf_counter() - begun)
    return taken


def _middle(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 2]
