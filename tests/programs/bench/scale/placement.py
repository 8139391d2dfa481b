"""The pods of a large cluster as a pool's node policy has them, and the stock scheduler, which
places those that wait."""

from __future__ import annotations

import itertools
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.scale.population import DEVICES, MODEL
from bench.scale.process import free_port
from mizar_core.names import (
    LABEL_IN_USE,
    LABEL_POOL,
    LABEL_PROFILE,
    LABEL_SHADOW_POD,
    LABEL_SHARE_POD,
)
from mizar_kube.kinds import Object
from mizar_operator.node_policy import near_shadow_pods, near_shadow_pods_in_use
from support import objects

POOL = "default"
SHADOWS_PER_NODE = 2
PLACED = re.compile(
    r'^scheduler_schedule_attempts_total{[^}]*result="scheduled"} (\S+)$', re.MULTILINE
)
COMPUTED = re.compile(r"^scheduler_scheduling_algorithm_duration_seconds_sum (\S+)$", re.MULTILINE)
UNVERIFIED = ssl._create_unverified_context()  # the certificate is the scheduler's own
WAITING = ("share", "shadow", "plain")
"""The kinds of pods that wait for the scheduler: a plain one asks for no card."""


@dataclass(frozen=True)
class Placement:
    """`nodes` nodes with two shadow pods of two devices each, every other one in use. A tenant's
    shadow pods are on nodes of its own; `binpack` is the pool's node policy."""

    nodes: int
    tenants: int
    binpack: bool

    def node(self, number: int) -> Object:
        """A node with its cards, and the devices of the tenant that it serves."""
        amounts = {
            "pods": "110",
            "cpu": "64",
            "nvidia.com/gpu": "8",
            _resource(self._tenant(number)): str(SHADOWS_PER_NODE * DEVICES),
        }
        name = _node(number)
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": MODEL},
            },
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }

    def running(self) -> Iterator[Object]:
        """The pods that have their nodes: shadow pods, and two share pods on every other one."""
        for number, index in itertools.product(range(self.nodes), range(SHADOWS_PER_NODE)):
            tenant, used = self._tenant(number), index % 2 == 0
            yield _on(number, self._shadow(tenant, f"shadow-{number}-{index}", used))
            if used:
                for device in range(DEVICES):
                    yield _on(number, self._share(tenant, f"share-{number}-{index}-{device}"))

    def waiting(self, kind: str, count: int) -> Iterator[Object]:
        """`count` pods of a kind without a node, of all tenants in turn."""
        make: Callable[[str, str], Object] = {
            "share": self._share,
            "shadow": self._shadow,
            "plain": objects.plain_pod,
        }[kind]
        return (make(self._tenant(one), f"waiting-{kind}-{one}") for one in range(count))

    def tenant_names(self) -> list[str]:
        """tenant-000, tenant-001, ..."""
        return [f"tenant-{number:03}" for number in range(self.tenants)]

    def _tenant(self, number: int) -> str:
        return f"tenant-{number % self.tenants:03}"

    def _shadow(self, tenant: str, name: str, used: bool = False) -> Object:
        pod = objects.whole_card_pod(tenant, name)
        labels = {LABEL_SHADOW_POD: "true", LABEL_POOL: POOL, LABEL_PROFILE: str(DEVICES)}
        pod["metadata"]["labels"] = {**labels, **({LABEL_IN_USE: "true"} if used else {})}
        return self._near(pod, near_shadow_pods())

    def _share(self, tenant: str, name: str) -> Object:
        pod = objects.share_pod(tenant, name, resource=_resource(tenant))
        pod["metadata"]["labels"] = {LABEL_SHARE_POD: "true"}
        return self._near(pod, near_shadow_pods_in_use(POOL, [DEVICES], shared=False))

    def _near(self, pod: Object, affinity: Mapping[str, Any]) -> Object:
        if self.binpack:
            pod["spec"]["affinity"] = {"podAffinity": affinity}
        return pod


class Scheduler:
    """A kube-scheduler with its defaults, seen by its metrics."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._process = process
        self._url = f"https://127.0.0.1:{port}/metrics"
        self._log = log

    def log(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-4000:]

    def placed(self) -> tuple[int, float]:
        """The pods that got a node, and the seconds that their nodes were computed for in total."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the scheduler ended:\n{self.log()}")
        try:
            with urllib.request.urlopen(self._url, timeout=30, context=UNVERIFIED) as answer:
                page = answer.read().decode()
        except urllib.error.HTTPError:
            raise
        except OSError:  # it does not serve yet
            return 0, 0.0
        return int(_value(PLACED, page)), _value(COMPUTED, page)


@contextmanager
def scheduler(program: Path, kubeconfig: Path, folder: Path) -> Iterator[Scheduler]:
    """A running kube-scheduler; it is ended afterwards."""
    port, log = free_port(), folder / "scheduler.log"
    argv = [str(program), f"--kubeconfig={kubeconfig}", "--leader-elect=false"]
    argv += ["--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}"]
    argv += ["--authorization-always-allow-paths=/metrics"]
    # By default it makes 50 calls a second, which would hide how long it computes.
    argv += ["--kube-api-qps=10000", "--kube-api-burst=10000"]
    with log.open("ab") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output)
    try:
        yield Scheduler(process, port, log)
    finally:
        process.terminate()
        process.wait(60)


def _value(metric: re.Pattern[str], page: str) -> float:
    found = metric.search(page)
    return float(found[1]) if found else 0.0


def _resource(tenant: str) -> str:
    return f"{tenant}.mizar.share/gpu.{DEVICES}"


def _node(number: int) -> str:
    return f"node-{number:04}"


def _on(number: int, pod: Object) -> Object:
    pod["spec"]["nodeName"] = _node(number)
    return pod
