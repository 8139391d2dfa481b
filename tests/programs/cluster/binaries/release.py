"""Downloads official releases, each checked against the checksum that is published beside it."""

from __future__ import annotations

import hashlib
import http.client
import re
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import hosts
from cluster.binaries.components import Component, Release
from cluster.binaries.errors import NotAvailable
from cluster.binaries.progress import Progress, Step

PIECE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Seconds: until a server says something, and for one whole file."""

    silence: float = 10.0
    file: float = 600.0


def fetch(
    component: Component, into: Path, progress: Progress, limits: Limits | None = None
) -> None:
    """Fill the folder `into` with the component's programs.

    NotAvailable, with the reason, if a file is absent, does not come, or is not what its
    checksum says.
    """
    with progress.step(f"downloading the release of {component.title}") as step:
        for release in component.releases:
            _Download(release, limits or Limits(), step).into(into)


class _Download:
    """The download of one published file."""

    def __init__(self, release: Release, limits: Limits, step: Step) -> None:
        self._release = release
        self._silence = limits.silence
        self._deadline = time.monotonic() + limits.file
        self._step = step

    def into(self, folder: Path) -> None:
        file = folder / ".download"
        try:
            wanted = checksum_of(Path(self._release.path).name, self._checksums())
            found = self._save(file)
            if found != wanted:
                raise NotAvailable(
                    f"{self._release.path} has the checksum {found}, not {wanted}: it is not used"
                )
            _place(self._release, file, folder)
        finally:
            file.unlink(missing_ok=True)

    def _checksums(self) -> str:
        return b"".join(self._pieces(self._release.checksum)).decode(errors="replace")

    def _save(self, file: Path) -> str:
        digest = hashlib.sha256()
        size = 0
        with file.open("wb") as target:
            for piece in self._pieces(self._release.path):
                target.write(piece)
                digest.update(piece)
                size += len(piece)
                self._step.note(f"{Path(self._release.path).name}, {size >> 20} MB")
        return digest.hexdigest()

    def _pieces(self, path: str) -> Iterator[bytes]:
        address = hosts.url(self._release.host, path)
        with _troubles(address), urllib.request.urlopen(address, timeout=self._silence) as answer:
            while piece := answer.read1(PIECE):
                if time.monotonic() > self._deadline:
                    raise NotAvailable(f"{address} comes too slowly")
                yield piece


@contextmanager
def _troubles(address: str) -> Iterator[None]:
    """Turn every error of the connection to a server into NotAvailable."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise NotAvailable(f"{address} answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise NotAvailable(f"{address} cannot be reached ({error.reason})") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotAvailable(f"{address} did not come: {error}") from error


def checksum_of(name: str, text: str) -> str:
    """The SHA-256 of file `name` from a checksum file: `<hex>` alone or lines `<hex>  <name>`."""
    for line in text.splitlines():
        words = line.split()
        alone = len(words) == 1
        if words and _HEX.fullmatch(words[0]) and (alone or words[-1].lstrip("*") == name):
            return words[0].lower()
    raise NotAvailable(f"there is no checksum of {name} among the published ones")


_HEX = re.compile(r"[0-9a-fA-F]{64}")


def _place(release: Release, file: Path, folder: Path) -> None:
    if release.program:
        file.rename(folder / release.program)
        (folder / release.program).chmod(0o755)
        return
    try:
        with tarfile.open(file) as archive:
            for program, member in release.members.items():
                _extract(archive, member, folder / program)
    except (tarfile.TarError, KeyError, OSError) as error:
        raise NotAvailable(
            f"{release.path} is not the archive that it should be: {error}"
        ) from error


def _extract(archive: tarfile.TarFile, member: str, to: Path) -> None:
    source = archive.extractfile(member)
    if source is None:
        raise KeyError(member)
    with source, to.open("wb") as target:
        shutil.copyfileobj(source, target)
    to.chmod(0o755)
