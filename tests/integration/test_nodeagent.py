"""The node agent on a real kubelet, with shadow pods made by hand instead of by an operator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
import yaml

from cluster import Cluster
from cluster.binaries.progress import Progress
from cluster.images import CUDA_SAMPLE, PAUSE, ensure_images
from cluster.local_cluster import LocalCluster
from mizar_core.carve import Carve
from mizar_core.models import Isolation
from mizar_core.names import ANNOTATION_CARVE, ANNOTATION_DRAIN, LABEL_SHADOW_POD
from simgpu import Machine
from support import objects
from support.kube import Kube, Object, condition
from support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
NODE = "node-1"
PORT = 9465
MIB = 1 << 20

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@dataclass
class AgentProcess:
    """A node agent that runs from this checkout in the node's namespaces."""

    cluster: LocalCluster
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        config = self.folder / "nodeagent.yaml"
        config.write_text(yaml.safe_dump(self._config()))
        (self.folder / "kubeconfig").write_text(self._kubeconfig())
        agent = [sys.executable, "-m", "mizar_nodeagent.main", f"--config={config}"]
        argv = [*agent, f"--kubeconfig={self.folder / 'kubeconfig'}"]
        env = {
            "LD_LIBRARY_PATH": "/run/simgpu/driver/lib64",
            "SIMGPU_DEV": "/run/simgpu/dev",
        }
        named = [f"{key}={value}" for key, value in env.items()]
        # The shell writes the ID under which the node's own kill knows it.
        shell = ["sh", "-c", f'echo $$ > {self.folder / "pid"}; exec "$@"', "agent"]
        with (self.folder / "agent.log").open("ab") as log:
            entering = self.cluster.entering(NODE, ["env", *named, *shell, *argv])
            self.process = subprocess.Popen(entering, stdout=log, stderr=log)
        wait_for("the node agent to be ready", self.is_ready, 60, explain=self.log)

    def stop(self, signal: str = "TERM") -> float:
        """Seconds until it had ended."""
        assert self.process is not None
        began = time.monotonic()
        pid = (self.folder / "pid").read_text().strip()
        self.cluster.exec_on_node(NODE, ["kill", f"-{signal}", pid])
        self.process.wait(30)
        self.process = None
        return time.monotonic() - began

    def restart(self, signal: str = "TERM") -> None:
        self.stop(signal)
        self.start()

    def page(self, path: str) -> str:
        """A page of the agent's, asked for on the node."""
        url = f"http://127.0.0.1:{PORT}{path}"
        code = f"import urllib.request; print(urllib.request.urlopen({url!r}).read().decode())"
        return str(self.cluster.exec_on_node(NODE, [sys.executable, "-c", code]).stdout)

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        code = f"import socket; socket.create_connection(('127.0.0.1', {PORT}), 1)"
        probe = self.cluster.exec_on_node(NODE, [sys.executable, "-c", code], check=False)
        return probe.returncode == 0 and "ok" in self._readyz()

    def _readyz(self) -> str:
        try:
            return self.page("/readyz")
        except Exception as error:
            raise AssertionError(str(error)) from error

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()[-4000:]

    def _config(self) -> dict[str, Any]:
        return {
            "nodeName": NODE,
            "shimPath": str(ROOT / "build" / "shim" / "libmizar.so"),
            "metricsPort": PORT,
            "logLevel": "DEBUG",
            "cardAccess": {
                "strategy": "Mounts",
                "devRoot": "/run/simgpu/dev",
                "mounts": [
                    {"hostPath": "/run/simgpu/driver", "containerPath": "/usr/local/nvidia"},
                    {
                        "hostPath": "/run/simgpu/state",
                        "containerPath": "/run/simgpu/state",
                        "readOnly": False,
                    },
                ],
            },
        }

    def _kubeconfig(self) -> str:
        """The host's, with the API server's address as the node sees it."""
        body = yaml.safe_load(self.cluster.kubeconfig.read_text())
        server = "https://kubernetes.default.svc"
        seen = self.cluster.kubectl("get", "endpoints", "kubernetes", "--output=json").stdout
        subset = json.loads(seen)["subsets"][0]
        server = f"https://{subset['addresses'][0]['ip']}:{subset['ports'][0]['port']}"
        body["clusters"][0]["cluster"]["server"] = server
        return yaml.safe_dump(body)


