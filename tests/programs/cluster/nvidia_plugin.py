"""NVIDIA's own device plugin, built from its Go module, which finds the simulated cards by NVML."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import simgpu
from cluster.binaries.module_build import Module, ModuleBuild
from cluster.binaries.progress import Progress

PROGRAM = "nvidia-device-plugin"
NODE_CARDS = "/run/simgpu"
"""Where a node has its simulated machine."""
SOCKETS = "/var/lib/kubelet/device-plugins"
# Its bindings of NVML are in C.
MODULE = Module(
    "NVIDIA's device plugin", "nvidia-plugin", "v0.18.2", minutes=4, env={"CGO_ENABLED": "1"}
)


def folder(version: str) -> Path:
    """Where the program of that version, such as v0.18.2, is, once it is built. Raises
    SetupError."""
    return MODULE.folder(version)


def build(version: str, progress: Progress) -> Path:
    """The folder with the program of that version. Raises SetupError."""

    def fill(build: ModuleBuild, into: Path) -> None:
        _fill(version, build, into)

    return MODULE.build(version, progress, fill)


def _fill(version: str, build: ModuleBuild, into: Path) -> None:
    source = build.copy(f"github.com/NVIDIA/k8s-device-plugin@{version}", into)
    # It resolves the symbols of NVML when it has loaded the library.
    flags = ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w -extldflags=-Wl,-z,lazy")
    build.run_go(source, "build", "-v", *flags, "-o", f"{into}/{PROGRAM}", f"./cmd/{PROGRAM}")
    shutil.rmtree(source)


def start_command(version: str) -> list[str]:
    """The command that starts it on a node. MIG devices are resources of their own, as with
    strategy mixed."""
    where = [f"{name}={value}" for name, value in simgpu.environment(NODE_CARDS).items()]
    program = ["env", *where, str(folder(version) / PROGRAM), "--mig-strategy=mixed"]
    # It ends if the folder of the kubelet's sockets is missing, which the volume of its DaemonSet
    # makes.
    return ["/bin/sh", "-c", f"mkdir -p {SOCKETS} && exec {shlex.join(program)}"]
