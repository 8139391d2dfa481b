"""Builds cert-manager from its Go module, and runs it beside a cluster: its controllers and its CA
injector as one process on this machine (`cert_manager.go`), without its webhook."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from cluster.binaries import cache, toolchain
from cluster.binaries.errors import SetupError
from cluster.binaries.module_build import ModuleBuild
from cluster.binaries.progress import Progress, Step
from cluster.cluster import Cluster
from cluster.layout import Layout
from cluster.processes import Process, Processes

PROCESS = "cert-manager"
PROGRAM = Path(__file__).with_suffix(".go")
LIMIT_S = 2400.0
"""Most seconds for the build, which takes about 5 minutes on two cores."""
_VERSION = re.compile(r"v\d+\.\d+\.\d+")


def build(version: str, progress: Progress) -> Path:
    """A folder with the program `cert-manager` of that version, such as v1.21.2, and its CRDs.
    Raises SetupError."""
    if not _VERSION.fullmatch(version):
        raise SetupError(f"'{version}' is no version of cert-manager: write it as in v1.21.2")

    def fill(into: Path) -> None:
        text = f"building cert-manager {version} from its Go module (about 5 min)"
        with progress.step(text) as step:
            _fill(version, into, step, toolchain.find(progress))

    name = f"cert_manager-{version.removeprefix('v')}"
    return cache.entry(cache.root() / "cert-manager", name, fill, progress)


def _fill(version: str, into: Path, step: Step, go: Path) -> None:
    what, log = f"the build of cert-manager {version}", f"cert-manager-{version}"
    build = ModuleBuild(go, what, log, LIMIT_S, step)
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
