"""The cluster with its sixteen owners and their borrowers."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.figures import ROOT
from cluster.cluster import Cluster
from simgpu.machine import Machine
from support import objects
from support.kube import Kube, Object
from support.waiting import wait_for

OWNERS, BORROWERS = "owners", "borrowers"
CARDS = 16
IDLE_AFTER_S = 2
UNSHIMMED = 2
"""Owners without the shim, which take the places of as many others at the end."""
WAITING = 2
"""Borrowers beyond the number of cards, so that one always waits."""
FOLDER = f"/opt/mizar-bench-{os.getpid()}"
"""A folder that the node shares with this machine. The pods see it as /bench."""
PROGRAM = ROOT / "build" / "shim" / "bench" / "spot"


@dataclass(frozen=True)
class Record:
    """One line written by bench/workloads/spot.c: ns of CLOCK_MONOTONIC, and kernels in a
    second."""

    woke: int
    first_done: int
    ended: int
    kernels: int

    @property
    def ended_s(self) -> float:
        """When its work ended, in seconds."""
        return self.ended / 1e9


@dataclass(frozen=True)
class Owner:
    """An owner's pod with its card: the card's index on the node and UUID, and the owner's PID as
    the host sees it. A byte written to `wake` wakes it. `records`: one for each waking."""

    pod: str
    card: int
    uuid: str
    pid: int
    wake: Path
    records: Path

    def record(self, number: int) -> Record | None:
        """The record of its waking with that number, from 0 on; None until it is written."""
        lines = self.records.read_text().split("\n")[:-1]
        return Record(*map(int, lines[number].split())) if number < len(lines) else None


class Stage:
    """Puts the pods onto the cluster's only node. A context manager: it leaves nothing on this
    machine."""

    def __init__(self, up: Cluster) -> None:
        (self.node,) = up.nodes
        self.kube = Kube(up)
        self._folder = self.node.path(FOLDER)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        self._folder.chmod(0o777)
        shutil.copy(PROGRAM, self._folder / PROGRAM.name)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)

    def owners(self) -> list[Owner]:
        """Sixteen sleeping owners, each with a card that it agreed to lend, in random order."""
        kube, spot = self.kube, {"enabled": True, "idleAfterSeconds": IDLE_AFTER_S}
        profile = {"devices": 1, "cards": 1}
        kube.apply(objects.pool("lent", profiles=[profile], spot=spot))
        for tenant, cards in ((OWNERS, CARDS), (BORROWERS, 0)):
            kube.apply(objects.namespace(tenant))
            kube.wait_namespaces(tenant)
            most = {"devices": 1, "min": 0, "max": cards}
            borrows = {"spot": {"max": CARDS + WAITING}} if tenant == BORROWERS else {}
            kube.apply(objects.quota(tenant, most, pool="lent", **borrows))
        names = [f"owner-{number}" for number in range(CARDS)]
        kube.apply(*(self._owner(name, "mizar.share/gpu.1") for name in names))
        kube.wait_running(OWNERS, *names)
        held = wait_for("the owners on their cards", self._cards)
        found = [self._found(name, held[name]) for name in names]
        random.Random(os.getpid()).shuffle(found)
        return found

    def owners_without_shim(self) -> list[Owner]:
        """Sleeping owners that hold whole cards, in place of as many of the others."""
        left = {"devices": 1, "min": 0, "max": CARDS - UNSHIMMED}
        self.kube.apply(objects.quota(OWNERS, left, pool="lent"))
        for number in range(UNSHIMMED):
            self.kube.delete("pod", f"owner-{number}", OWNERS)
        names = [f"whole-{number}" for number in range(UNSHIMMED)]
        self.kube.apply(*(self._owner(name, "nvidia.com/gpu") for name in names))
        self.kube.wait_running(OWNERS, *names)
        return [self._found_with_its_card(name) for name in names]

    def borrow(self) -> None:
        """Have every card borrowed as soon as it is lendable."""
        made = objects.deployment(BORROWERS, "train", "mizar.spot/gpu", CARDS + WAITING)
        _run(made["spec"]["template"]["spec"], "borrow")
        self.kube.apply(made)

    def failures(self) -> list[str]:
        """Owners' pods that ended or were restarted."""
        states = {
            one["metadata"]["name"]: (one["status"]["phase"], _restarts(one))
            for one in self.kube.all("pods", OWNERS, objects.SHARE_PODS)
        }
        return [f"{name}: {state}" for name, state in states.items() if state != ("Running", 0)]

    def agent_cpu_s(self) -> float:
        """CPU seconds used by the node agent."""
        (pod,) = self.kube.all("pods", "mizar-system", "app.kubernetes.io/component=nodeagent")
        return sum(map(_cpu_s, _processes_of(pod["metadata"]["uid"])))

    def _owner(self, name: str, resource: str) -> Object:
        wake, records = self._files(name)
        os.mkfifo(wake)
        records.touch()
        for one in (wake, records):
            one.chmod(0o666)
        pod = objects.share_pod(OWNERS, name, resource)
        pod["metadata"]["annotations"] = {"mizar.share/low-power": "true"}
        _run(pod["spec"], "own", f"/bench/{wake.name}", f"/bench/{records.name}")
        return pod

    def _files(self, name: str) -> tuple[Path, Path]:
        return self._folder / f"{name}.wake", self._folder / f"{name}.records"

    def _cards(self) -> dict[str, str] | None:
        """UUID of each owner's card, by the owner's name."""
        held = {
            device["holder"]["name"]: device["card"]
            for shadow in self.kube.all("shadowpods", OWNERS)
            for device in shadow.get("status", {}).get("devices", [])
            if device.get("holder")
        }
        return held if len(held) == CARDS else None

    def _found_with_its_card(self, name: str) -> Owner:
        """An owner whose card no shadow pod tells, and which may be lent already."""
        uid = (self.kube.get("pod", name, OWNERS) or {})["metadata"]["uid"]
        with Machine(self.node.simgpu_dir) as machine:

            def found() -> Owner | None:
                pids = set(_processes_of(uid))
                for card in machine.cards:
                    for pid in pids & _pids(machine, card.index):
                        return Owner(name, card.index, card.uuid, pid, *self._files(name))
                return None

            return wait_for(f"{name} on its card", found)

    def _found(self, name: str, uuid: str) -> Owner:
        with Machine(self.node.simgpu_dir) as machine:
            index = machine.card(uuid).index
            # The agent may be measuring what a context costs at this moment.
            (pid,) = wait_for(f"{name} alone on its card", lambda: _alone(machine, index))
        return Owner(name, index, uuid, pid, *self._files(name))


def _processes_of(pod_uid: str) -> list[int]:
    """The pod's processes, by their PIDs on the host."""
    return [
        int(one.parent.name) for one in Path("/proc").glob("[0-9]*/cgroup") if pod_uid in _read(one)
    ]


def _cpu_s(pid: int) -> float:
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _read(path: Path) -> str:
    """Returns an empty text if the process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _run(spec: Object, *arguments: str) -> None:
    """Run our program in a pod's container."""
    (container,) = spec["containers"]
    container["command"] = ["/bench/spot", *arguments]
    container["volumeMounts"] = [{"name": "bench", "mountPath": "/bench"}]
    spec["volumes"] = [{"name": "bench", "hostPath": {"path": FOLDER, "type": "Directory"}}]


def _alone(machine: Machine, card: int) -> list[int] | None:
    """The PID of the process on the card if it is the only one."""
    pids = _pids(machine, card)
    return [*pids] if len(pids) == 1 else None


def _pids(machine: Machine, card: int) -> set[int]:
    """The PIDs of the processes on the card."""
    return {one.pid for one in machine.processes(card).values() if one.pid}


def _restarts(pod: Object) -> int:
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))
