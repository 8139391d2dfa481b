"""Measures what a pool's node policy costs the stock scheduler in a large cluster: 5,000 nodes with
10,000 shadow pods and 10,000 share pods on a real API server.

Nodes and pods exist only as objects: there is no kubelet and no node agent. A cluster is filled
with pods as the policy Scheduler has them, another with pods as Binpack has them. In each, pods are
created while no scheduler runs, and then measured from the first that gets a node to the last.
MIZAR_BENCH_SCALE=0.1 makes everything a tenth as large, to try the benchmark itself.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure, Report, figure
from bench.scale.placement import WAITING, Placement, Scheduler, scheduler
from bench.scale.population import each
from cluster import ClusterSpec
from cluster.binaries import ensure
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from mizar_kube.client import KubeClient
from mizar_kube.kinds import Object, ref_of
from support import objects
from support.waiting import wait_for

SCALE = float(os.environ.get("MIZAR_BENCH_SCALE", "1"))
NODES = int(5_000 * SCALE)
TENANTS = max(20, int(200 * SCALE))
COUNT = max(50, int(1_000 * SCALE))
LOOK_S = 0.1
PATIENCE_S = 600.0


class Rate(NamedTuple):
    """Pods that get a node in a second, and the mean time (ms) in which the scheduler
    computes the node of one."""

    per_s: float
    computing_ms: float


def measure() -> Report:
    """Measure both policies, each in an API server of its own."""
    free, packed = (_cluster(Placement(NODES, TENANTS, binpack=one)) for one in (False, True))
    return Report(
        "scheduler", [one for kind in WAITING for one in _figures(kind, free[kind], packed[kind])]
    )


def _figures(kind: str, free: Rate, packed: Rate) -> list[Figure]:
    ratio = packed.computing_ms / free.computing_ms
    return [
        figure(f"{kind}_pods_per_s", [free.per_s], 50, "pods/s"),
        figure(f"{kind}_computing_ms", [free.computing_ms], 50, "ms"),
        figure(f"{kind}_binpack_pods_per_s", [packed.per_s], 50, "pods/s"),
        figure(f"{kind}_binpack_computing_ms", [packed.computing_ms], 50, "ms"),
        figure(f"{kind}_binpack_computing_ratio", [ratio], 50, "ratio", "", f"{kind}_computing_ms"),
    ]


def _cluster(placement: Placement) -> dict[str, Rate]:
    """What a scheduler does in this cluster, by the kind of pods."""
    spec = ClusterSpec(name=f"bench-{os.getpid()}", cards=0, mizar=False, api_only=True)
    up = LocalProvider().up(spec, Progress())
    try:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(_rates(up.kubeconfig, placement, Path(folder)))
    finally:
        up.down()


async def _rates(kubeconfig: Path, placement: Placement, folder: Path) -> dict[str, Rate]:
    program, rates = ensure(Progress()).path("kube-scheduler"), {}
    async with await KubeClient.connect(kubeconfig, timeout=60) as client:
        await _fill(client, placement)
        for kind in WAITING:
            await each(client.create, placement.waiting(kind, COUNT))
            with scheduler(program, kubeconfig, folder) as process:
                rates[kind] = await asyncio.to_thread(_measure, process)
            print(f"  {kind} pods: {rates[kind]}", flush=True)
    return rates


async def _fill(client: KubeClient, placement: Placement) -> None:
    begun = time.monotonic()
    await each(client.create, map(objects.namespace, placement.tenant_names()))
    await each(partial(_add_node, client), map(placement.node, range(placement.nodes)))
    await each(client.create, placement.running())
    policy = "Binpack" if placement.binpack else "Scheduler"
    print(f"  {time.monotonic() - begun:.0f} s: nodes and pods of {policy} are there", flush=True)


async def _add_node(client: KubeClient, node: Object) -> None:
    """Creates a node without the taint that the API server gives to new ones, since there is no
    controller that removes it."""
    await client.create(node)
    await client.patch_merge(ref_of(node), {"spec": {"taints": None}})


def _measure(process: Scheduler) -> Rate:
    started = time.monotonic()
    wait_for("the first pod's node", lambda: process.placed()[0] > 0, 60, LOOK_S, process.log)
    begun, (before, _) = time.monotonic(), process.placed()
    wait_for("the last pod's node", lambda: process.placed()[0] >= COUNT, PATIENCE_S, LOOK_S)
    placed, seconds = process.placed()
    if before == COUNT:  # all of them between two looks
        begun, before = started, 0
    return Rate((placed - before) / (time.monotonic() - begun), 1000 * seconds / placed)
