"""Measures how soon the limits of a running container follow its pool: from the request to change
the pool until the file that the container's shim reads has the new limit."""

import asyncio
import time
from pathlib import Path

from cluster import Cluster
from mizar_kube.client import KubeClient
from mizar_kube.kinds import GPU_POOL, Ref
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.regions import limits_file
from support import objects
from support.kube import Kube, Object

TENANT, POD = "follows", "a"
CHANGES = 20
MEMORY_MIB = (4096, 5120)
"""The profile's memory, in turn."""
TIMEOUT_S = 60.0


def measure(up: Cluster) -> list[float]:
    """Seconds that each of CHANGES took. Raises TimeoutError for one that took too long."""
    kube = Kube(up)
    profile = {"devices": 2, "min": 0, "max": 1}
    kube.apply(objects.namespace(TENANT), objects.pool(TENANT, **_with_memory(MEMORY_MIB[-1])))
    kube.apply(objects.quota(TENANT, profile, pool=TENANT))
    kube.wait_namespaces(TENANT)
    kube.apply(objects.share_pod(TENANT, POD))
    kube.wait_running(TENANT, POD)
    path = _limits_of(up)
    return asyncio.run(_changes(up, path))


def _with_memory(mib: int) -> Object:
    return {"profiles": [{"devices": 2, "cards": 1, "memory": f"{mib}Mi"}]}


def _limits_of(up: Cluster) -> Path:
    """The limits file of the pod's container, on its node."""
    folders = (node.path("/var/lib/mizar") for node in up.nodes)
    files = (path for folder in folders for path in folder.glob("slots/*/limits"))
    (found,) = (one for one in files if limits_file.read(one).pod_namespace == TENANT.encode())
    return found


async def _changes(up: Cluster, path: Path) -> list[float]:
    async with await KubeClient.connect(up.kubeconfig) as client:
        return [await _timed(client, path, MEMORY_MIB[at % 2]) for at in range(CHANGES)]


async def _timed(client: KubeClient, path: Path, mib: int) -> float:
    begun = time.perf_counter()
    await client.patch_merge(Ref(GPU_POOL, TENANT), {"spec": _with_memory(mib)})
    while not _has(path, mib):
        if time.perf_counter() - begun > TIMEOUT_S:
            raise TimeoutError(f"{path} has no limit of {mib} MiB after {TIMEOUT_S:g} s")
        await asyncio.sleep(0.005)
    return time.perf_counter() - begun


def _has(path: Path, mib: int) -> bool:
    try:
        limits = limits_file.card_limits(limits_file.read(path))
    except RegionDamaged:  # the file is being written
        return False
    return [one.memory_bytes for one in limits] == [mib << 20]
