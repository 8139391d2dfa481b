"""A node agent of this checkout on a real node, and shadow pods made by hand for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import yaml

from cluster.images import PAUSE
from cluster.local_cluster import LocalCluster
from mizar_core.carve import Carve
from mizar_core.names import ANNOTATION_CARVE, ANNOTATION_DRAIN, LABEL_SHADOW_POD
from support import objects
from support.kube import Kube, Object, condition
from support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
NODE = "node-1"
PORT = 9465


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
        wait_for("the node agent to be ready", self.is_ready, 180, explain=self.log)

    def stop(self, signal: str = "TERM") -> float:
        """End it; gives the seconds until it had ended."""
        assert self.process is not None
        began = time.monotonic()
        pid = (self.folder / "pid").read_text().strip()
        self.cluster.exec_on_node(NODE, ["kill", f"-{signal}", pid])
        self.process.wait(60)
        self.process = None
        return time.monotonic() - began

    def restart(self, signal: str = "TERM") -> None:
        self.stop(signal)
        self.start()

    def page(self, path: str) -> str:
        """A page of the agent's metrics server, asked for on the node."""
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
            "namespace": "default",
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
        """The host's kubeconfig, with the API server's address as the node sees it."""
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
        """Make a shadow pod as the operator would; returns the name."""
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

        wait_for(f"{type}={status} ({reason}) of {name}", holds, 120, explain=self.agent.log)

    def share(self, name: str, count: int = 1, command: list[str] | None = None) -> None:
        """A share pod, as it is after admission."""
        self.kube.apply(objects.share_pod(self.name, name, self.resource, count, command))

    def run(self, *names: str) -> None:
        self.kube.wait_running(self.name, *names)

    @contextmanager
    def another(self) -> Iterator[None]:
        """Another share pod, which runs.

        A pod that is bound before the kubelet has the devices again is refused for good; this one
        has an owner, which makes the next.
        """
        self.kube.apply(objects.deployment(self.name, "two", self.resource))
        here = f"--namespace={self.name}"
        self.kube.run("rollout", "status", "deployment/two", here, "--timeout=240s")
        yield
        self.kube.delete("deployment", "two", self.name)

    def both_hold(self) -> bool:
        """Whether pod `one` and pod `another` hold a device each."""
        found = sorted(self.holders().values())
        assert len(found) == 2 and found[0] == "one" and found[1].startswith("two-"), found
        return True

    def holders(self, name: str = "shadow-2-aaaaa") -> dict[str, str]:
        """The pod that holds each device, by the device's index."""
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