@dataclass
class Tenant:
    """A namespace with shadow pods made by hand."""

    kube: Kube
    agent: AgentProcess
    name: str = field(default_factory=lambda: f"t-{uuid4().hex[:6]}")

    @property
    def resource(self) -> str:
        return f"{self.name}.mizar.share/gpu.2"

    def shadow(self, name: str = "shadow-2-aaaaa", **carving: Any) -> str:
        """What the operator would create; returns the name."""
        carve = Carve(
            **{
                "resource": self.resource,
                "devices": 2,
                "cards": 1,
                "pool": "default",
                "quota": "gpus",
                **carving,
            }
        )
        body = {
            "apiVersion": "mizar.share/v1alpha1",
            "kind": "ShadowPod",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "pool": carve.pool,
                "quota": carve.quota,
                "devices": carve.devices,
                "cards": carve.cards,
            },
        }
        self.kube.apply(body)
        made = self.kube.get("shadowpod", name, self.name)
        assert made is not None
        self.kube.apply(_shadow_pod(made, carve))
        return name

    def status(self, name: str = "shadow-2-aaaaa") -> Object:
        found = self.kube.get("shadowpod", name, self.name)
        assert found is not None
        return cast(Object, found.get("status", {}))

    def wait_condition(self, type: str, status: str, reason: str, name: str = "") -> None:
        name = name or "shadow-2-aaaaa"

        def holds() -> bool:
            shadow = self.kube.get("shadowpod", name, self.name)
            assert shadow is not None
            found = condition(shadow, type)
            assert (found["status"], found["reason"]) == (status, reason), found
            return True

        wait_for(f"{type}={status} ({reason}) of {name}", holds, 30, explain=self.agent.log)

    def share(self, name: str, count: int = 1, command: list[str] | None = None) -> None:
        """A share pod, as it is after admission."""
        self.kube.apply(objects.share_pod(self.name, name, self.resource, count, command))

    def run(self, *names: str) -> None:
        self.kube.wait_running(self.name, *names)

    def holders(self, name: str = "shadow-2-aaaaa") -> dict[str, str]:
        """Pod by device index."""
        return {
            one["id"].rpartition("-")[2]: one["holder"]["name"]
            for one in self.status(name).get("devices", [])
            if "holder" in one
        }

    def allocatable(self) -> str | None:
        node = self.kube.get("node", NODE)
        assert node is not None
        return cast("str | None", node["status"]["allocatable"].get(self.resource))

    def drain(self, name: str = "shadow-2-aaaaa", on: bool = True) -> None:
        value = f"{ANNOTATION_DRAIN}=2026-01-01T00:00:00Z" if on else f"{ANNOTATION_DRAIN}-"
        self.kube.run("annotate", "pod", name, f"--namespace={self.name}", value)


def _shadow_pod(owner: Object, carve: Carve) -> Object:
    meta = owner["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": {LABEL_SHADOW_POD: "true"},
            "annotations": {ANNOTATION_CARVE: carve.to_json()},
            "ownerReferences": [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": "ShadowPod",
                    "name": meta["name"],
                    "uid": meta["uid"],
                }
            ],
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "pause",
                    "image": PAUSE,
                    "imagePullPolicy": "IfNotPresent",
                    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
                    "resources": {"limits": {"nvidia.com/gpu": carve.cards}},
                }
            ],
        },
    }


