"""Debian packages that the cluster needs: installs those that are missing, and only those."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

from cluster.binaries import cache, command
from cluster.binaries.errors import SetupError
from cluster.binaries.progress import Progress

LIMIT = 900.0  # seconds
_OPTIONS = ("-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")


def ensure(packages: Iterable[str], progress: Progress) -> None:
    """Install those of `packages` that are missing. Only root can; for others, raises SetupError,
    which says what to type."""
    wanted = missing(packages)
    if not wanted:
        return
    _check_possible(wanted)
    with cache.locked(cache.root() / ".apt.lock", progress):
        wanted = missing(wanted)  # another run may have installed them meanwhile
        if wanted:
            _install(wanted, progress)


def missing(packages: Iterable[str]) -> list[str]:
    """Those of `packages` that are not installed, each once, in order."""
    return [package for package in dict.fromkeys(packages) if not _installed(package)]


def _installed(package: str) -> bool:
    if shutil.which("dpkg-query") is None:
        return False
    query = ["dpkg-query", "--show", "--showformat=${Status}", package]
    status = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout
    return status.endswith("ok installed")


def _check_possible(wanted: list[str]) -> None:
    names = " ".join(wanted)
    if shutil.which("apt-get") is None:
        raise SetupError(
            f"this machine has no apt-get: install what Debian's packages {names} hold by hand"
        )
    if os.geteuid() != 0:
        raise SetupError(f"missing Debian packages; type: sudo apt-get install {names}")


def _install(wanted: list[str], progress: Progress) -> None:
    with progress.step(f"installing Debian packages: {' '.join(wanted)}") as step:
        for number, argv in enumerate((["update"], ["install", "--yes", *_quiet(), *wanted])):
            command.run(
                ["apt-get", *_OPTIONS, *argv],
                what=f"apt-get {argv[0]}",
                log=cache.logs() / f"apt-{number}-{argv[0]}.log",
                limit=LIMIT,
                step=step,
                env={"DEBIAN_FRONTEND": "noninteractive"},
            )


def _quiet() -> list[str]:
    return ["--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"]
