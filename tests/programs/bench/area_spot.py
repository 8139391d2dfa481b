"""Measures the effect of lending on the owners of cards, and how much of an idle card is lent.

Sixteen cards on one node are each owned by a pod that sleeps with memory on its card. For each card
there is a borrower at full load: it takes all memory that it can get, and always has two kernels of
2 ms in flight.

Owners are woken one after another, WAKINGS times each. A woken owner works for a second beside its
borrower, and soon after for a second alone, with which the first is compared. Owners record the
times themselves. The borrowers are observed every half of a millisecond: how much work the card has
done for them, and whether a process of theirs exists. Meanwhile all cards are recorded ten times a
second: whether the kubelet sees them as lendable, and whether they are lent, which means that a
process other than the owner's is there.

This is harsher than real use: each owner wakes every minute and a half. A card that was taken back
more than once in ten minutes must rest longer than its idle time, so only the first RESTED_LATE
wakings show how soon it is lendable; all of them show how much it is lent.

In the end, two of the owners are replaced by owners that hold whole cards, without the shim, whose
work only NVML shows. They are woken in the same way.

The pods have priority over other programs on this machine, and the node agent has the processor
time that the chart's values request. How much longer the owner waited for a processor in its first
second than in the other one is a figure of its own: that part of the slowdown is caused by the
machine, on which sixteen borrowers and a cluster may share two processors.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

import cluster.mizar
from bench.figures import ROOT, Figure, Report, figure
from bench.precedence import give_pods_precedence, give_precedence
from bench.spot import stage, waking
from bench.spot.recorder import Recorder
from bench.spot.stage import CARDS, IDLE_AFTER_S, Owner, Stage
from bench.spot.timeline import Look, Sleep, lendable_after, lent_percent
from bench.spot.waking import Waking
from cluster import Cluster, ClusterSpec
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from simgpu.machine import Machine

WAKINGS = 3
PACE_S = 6.0
"""Seconds between the wakings of two owners."""
RESTED_LATE = 2
CPU_S = 20.0
"""Seconds for which the agent's CPU time is measured."""


def measure() -> Report:
    """Start a cluster, wake its owners, and remove it."""
    subprocess.run(["make", "-s", "-C", ROOT / "shim", stage.PROGRAM], check=True)
    spec = ClusterSpec(name=f"bench-{os.getpid()}", cards=CARDS)
    up = LocalProvider().up(spec, Progress())
    try:
        _install(up)
        give_pods_precedence(up.name)
        with Stage(up) as scene:
            return _measure_on(scene)
    finally:
        up.down()


def _install(up: Cluster) -> None:
    """Install with the requests that the chart has for its programs, which the local values
    omit."""
    values = yaml.safe_load(cluster.mizar.LOCAL_VALUES.read_text())
    for part in ("operator", "webhook", "nodeagent"):
        del values[part]["resources"]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(values, file)
        file.flush()
        cluster.mizar.install(up, Progress(), Path(file.name))


def _measure_on(scene: Stage) -> Report:
    owners = scene.owners()
    give_precedence(os.getpid())
    recorder = Recorder(scene.node, owners)
    with Machine(scene.node.simgpu_dir) as machine:
        alone = {one.uuid: waking.woken_alone(one) for one in owners}
        asleep = _agent_percent(scene)
        scene.borrow()
        for one in owners:
            waking.wait_lent(one, machine)
        print("  all cards are lent", flush=True)
        busy, began = _agent_percent(scene), time.monotonic()
        wakings = list(_wakings(owners, machine))
        looks, failures = recorder.stop(), scene.failures()
        unshimmed = list(_wakings_without_shim(scene, machine))
    slept = [(uuid, one.ended_s) for uuid, one in alone.items()]
    slept += [(one.owner.uuid, one.alone.ended_s) for one in wakings[: RESTED_LATE * CARDS]]
    cards = [(looks[one.uuid], _sleeps(one, wakings, began)) for one in owners]
    return Report(
        "spot",
        [
            *_of_wakings(wakings),
            *_of_wakings_without_shim(unshimmed),
            _lendable(slept, looks),
            figure("lent_share_percent", [lent_percent(cards, IDLE_AFTER_S)], 50, "%", ">= 95 %"),
            figure("agent_cpu_percent", [busy], 50, "%", "<= 2 %"),
            figure("agent_cpu_nothing_lent_percent", [asleep], 50, "%"),
        ],
        unmeasured=[f"an owner that failed: {one}" for one in failures],
    )


def _agent_percent(scene: Stage) -> float:
    """Percent of a core that the node agent uses."""
    before, began = scene.agent_cpu_s(), time.monotonic()
    time.sleep(CPU_S)
    return 100 * (scene.agent_cpu_s() - before) / (time.monotonic() - began)


def _wakings(owners: Sequence[Owner], machine: Machine) -> Iterator[Waking]:
    for number in range(WAKINGS):
        for one in owners:
            due = time.monotonic() + PACE_S
            waking.wait_lent(one, machine)
            found = waking.woken(one, machine, 1 + 2 * number)
            yield found
            print(f"  {found}", flush=True)
            time.sleep(max(0.0, due - time.monotonic()))


def _wakings_without_shim(scene: Stage, machine: Machine) -> Iterator[Waking]:
    owners = scene.owners_without_shim()
    for one in owners:
        waking.woken_alone(one)
    yield from _wakings(owners, machine)


def _of_wakings_without_shim(wakings: Sequence[Waking]) -> list[Figure]:
    paused, free = [one.paused_ms for one in wakings], [one.free_ms for one in wakings]
    return [
        figure("owner_without_shim_wake_to_paused_ms_p95", paused, 95, "ms"),
        figure("owner_without_shim_wake_to_card_free_ms_p95", free, 95, "ms"),
    ]


def _of_wakings(wakings: Sequence[Waking]) -> list[Figure]:
    paused, free = [one.paused_ms for one in wakings], [one.free_ms for one in wakings]
    slower = [one.slowdown_percent for one in wakings]
    waits = [one.waited_percent for one in wakings]
    waited = figure("owner_first_second_cpu_wait_percent", waits, 50, "%")
    return [
        figure("owner_wake_to_paused_ms_p95", paused, 95, "ms", "<= 20 ms"),
        figure("owner_wake_to_paused_ms_p50", paused, 50, "ms"),
        figure("owner_wake_to_card_free_ms_p95", free, 95, "ms", "<= 500 ms"),
        figure("owner_wake_to_card_free_ms_p50", free, 50, "ms"),
        figure("owner_first_second_slowdown_percent", slower, 50, "%", "<= 10 %", waited.name),
        waited,
    ]


def _lendable(slept: Sequence[tuple[str, float]], looks: dict[str, list[Look]]) -> Figure:
    """`slept`: the cards whose owners fell asleep, and when."""
    found = [lendable_after(looks[uuid], began) for uuid, began in slept]
    taken = [one for one in found if one is not None]
    return figure("idle_to_lendable_s_p95", taken, 95, "s", f"<= {IDLE_AFTER_S + 1} s")


def _sleeps(owner: Owner, wakings: Sequence[Waking], began: float) -> list[Sleep]:
    """The owner's sleeps from `began` until its last waking."""
    found = []
    for one in (each for each in wakings if each.owner == owner):
        found.append(Sleep(began, one.beside.woke / 1e9))
        began = one.alone.ended / 1e9
    return found