@pytest.fixture(scope="module")
def prepared(cluster: Cluster) -> LocalCluster:
    """The cluster with Mizar's kinds and the images that the tests run."""
    assert isinstance(cluster, LocalCluster)
    cluster.kubectl("apply", "--server-side", f"--filename={ROOT / 'charts/mizar/crds'}")
    for archive in ensure_images(Progress(), [PAUSE, CUDA_SAMPLE]).values():
        cluster.load_image(archive)
    for kind in ("gpupools", "gpuquotas", "shadowpods"):
        wait = f"crd/{kind}.mizar.share"
        cluster.kubectl("wait", "--for=condition=Established", wait, "--timeout=60s")
    return cluster


@pytest.fixture(scope="module")
def agent(prepared: LocalCluster) -> Iterator[AgentProcess]:
    # The node sees the cluster's own folder.
    folder = prepared.logs_dir / f"nodeagent-{os.getpid()}"
    folder.mkdir()
    made = AgentProcess(prepared, folder)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def machine(prepared: LocalCluster) -> Iterator[Machine]:
    with Machine(prepared.nodes[0].simgpu_dir) as machine:
        yield machine


@pytest.fixture
def kube(prepared: LocalCluster) -> Kube:
    return Kube(prepared)


@pytest.fixture
def tenant(kube: Kube, agent: AgentProcess) -> Iterator[Tenant]:
    made = Tenant(kube, agent)
    kube.apply(objects.namespace(made.name))
    wait_for(
        "the namespace's service account",
        lambda: kube.get("serviceaccount", "default", made.name),
    )
    yield made
    kube.run("delete", "pods", "--all", f"--namespace={made.name}", "--grace-period=1")
    kube.delete("namespace", made.name, None, "--wait=false")


def test_a_shadow_pods_card_is_carved_and_shown(tenant: Tenant, machine: Machine) -> None:
    tenant.shadow()
    tenant.wait_condition("Ready", "True", "Serving")
    status = tenant.status()
    (card,) = status["cards"]
    assert card["uuid"] in {one.uuid for one in machine.cards}
    assert card["memoryMiB"] == 16384
    assert [one["id"] for one in status["devices"]] == [
        f"{tenant.name}/shadow-2-aaaaa-{index}" for index in (0, 1)
    ]
    assert status["node"] == NODE and status["usage"] == "0/2"
    assert tenant.allocatable() == "2"


