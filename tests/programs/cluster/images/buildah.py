"""Debian's buildah with a store of its own, leaving neither process nor mount behind."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import cache, command, debian
from cluster.binaries.errors import CommandFailed
from cluster.binaries.progress import Progress, Step
from cluster.images import settings

PACKAGES = ("buildah", "util-linux", "ca-certificates")
LIMIT = 1800.0  # seconds for one build
QUICK = 300.0  # seconds for anything else
ENOUGH = {"overlay": 6_000, "vfs": 20_000}  # MB of finished layers, kept for the next builds


@dataclass(frozen=True)
class Buildah:
    """buildah on the store in `home`; the caller holds the store's lock."""

    home: Path
    driver: str

    def load(self, name: str, archive: Path) -> None:
        """Put image `name` from its docker-archive into the store, unless it is there."""
        try:
            self._run("inspect", "--type", "image", name, what=f"the look for {name}")
        except CommandFailed:
            self._run("pull", f"docker-archive:{archive}", what=f"the import of {name}")

    def build(self, name: str, target: str, context: Path, base: str, step: Step) -> None:
        """Build the Dockerfile in `context`; finished instructions are found again next time."""
        aim = ["--target", target] if target else []
        arguments = ["--build-arg", f"BASE={base}", *aim, "--tag", name, *self._volumes()]
        self._run(
            *("bud", "--layers", "--pull-never", "--network", "host", *arguments, str(context)),
            what=f"the build of {name}",
            limit=LIMIT,
            step=step,
        )

    def export(self, name: str, archive: Path) -> None:
        """Write the image to a docker-archive."""
        self._run("push", name, f"docker-archive:{archive}:{name}", what=f"the export of {name}")

    def tidy(self) -> None:
        """Remove what interrupted builds have left, and everything once it is too much.

        Single layers cannot be pruned: those of a stage that others copy from look unused.
        """
        store = self.home / self.driver
        if _megabytes(store) > ENOUGH[self.driver]:
            cache.remove(store)
        elif store.exists():
            self._run("rm", "--all", what="the removal of interrupted builds")

    @contextmanager
    def context(self) -> Iterator[Path]:
        """An empty folder to build from."""
        folder = self.home / "context"
        cache.remove(folder)  # of a run that was killed
        folder.mkdir()
        yield folder
        cache.remove(folder)

    def _volumes(self) -> list[str]:
        pip_cache = cache.root() / "pip"
        pip_cache.mkdir(parents=True, exist_ok=True)
        files = settings.write(self.home / "settings")
        mounts = [f"{source}:{target}:ro" for source, target in files.items()]
        mounts.append(f"{pip_cache}:{settings.PIP_CACHE}")
        return [word for mount in mounts for word in ("--volume", mount)]

    def _run(
        self, verb: str, *arguments: str, what: str, limit: float = QUICK, step: Step | None = None
    ) -> None:
        # The run folder records mounts: those of an earlier run are gone with their namespace.
        run = self.home / "run"
        cache.remove(run)
        store = ["--root", str(self.home / self.driver), "--runroot", str(run)]
        command.run(
            ["buildah", *store, "--storage-driver", self.driver, verb, *arguments],
            what=what,
            log=cache.logs() / f"buildah-{verb}.log",
            limit=limit,
            step=step,
            env={"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self._temporary())},
            isolated=True,
        )

    def _temporary(self) -> Path:
        folder = self.home / "tmp"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def open_store(progress: Progress) -> Buildah:
    """buildah, installed if need be, with the storage driver that works here."""
    debian.ensure(PACKAGES, progress)
    home = cache.root() / "buildah"
    home.mkdir(parents=True, exist_ok=True)
    return Buildah(home, "overlay" if overlay_works(home) else "vfs")


def overlay_works(folder: Path) -> bool:
    """Whether overlays can be mounted on `folder`'s file system; vfs copies whole trees instead."""
    with tempfile.TemporaryDirectory(dir=folder) as trial:
        for name in ("lower", "upper", "work", "merged"):
            (Path(trial) / name).mkdir()
        options = f"lowerdir={trial}/lower,upperdir={trial}/upper,workdir={trial}/work"
        mount = ["mount", "-t", "overlay", "overlay", "-o", options, f"{trial}/merged"]
        done = subprocess.run(["unshare", "--mount", *mount], capture_output=True, timeout=30)
        return done.returncode == 0


def _megabytes(folder: Path) -> int:
    done = subprocess.run(["du", "-sxm", str(folder)], capture_output=True, timeout=QUICK)
    return int(done.stdout.split()[0]) if done.stdout else 0
