"""Builds the programs of another version of containerd than the pinned one, so that Mizar's tests
can run on it: `MIZAR_CONTAINERD=1.7.35 make containerd`.

They are built in a copy of that version's own Go module, whose go.mod and go.sum pin all others.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from cluster.binaries import cache, toolchain
from cluster.binaries.components import COMPONENTS
from cluster.binaries.module_build import ModuleBuild
from cluster.binaries.named_version import named_version
from cluster.binaries.progress import Progress

VARIABLE = "MIZAR_CONTAINERD"
"""The variable of the environment that names the version."""
(PINNED,) = (one for one in COMPONENTS if one.name == "containerd")
"""The usual containerd."""
LIMIT_S = 1200.0
"""Most seconds for getting modules, and for the build, which takes about 3 minutes on two cores."""
_VERSION = re.compile(r"([12])\.\d+\.\d+")
_PROJECT = "github.com/containerd/containerd"


def wanted() -> str | None:
    """The version that the environment names; None if it names none. Raises SetupError."""
    return named_version(VARIABLE, _VERSION, "2.1.9", PINNED)


def ensure_containerd(version: str, progress: Progress) -> dict[str, Path]:
    """The programs of that containerd, such as 2.1.9, by name. They are built the first time, which
    takes about 3 minutes. Raises SetupError."""
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = cache.entry(
        cache.root() / "programs",
        f"other-containerd-{version}-{digest}",
        lambda into: _build(version, into, progress),
        progress,
    )
    return {program: folder / program for program in PINNED.programs}


def module(version: str) -> str:
    """The path of the Go module of that version, whose major version it names from 2 on."""
    major = version.partition(".")[0]
    return _PROJECT if major == "1" else f"{_PROJECT}/v{major}"


def _build(version: str, into: Path, progress: Progress) -> None:
    with progress.step(f"building containerd {version} from its Go modules (about 3 min)") as step:
        what, log = f"the build of containerd {version}", f"other-containerd-{version}"
        build = ModuleBuild(toolchain.find(progress), what, log, LIMIT_S, step)
        # What is left of its folder `vendor` has no modules in it.
        source = build.copy(f"{module(version)}@v{version}", into, leave_out=("vendor",))
        named = f"-s -w -X {module(version)}/version.Version=v{version}"
        flags = ["-trimpath", "-buildvcs=false", "-tags", PINNED.build.tags, "-ldflags", named]
        packages = [f"./cmd/{program}" for program in PINNED.programs]
        build.run_go(source, "build", *flags, "-o", f"{into}/", *packages)
    shutil.rmtree(source)
