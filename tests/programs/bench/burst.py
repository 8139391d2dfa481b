"""A burst: 40 share pods at once on two nodes with twelve cards each, of which Mizar holds none
yet.

For comparison, as many pods without a device as the burst has share pods and shadow pods together,
which shows the machine's own time.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import cluster.mizar
from bench.agent_log import answers
from bench.figures import Details
from cluster import ClusterSpec
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from mizar_core.names import LABEL_SHADOW_POD
from mizar_kube.client import KubeClient
from mizar_kube.kinds import POD
from support import objects
from support.kube import Kube, Object, is_ready
from support.waiting import wait_for

PODS, NODES, CARDS = 40, 2, 12
DEVICES = 8
"""Devices of a shadow pod, spread over CARDS_EACH cards."""
CARDS_EACH = 4
SHADOW_PODS = PODS // DEVICES
TENANT, BARE = "burst", "bare"
LIMIT_S = 300


@dataclass(frozen=True)
class Burst:
    """Seconds until all pods run, and the times of the steps in between. `bare_s`: the same for as
    many plain pods as there are share pods and shadow pods."""

    share_s: float
    bare_s: float
    course: Details


def measure() -> Burst:
    """Start a cluster of two nodes, time the bursts on it, and remove it."""
    spec = ClusterSpec(name=f"bench-{os.getpid()}", nodes=NODES, cards=CARDS)
    up = LocalProvider().up(spec, Progress())
    try:
        cluster.mizar.install(up, Progress())
        kube = Kube(up)
        _prepare(kube)
        bare_s, _ = asyncio.run(_burst(up.kubeconfig, BARE, PODS + SHADOW_PODS))
        kube.run("delete", "pods", "--all", f"--namespace={BARE}", "--grace-period=1")
        wait_for("the plain pods to go", lambda: not kube.all("pods", BARE))
        share_s, begun = asyncio.run(_burst(up.kubeconfig, TENANT, PODS))
        return Burst(share_s, bare_s, _course(kube, begun))
    finally:
        up.down()


def _prepare(kube: Kube) -> None:
    profiles = [{"devices": DEVICES, "cards": CARDS_EACH}]
    kube.apply(objects.namespace(TENANT), objects.namespace(BARE))
    kube.apply(objects.pool(TENANT, profiles=profiles))
    profile = {"devices": DEVICES, "min": 0, "max": SHADOW_PODS}
    kube.apply(objects.quota(TENANT, profile, pool=TENANT))
    kube.wait_namespaces(TENANT, BARE)


async def _burst(kubeconfig: Path, tenant: str, count: int) -> tuple[float, float]:
    """Returns (seconds until all pods run, when it began in seconds since the epoch)."""
    names = [f"burst-{number}" for number in range(count)]
    async with await KubeClient.connect(kubeconfig) as client:
        version = (await client.list(POD, tenant)).resource_version
        begun, at = time.perf_counter(), time.time()
        creating = asyncio.gather(*(client.create(_pod(tenant, name)) for name in names))
        async with asyncio.timeout(LIMIT_S):
            await _all_run(client, tenant, version, set(names))
        await creating
        return time.perf_counter() - begun, at


def _pod(tenant: str, name: str) -> Object:
    if tenant == BARE:
        return objects.plain_pod(tenant, name)
    return objects.share_pod(tenant, name, f"mizar.share/gpu.{DEVICES}")


async def _all_run(client: KubeClient, tenant: str, version: str, left: set[str]) -> None:
    async with aclosing(client.watch(POD, tenant, resource_version=version)) as watch:
        async for event in watch:
            if is_ready(event.object):
                left.discard(event.object["metadata"]["name"])
            if not left:
                return


def _course(kube: Kube, begun: float) -> Details:
    """When the first, the middle and the last of each step was done."""
    pods = kube.all("pods", TENANT)
    shadows = [one for one in pods if LABEL_SHADOW_POD in one["metadata"].get("labels", {})]
    shares = [one for one in pods if one not in shadows]
    log = answers(kube)
    steps = {
        "shadow pod created": [_at(one["metadata"]["creationTimestamp"]) for one in shadows],
        "shadow pod placed": [_condition(one, "PodScheduled") for one in shadows],
        "shadow pod runs": [_condition(one, "Ready") for one in shadows],
        "share pod placed": [_condition(one, "PodScheduled") for one in shares],
        "share pod at the kubelet": [_at(one["status"]["startTime"]) for one in shares],
        "Allocate answered": log.get("allocate", []),
        "PreStartContainer answered": log.get("prestart", []),
        "share pod runs": [_condition(one, "Ready") for one in shares],
    }
    return Details(
        f"course of a burst of {PODS} share pods: seconds since it began",
        ("step", "count", "first", "middle", "last"),
        [(name, str(len(at)), *_spread(at, begun)) for name, at in steps.items()],
    )


def _spread(at: list[float], begun: float) -> tuple[str, str, str]:
    ordered = sorted(one - begun for one in at)
    if not ordered:
        return "", "", ""
    first, middle, last = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    return f"{first:.1f}", f"{middle:.1f}", f"{last:.1f}"


def _condition(pod: Object, kind: str) -> float:
    found = next(one for one in pod["status"]["conditions"] if one["type"] == kind)
    return _at(found["lastTransitionTime"])


def _at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
