"""Builds cert-manager from its Go module, and runs it beside a cluster: its controllers and its CA
injector as one process on this machine (`cert_manager.go`), without its webhook."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster.binaries.module_build import Module, ModuleBuild
from cluster.binaries.progress import Progress
from cluster.cluster import Cluster
from cluster.layout import Layout
from cluster.processes import Process, Processes

PROCESS = "cert-manager"
PROGRAM = Path(__file__).with_suffix(".go")
MODULE = Module("cert-manager", "cert-manager", "v1.21.2", minutes=5)


def build(version: str, progress: Progress) -> Path:
    """A folder with the program `cert-manager` of that version, such as v1.21.2, and its CRDs.
    Raises SetupError."""

    def fill(build: ModuleBuild, into: Path) -> None:
        _fill(version, build, into)

    return MODULE.build(version, progress, fill)


def _fill(version: str, build: ModuleBuild, into: Path) -> None:
    source = build.copy(f"github.com/cert-manager/cert-manager@{version}", into)
    (source / "mizar").mkdir()
    shutil.copy(PROGRAM, source / "mizar" / "main.go")
    flags = ("-mod=mod", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w")
    build.run_go(source, "build", "-v", *flags, "-o", f"{into}/cert-manager", "./mizar")
    (source / "deploy" / "crds").rename(into / "crds")
    shutil.rmtree(source)


def start(cluster: Cluster, built: Path) -> Process:
    """Create its CRDs and start it, as an administrator of the cluster. The cluster ends it."""
    for path in sorted((built / "crds").glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", f"--filename={path}")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    env = {"KUBECONFIG": str(cluster.kubeconfig)}
    return Processes(Layout(cluster.name)).run(PROCESS, [str(built / "cert-manager")], env=env)
