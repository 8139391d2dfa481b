"""Gets NVIDIA's driver libraries from Debian's non-free packages.

The packages are not installed: their files are unpacked into a folder of the cache. apt checks
their signatures, and takes them from the mirror that the machine's own Debian packages are from."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simgpu.build import cache_root

KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
TIMEOUT_S: Final = 300
LIBRARIES: Final = ("libcuda.so", "libnvidia-ml.so")


class DriverError(RuntimeError):
    """A driver cannot be had. The message says which, and why."""


@dataclass(frozen=True)
class Release:
    """One of NVIDIA's releases: its number, the suite of Debian that has it, and its packages."""

    number: int
    suite: str
    prefix: str = ""

    @property
    def packages(self) -> tuple[str, str, str]:
        """The packages of libcuda, libnvidia-ml and nvidia-smi."""
        if not self.prefix:
            return "libcuda1", "libnvidia-ml1", "nvidia-smi"
        own = self.prefix
        return f"libnvidia-{own}-cuda1", f"libnvidia-{own}-ml1", f"nvidia-{own}-smi"


RELEASES: Final = (
    Release(450, "sid", "tesla-450"),
    Release(470, "bullseye"),
    Release(535, "bookworm"),
    Release(550, "trixie"),
    Release(555, "experimental"),
)
"""The releases that Debian distributes and Mizar supports: the first of them is the oldest one."""


@dataclass(frozen=True)
class Driver:
    """The unpacked files of one release: libcuda.so.1, libnvidia-ml.so.1 and nvidia-smi."""

    release: Release
    folder: Path

    @property
    def libcuda(self) -> Path:
        return self.folder / "libcuda.so.1"

    @property
    def libnvml(self) -> Path:
        return self.folder / "libnvidia-ml.so.1"

    @property
    def smi(self) -> Path:
        return self.folder / "nvidia-smi"

    @property
    def version(self) -> str:
        """The whole version, such as 550.163.01."""
        return (self.folder / "version").read_text()


def get(release: Release) -> Driver:
    """The driver, which is downloaded once. Raises DriverError."""
    driver = Driver(release, cache_root() / "nvidia-driver" / str(release.number))
    if not driver.folder.exists():
        driver.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=driver.folder.parent) as scratch:
            _unpack(release, Path(scratch))
            _keep(Path(scratch), driver.folder)
    return driver


def _run(*command: str, folder: Path | None = None, config: Path | None = None) -> str:
    environment = os.environ | ({"APT_CONFIG": str(config)} if config else {})
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if done.returncode:
        raise DriverError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def _mirror() -> str:
    """The address of the mirror of the machine's own Debian packages."""
    targets = ("indextargets", "--format", "$(REPO_URI) $(ORIGIN)", "Created-By: Packages")
    for line in _run("apt-get", *targets).splitlines():
        address, _, origin = line.partition(" ")
        if origin == "Debian":
            return address
    raise DriverError("no source of apt is Debian's: run `apt-get update`, on Debian")


def _configured(folder: Path, suite: str) -> Path:
    """A configuration of apt that knows that suite alone."""
    (folder / "lists" / "partial").mkdir(parents=True)
    (folder / "archives" / "partial").mkdir(parents=True)
    source = f"deb [signed-by={KEYRING}] {_mirror()} {suite} non-free\n"
    (folder / "sources.list").write_text(source)
    config = folder / "apt.conf"
    config.write_text(
        f'Dir::Etc::sourcelist "{folder}/sources.list";\n'
        'Dir::Etc::sourceparts "/dev/null";\n'
        f'Dir::State "{folder}";\n'
        f'Dir::Cache "{folder}";\n'
        # The user _apt cannot write in the folder.
        'APT::Sandbox::User "root";\n'
    )
    return config


def _unpack(release: Release, scratch: Path) -> None:
    config = _configured(scratch, release.suite)
    _run("apt-get", "-qq", "update", config=config)
    _run("apt-get", "-qq", "download", *release.packages, folder=scratch, config=config)
    for package in scratch.glob("*.deb"):
        _run("dpkg", "--extract", str(package), str(scratch / "files"))


def _only(found: list[Path], what: str) -> Path:
    if len(found) != 1:
        raise DriverError(f"{what}: {len(found)} files instead of one in the package")
    return found[0]


def _keep(scratch: Path, folder: Path) -> None:
    """Moves the wanted files into the folder, which exists only once it is complete."""
    files, kept = scratch / "files" / "usr" / "lib", scratch / "kept"
    kept.mkdir()
    for name in LIBRARIES:
        library = _only([path for path in files.rglob(f"{name}.*.*") if path.is_file()], name)
        shutil.copy(library, kept / f"{name}.1")
        (kept / "version").write_text(library.name.removeprefix(f"{name}."))
    smi = _only([path for path in files.rglob("nvidia-smi") if path.is_file()], "nvidia-smi")
    shutil.copy(smi, kept / "nvidia-smi")
    kept.rename(folder)
