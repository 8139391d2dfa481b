"""Finds a Go that is new enough, or gets one with nothing but Debian and the Go module proxy.

Since Go 1.21 every Go release is also a module, golang.org/toolchain. Any Go can download
it (Debian 12 has 1.19); what an old one cannot do is start it, so it is unpacked here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from cluster.binaries import cache, command, debian
from cluster.binaries.components import ARCH, GO, SOURCES
from cluster.binaries.errors import SetupError
from cluster.binaries.progress import Progress

Version = tuple[int, ...]
DOWNLOAD_LIMIT = 600.0  # seconds, for 70 MB


def find(progress: Progress) -> Path:
    """A `go` that is new enough for src/*/go.mod; downloads one if there is none."""
    installed = {go: version_of(go) for go in _candidates()}
    wanted = required()
    for go, version in installed.items():
        if version >= wanted:
            return go
    return _download(progress, next(iter(installed), None))


def required() -> Version:
    """The highest version that a go.mod under src/ asks for."""
    modules = (file.read_text() for file in SOURCES.glob("*/go.mod"))
    return max(parse(match[1]) for text in modules for match in [_GO_LINE.search(text)] if match)


def parse(version: str) -> Version:
    """`1.26.8` -> (1, 26, 8); a release candidate counts as the release before its own."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+)|(rc|beta))?", version)
    if match is None:
        return (0,)
    patch = -1 if match[4] else int(match[3] or 0)
    return (int(match[1]), int(match[2]), patch)


def version_of(go: Path) -> Version:
    """What this Go says that it is; (0,) if it does not run."""
    try:
        done = subprocess.run(
            [str(go), "version"],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "GOTOOLCHAIN": "local"},
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    match = re.search(r"\bgo(\d\S*)", done.stdout)
    return parse(match[1]) if match else (0,)


_GO_LINE = re.compile(r"^go (\S+)$", re.MULTILINE)


def _candidates() -> list[Path]:
    on_path = shutil.which("go")
    usual = [Path("/usr/local/go/bin/go"), *sorted(Path("/usr/lib").glob("go-*/bin/go"))]
    found = ([Path(on_path)] if on_path else []) + [go for go in usual if go.exists()]
    return list(dict.fromkeys(found))


def _download(progress: Progress, bootstrap: Path | None) -> Path:
    def fill(into: Path) -> None:
        downloader = bootstrap or _debian_go(progress)
        with progress.step(f"getting Go {GO} as a module (70 MB)"):
            unpack(_module_zip(downloader), into)

    folder = cache.entry(cache.root() / "go", f"{GO}-{ARCH}", fill, progress)
    return folder / "bin" / "go"


def _debian_go(progress: Progress) -> Path:
    debian.ensure(["golang-go", "ca-certificates"], progress)
    found = _candidates()
    if not found:
        raise SetupError("Debian's golang-go is installed, but there is no program `go`")
    return found[0]


def _module_zip(go: Path) -> Path:
    """Download the toolchain's module with `go`, which checks it against the pinned go.sum."""
    module = f"golang.org/toolchain@v0.0.1-go{GO}.linux-{ARCH}"
    log = cache.logs() / "go-toolchain.log"
    with tempfile.TemporaryDirectory() as folder:
        for name in ("go.mod", "go.sum"):  # a copy: go may write there
            shutil.copy(SOURCES / "toolchain" / name, folder)
        command.run(
            [str(go), "mod", "download", "-json", module],
            what=f"the download of Go {GO}",
            log=log,
            limit=DOWNLOAD_LIMIT,
            cwd=Path(folder),
            env={"GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "-mod=mod"},
        )
    report = command.tail(log, lines=1000)
    return Path(json.loads(report[report.index("{") :])["Zip"])


def unpack(archive: Path, into: Path) -> None:
    """Unpack a toolchain's module as Go itself does: drop the prefix, mark the programs.

    A module may not contain go.mod files of others, so they are called _go.mod in it.
    """
    with zipfile.ZipFile(archive) as module:
        for item in module.infolist():
            path = into / _inside(item.filename)
            path.parent.mkdir(parents=True, exist_ok=True)
            with module.open(item) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
            if _is_program(path.relative_to(into)):
                path.chmod(0o755)


def _inside(name: str) -> Path:
    inner = Path(name.split("@", 1)[1].split("/", 1)[1])
    return inner.with_name("go.mod") if inner.name == "_go.mod" else inner


def _is_program(path: Path) -> bool:
    return path.parts[0] == "bin" or path.parts[:2] == ("pkg", "tool")