def test_two_share_pods_run_on_one_card_within_their_memory(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.share("one")
    tenant.share("two", command=["sleep", "3600"])
    tenant.run("one", "two")
    wait_for("both holders", lambda: sorted(tenant.holders().values()) == ["one", "two"])
    code, out = tenant.kube.exec(tenant.name, "two", "cuda-sample", "alloc", "7000")
    assert code == 0, out
    code, out = tenant.kube.exec(tenant.name, "two", "cuda-sample", "alloc", "9000")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in out and code != 0
    metrics = tenant.agent.page("/metrics")
    labels = f'namespace="{tenant.name}",node="{NODE}",pod="one"'
    used = [
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("mizar_device_memory_used_bytes") and labels in line
    ]
    assert used and used[0] >= 1024 * MIB


def test_devices_of_a_deleted_pod_are_used_again(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.share("one", count=2)
    tenant.run("one")
    tenant.kube.delete("pod", "one", tenant.name)
    wait_for("the devices to be free", lambda: tenant.holders() == {}, 10)
    assert tenant.status()["idleSince"]
    tenant.share("two", count=2)
    tenant.run("two")
    wait_for("the new holder", lambda: set(tenant.holders().values()) == {"two"}, 10)


def test_an_agents_restart_loses_nothing(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.share("one")
    tenant.run("one")
    before = tenant.status()["devices"]
    tenant.agent.restart("KILL")
    tenant.share("two")
    tenant.run("two")
    wait_for("both holders", lambda: sorted(tenant.holders().values()) == ["one", "two"])
    assert [one["id"] for one in tenant.status()["devices"]] == [one["id"] for one in before]
    code, out = tenant.kube.exec(tenant.name, "one", "cuda-sample", "alloc", "7500")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in out, f"its 1 GiB counts: {code} {out}"


def test_a_kubelets_restart_loses_nothing(tenant: Tenant, prepared: LocalCluster) -> None:
    tenant.shadow()
    tenant.share("one")
    tenant.run("one")
    prepared.restart_kubelet(NODE)
    tenant.share("two")
    tenant.run("one", "two")
    wait_for("both holders", lambda: sorted(tenant.holders().values()) == ["one", "two"])
    tenant.wait_condition("Ready", "True", "Serving")


def test_a_restarted_container_keeps_its_limits(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.share("one", command=["sh", "-c", "sleep 2; exit 1"])

    def restarted() -> bool:
        pod = tenant.kube.get("pod", "one", tenant.name)
        assert pod is not None
        return bool(pod["status"]["containerStatuses"][0]["restartCount"] >= 1)

    wait_for("the container to start again", restarted, 60)
    wait_for(
        "its limits to hold",
        lambda: (
            "OUT_OF_MEMORY"
            in tenant.kube.exec(tenant.name, "one", "cuda-sample", "alloc", "9000")[1]
        ),
        60,
    )


def test_what_is_not_enforced_does_not_start(tenant: Tenant) -> None:
    tenant.shadow(isolation=Isolation(backend="MPS"))
    tenant.share("one")
    wait_for(
        "the event",
        lambda: "IsolationNotEnforced" in dict(tenant.kube.events(tenant.name, "one")),
        60,
    )
    assert tenant.kube.phase(tenant.name, "one") == "Pending"


def test_a_drain_ends_drained_and_can_be_called_off(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.wait_condition("Ready", "True", "Serving")
    tenant.drain()
    tenant.wait_condition("Draining", "True", "Drained")
    # The kubelet may have put its earlier count over the agent's, until either writes again.
    wait_for("the node to offer nothing", lambda: tenant.allocatable() == "0", 30)
    tenant.drain(on=False)
    tenant.wait_condition("Ready", "True", "Serving")
    tenant.share("one")
    tenant.run("one")
    tenant.drain()
    tenant.wait_condition("Draining", "False", "InUse")
    assert tenant.allocatable() == "2"


def test_a_broken_card_is_reported(tenant: Tenant, machine: Machine) -> None:
    tenant.shadow()
    tenant.wait_condition("Ready", "True", "Serving")
    uuid = tenant.status()["cards"][0]["uuid"]
    machine.remove(uuid)
    try:
        tenant.wait_condition("Healthy", "False", "CardFailed")
        wait_for("the node to offer nothing", lambda: tenant.allocatable() == "0", 20)
    finally:
        machine.restore(uuid)
    tenant.wait_condition("Healthy", "True", "CardsWell")


def test_two_shadow_pods_of_one_resource_are_one_count(tenant: Tenant) -> None:
    tenant.shadow()
    tenant.shadow("shadow-2-bbbbb")
    wait_for("all four devices", lambda: tenant.allocatable() == "4", 30)
    tenant.share("pair", count=2)
    tenant.run("pair")
    shadows = [tenant.holders(name) for name in ("shadow-2-aaaaa", "shadow-2-bbbbb")]
    wait_for(
        "both devices from one shadow pod",
        lambda: (
            sorted(len(tenant.holders(name)) for name in ("shadow-2-aaaaa", "shadow-2-bbbbb"))
            == [0, 2]
        ),
        10,
        explain=lambda: str(shadows),
    )
    tenant.kube.delete("pod", "shadow-2-bbbbb", tenant.name, "--grace-period=0")


def test_the_agent_ends_promptly(tenant: Tenant) -> None:
    assert tenant.agent.stop() < 5
    tenant.agent.start()
