"""Builds programs of NVIDIA's container toolkit from its Go module: nvidia-ctk, which writes CDI
files, and nvidia-container-runtime."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster.binaries.module_build import Module, ModuleBuild
from cluster.binaries.progress import Progress

PROGRAMS = ("nvidia-ctk", "nvidia-container-runtime")
# NVML is called by C code.
MODULE = Module(
    "NVIDIA's container toolkit", "nvidia-toolkit", "v1.20.2", minutes=5, env={"CGO_ENABLED": "1"}
)


def build(version: str, progress: Progress) -> Path:
    """A folder with PROGRAMS of that version, such as v1.20.2. Raises SetupError."""

    def fill(build: ModuleBuild, into: Path) -> None:
        # Of a vendor folder, modules have the list of contents only, which Go refuses.
        module = f"github.com/NVIDIA/nvidia-container-toolkit@{version}"
        source = build.copy(module, into, leave_out={"vendor"})
        commands = [f"./cmd/{one}" for one in PROGRAMS]
        flags = ("-trimpath", "-buildvcs=false")
        build.run_go(source, "build", "-v", *flags, "-o", f"{into}/", *commands)
        shutil.rmtree(source)

    return MODULE.build(version, progress, fill)
