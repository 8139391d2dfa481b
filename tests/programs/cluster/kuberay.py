"""Builds KubeRay's operator from its Go module, and runs it beside a cluster, as a process on this
machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster.binaries.module_build import Module, ModuleBuild
from cluster.binaries.progress import Progress
from cluster.cluster import Cluster
from cluster.layout import Layout
from cluster.processes import Process, Processes

PROCESS = "kuberay"
MODULE = Module("KubeRay", "kuberay", "v1.5.0", minutes=5)


def build(version: str, progress: Progress) -> Path:
    """A folder with the program `kuberay` of that version, such as v1.5.0, and its CRDs. Raises
    SetupError."""

    def fill(build: ModuleBuild, into: Path) -> None:
        _fill(version, build, into)

    return MODULE.build(version, progress, fill)


def _fill(version: str, build: ModuleBuild, into: Path) -> None:
    source = build.copy(f"github.com/ray-project/kuberay/ray-operator@{version}", into)
    flags = ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w")
    build.run_go(source, "build", "-v", *flags, "-o", f"{into}/kuberay", ".")
    (source / "config" / "crd" / "bases").rename(into / "crds")
    shutil.rmtree(source)


def start(cluster: Cluster, built: Path) -> Process:
    """Create its CRDs and start it, as an administrator of the cluster. The cluster ends it."""
    for path in sorted((built / "crds").glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", f"--filename={path}")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    flags = ("-metrics-addr=0", "-health-probe-bind-address=0", "-enable-leader-election=false")
    env = {"KUBECONFIG": str(cluster.kubeconfig), "ENABLE_WEBHOOKS": "false"}
    return Processes(Layout(cluster.name)).run(PROCESS, [str(built / "kuberay"), *flags], env=env)
