"""Builds the programs of another version of containerd than the pinned one, so that Mizar's tests
can run on it: `MIZAR_CONTAINERD=1.7.35 make containerd`.

They are built in a copy of that version's own Go module, whose go.mod and go.sum pin all others.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from cluster.binaries import cache, command, gobuild, toolchain
from cluster.binaries.components import COMPONENTS
from cluster.binaries.errors import SetupError
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
    version = os.environ.get(VARIABLE)
    if not version:
        return None
    if not _VERSION.fullmatch(version):
        raise SetupError(f"${VARIABLE}: '{version}' is no version: write it as in 2.1.9")
    if folder := os.environ.get(PINNED.folder_variable):
        raise SetupError(
            f"${VARIABLE} and ${PINNED.folder_variable}={folder} name different programs: unset one"
        )
    return version


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
        go = toolchain.find(progress)
        # A newer containerd may need a newer Go, which Go then gets itself.
        env = gobuild.environment(go) | {"GOTOOLCHAIN": "auto"}
        log = cache.logs() / f"build-other-containerd-{version}.log"

        def run(where: Path, *words: str) -> str:
            what = f"the build of containerd {version}"
            argv = [str(go), *words]
            command.run(argv, what=what, log=log, limit=LIMIT_S, step=step, cwd=where, env=env)
            return command.tail(log, lines=1000)

        report = run(into, "mod", "download", "-json", f"{module(version)}@v{version}")
        source = into / "source"
        _copy(Path(json.loads(report[report.index("{") :])["Dir"]), source)
        named = f"-s -w -X {module(version)}/version.Version=v{version}"
        flags = ["-trimpath", "-buildvcs=false", "-tags", PINNED.build.tags, "-ldflags", named]
        packages = [f"./cmd/{program}" for program in PINNED.programs]
        run(source, "build", *flags, "-o", f"{into}/", *packages)
    shutil.rmtree(source)


def _copy(module_folder: Path, source: Path) -> None:
    """Copy the module, without what is left of its folder `vendor`, which has no modules in it."""
    shutil.copytree(module_folder, source, ignore=shutil.ignore_patterns("vendor"))
    for path in [source, *source.rglob("*")]:  # Go's cache is read-only
        path.chmod(path.stat().st_mode | 0o200)
