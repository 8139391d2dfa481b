"""Measures how soon a share pod runs: warm (a device is free), cold (a shadow pod is needed first),
and for comparison a pod without a device, in one run on one cluster.

A start is timed by this process, from the request to create the pod until a watch shows it with its
container running: it includes admission, scheduling, the kubelet, the runtime, and the status
update. MIZAR_BENCH_RUNS sets the number of runs (at least 60). A run that does not finish is
dropped and counted. Then follow changes of limits (limits_follow.py) and a burst on two nodes
(burst.py).
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from contextlib import aclosing

import cluster.mizar
from bench import burst, limits_follow
from bench.agent_log import durations_ms
from bench.figures import Figure, Report, figure
from cluster import Cluster, ClusterSpec
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from mizar_kube.client import KubeClient
from mizar_kube.kinds import POD, SHADOW_POD, Ref
from support import objects
from support.kube import Kube, Object, is_ready

RUNS = max(60, int(os.environ.get("MIZAR_BENCH_RUNS", "60")))
START_TIMEOUT_S = 120
WARM, COLD = "warm", "cold"
Samples = dict[str, list[float]]


def measure() -> Report:
    """Start a cluster, time the starts on it, remove it; then a burst on another one."""
    figures = _measure_starts()
    found = burst.measure()
    beside = f"bare_burst_{burst.PODS + burst.SHADOW_PODS}_two_nodes_s"
    figures += [
        figure(beside, [found.bare_s], 50, "s"),
        figure(f"burst_{burst.PODS}_two_nodes_s", [found.share_s], 50, "s", "<= 10", beside),
        figure("burst_over_bare", [found.share_s / found.bare_s], 50, "ratio", "", beside),
    ]
    return Report("start", figures, [found.course])


def _measure_starts() -> list[Figure]:
    up = LocalProvider().up(ClusterSpec(name=f"bench-{os.getpid()}"), Progress())
    try:
        cluster.mizar.install(up, Progress())
        return [*_figures(*_measure_on(up)), _follow(limits_follow.measure(up))]
    finally:
        up.down()


def _measure_on(up: Cluster) -> tuple[Samples, int, Samples]:
    """Seconds of the starts, the number of dropped runs, and the time that the agent took."""
    kube = Kube(up)
    _prepare(kube)
    starts, dropped = asyncio.run(_starts(up))
    return starts, dropped, durations_ms(kube)


def _prepare(kube: Kube) -> None:
    """Two tenants: a shadow pod of one is kept ready, a shadow pod of the other is removed at
    once."""
    for tenant, minimum, idle in ((WARM, 1, 3600), (COLD, 0, 1)):
        profile = {"devices": 2, "min": minimum, "max": 1}
        kube.apply(objects.namespace(tenant), objects.pool(tenant, idleTimeoutSeconds=idle))
        kube.apply(objects.quota(tenant, profile, pool=tenant))
        kube.wait_namespaces(tenant)


async def _starts(up: Cluster) -> tuple[Samples, int]:
    """Seconds of RUNS starts of each kind, in turn, and the number of dropped runs."""
    samples: Samples = {"bare": [], WARM: [], COLD: []}
    dropped = 0
    async with await KubeClient.connect(up.kubeconfig) as client:
        await _until(client, WARM, lambda shadows: len(shadows) == 1 and _ready(shadows[0]))
        for run in range(-1, RUNS):  # the first of each fills caches and is not counted
            for kind in samples:
                try:
                    took = await _start(client, kind, f"{kind}{run}".replace("-", "w"))
                except TimeoutError as error:
                    print(f"  a run is dropped: {error}", flush=True)
                    dropped += 1
                else:
                    samples[kind] += [took] if run >= 0 else []
            print(f"  run {run + 1} of {RUNS}: " + ", ".join(_last(samples)), flush=True)
    return samples, dropped


async def _start(client: KubeClient, kind: str, name: str) -> float:
    """Create one pod, wait until it runs, delete it, and wait until its device is free."""
    tenant = WARM if kind == "bare" else kind
    pod = objects.plain_pod if kind == "bare" else objects.share_pod
    try:
        took = await asyncio.wait_for(_timed(client, pod(tenant, name)), START_TIMEOUT_S)
    finally:
        await client.delete(Ref(POD, name, tenant), grace_seconds=0)
    await _until(client, tenant, _nobody if kind != COLD else _none)
    return took


async def _timed(client: KubeClient, pod: Object) -> float:
    tenant, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    version = (await client.list(POD, tenant)).resource_version
    begun = time.perf_counter()
    watch = client.watch(
        POD, tenant, resource_version=version, field_selector=f"metadata.name={name}"
    )
    creation = asyncio.create_task(client.create(pod))
    async with aclosing(watch):
        async for event in watch:
            if is_ready(event.object):
                break
    took = time.perf_counter() - begun
    await creation
    return took


async def _until(client: KubeClient, tenant: str, true_of: Callable[[list[Object]], bool]) -> None:
    """Wait until the condition is true of the tenant's ShadowPods."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not true_of((await client.list(SHADOW_POD, tenant)).items):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the shadow pods of {tenant} did not settle")
        await asyncio.sleep(0.1)


def _ready(shadow: Object) -> bool:
    return bool(shadow.get("status", {}).get("phase") == "Ready")


def _nobody(shadows: list[Object]) -> bool:
    devices = [one for shadow in shadows for one in shadow.get("status", {}).get("devices", [])]
    return not any(one.get("holder") for one in devices)


def _none(shadows: list[Object]) -> bool:
    return not shadows


def _last(samples: Samples) -> list[str]:
    return [f"{kind} {taken[-1]:.2f} s" for kind, taken in samples.items() if taken]


def _figures(starts: Samples, dropped: int, calls: Samples) -> list[Figure]:
    bare, warm, cold = starts["bare"], starts[WARM], starts[COLD]
    beside = "bare_pod_start_p50_s"
    return [
        figure("bare_pod_start_p50_s", bare, 50, "s"),
        figure("share_pod_start_warm_p50_s", warm, 50, "s", "", beside),
        figure("share_pod_start_warm_p95_s", warm, 95, "s", "<= 1 s", beside),
        figure("share_pod_start_cold_p50_s", cold, 50, "s", "", beside),
        figure("share_pod_start_cold_p95_s", cold, 95, "s", "<= 3 s", beside),
        figure("warm_over_bare_p50", _over(warm, bare), 50, "ratio", "<= 1.10", beside),
        figure("cold_over_bare_p50", _over(cold, bare), 50, "ratio", "<= 1.8", beside),
        figure("dropped_runs", [dropped], 50, "runs", "<= 0"),
        figure("allocate_p99_ms", calls["allocate"], 99, "ms", "<= 5 ms"),
        figure("prestart_p99_ms", calls["prestart"], 99, "ms", "<= 20 ms"),
    ]


def _follow(taken: list[float]) -> Figure:
    return figure("limits_follow_p95_s", taken, 95, "s", "<= 5 s")


def _over(samples: list[float], bare: list[float]) -> list[float]:
    """The samples divided by the median of those without a device, of the same run."""
    middle = statistics.median(bare)
    return [one / middle for one in samples]
