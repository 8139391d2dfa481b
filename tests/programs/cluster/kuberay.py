"""Builds KubeRay's operator from its Go module, and runs it beside a cluster, as a process on this
machine."""

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

PROCESS = "kuberay"
LIMIT_S = 2400.0
"""Most seconds for the build, which takes about 5 minutes on two cores."""
_VERSION = re.compile(r"v\d+\.\d+\.\d+")


def build(version: str, progress: Progress) -> Path:
    """A folder with the program `kuberay` of that version, such as v1.5.0, and its CRDs. Raises
    SetupError."""
    if not _VERSION.fullmatch(version):
        raise SetupError(f"'{version}' is no version of KubeRay: write it as in v1.5.0")

    def fill(into: Path) -> None:
        with progress.step(f"building KubeRay {version} from its Go module (about 5 min)") as step:
            _fill(version, into, step, toolchain.find(progress))

    name = f"kuberay-{version.removeprefix('v')}"
    return cache.entry(cache.root() / "kuberay", name, fill, progress)


def _fill(version: str, into: Path, step: Step, go: Path) -> None:
    what, log = f"the build of KubeRay {version}", f"kuberay-{version}"
    build = ModuleBuild(go, what, log, LIMIT_S, step)
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
