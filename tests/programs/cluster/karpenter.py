"""Builds Karpenter with its kwok provider from its Go modules, and runs it beside a cluster.

The provider only creates Node objects; `spare_machines.py` gives them kubelets. Karpenter runs as a
process on this machine, with the service account and the roles of its own chart.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cluster.binaries.module_build import Module, ModuleBuild
from cluster.binaries.progress import Progress
from cluster.cluster import Cluster
from cluster.layout import Layout
from cluster.processes import Process, Processes

NAMESPACE = "karpenter"
PROCESS = "karpenter"
MODULE = Module("Karpenter", "karpenter", "v1.15.0", minutes=5)
_RBAC = ("serviceaccount", "clusterrole", "clusterrole-kwok", "role", "rolebinding")
_FOLDERS = {"kwok/charts": "chart", "kwok/apis/crds": "crds"}


def build(version: str, progress: Progress) -> Path:
    """A folder with the program `karpenter` of that version, such as v1.15.0, its chart and the
    kwok provider's CRDs. Raises SetupError."""

    def fill(build: ModuleBuild, into: Path) -> None:
        _fill(version, build, into)

    return MODULE.build(version, progress, fill)


def _fill(version: str, build: ModuleBuild, into: Path) -> None:
    source = build.copy(f"sigs.k8s.io/karpenter@{version}", into)
    flags = ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w")
    build.run_go(source, "build", "-v", *flags, "-o", f"{into}/karpenter", "./kwok")
    for folder, name in _FOLDERS.items():
        shutil.move(source / folder, into / name)
    shutil.rmtree(source)


def install(cluster: Cluster, built: Path) -> None:
    """Create its CRDs, and the service account and roles of its chart."""
    crds = [f"--filename={built / 'chart' / 'crds'}", f"--filename={built / 'crds'}"]
    cluster.kubectl("apply", "--server-side", *crds)
    only = [f"--show-only=templates/{one}.yaml" for one in _RBAC]
    chart = ["template", "karpenter", str(built / "chart"), f"--namespace={NAMESPACE}", *only]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.kubectl("apply", "--filename=-", input=yaml.safe_dump(namespace))
    cluster.kubectl("apply", "--filename=-", input=cluster.helm(*chart).stdout)


def start(cluster: Cluster, built: Path, types: Mapping[str, Mapping[str, str]]) -> Process:
    """Start it, with these instance types: their resources, by name. The cluster ends it."""
    layout = Layout(cluster.name)
    kubeconfig, offered = layout.dir / "karpenter.kubeconfig", layout.dir / "instance-types.json"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(yaml.safe_dump(_kubeconfig(cluster)))
    offered.write_text(json.dumps([_type(name, found) for name, found in types.items()]))
    env = {
        "KUBECONFIG": str(kubeconfig),
        "SYSTEM_NAMESPACE": NAMESPACE,
        "KARPENTER_SERVICE": NAMESPACE,
        "DISABLE_LEADER_ELECTION": "true",
        # Any free ports: other clusters on this machine may have a Karpenter too.
        "METRICS_PORT": "0",
        "HEALTH_PROBE_PORT": "0",
        "LOG_LEVEL": "debug",
        "INSTANCE_TYPES_FILE_PATH": str(offered),
    }
    return Processes(layout).run(PROCESS, [str(built / "karpenter")], env=env)


def _kubeconfig(cluster: Cluster) -> dict[str, Any]:
    """The cluster's kubeconfig, with the service account's token for its user's certificate."""
    made = ("create", "token", "karpenter", f"--namespace={NAMESPACE}", "--duration=24h")
    found: dict[str, Any] = yaml.safe_load(cluster.kubeconfig.read_text())
    found["users"][0]["user"] = {"token": cluster.kubectl(*made).stdout.strip()}
    return found


def _type(name: str, resources: Mapping[str, str]) -> dict[str, Any]:
    labels = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "zone-a"}
    wanted = [{"key": key, "operator": "In", "values": [one]} for key, one in labels.items()]
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", **resources},
        "offerings": [{"Price": 1.0, "Available": True, "Requirements": wanted}],
    }
