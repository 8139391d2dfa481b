"""Remembers which image archives every node has, so that none is imported twice."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError


@dataclass(frozen=True)
class Loaded:
    """A file that says, for each image name, from which archive the nodes have it."""

    file: Path

    def has(self, archive: Path) -> bool:
        """Whether every node has the archive's images under all of their names."""
        known = self._read()
        return all(known.get(name) == _identity(archive) for name in names(archive))

    def add(self, archives: Iterable[Path]) -> None:
        """Remember that every node has these archives' images now."""
        known = self._read()
        for archive in archives:
            known |= dict.fromkeys(names(archive), _identity(archive))
        self._write(known)

    def forget(self, archive: Path) -> None:
        """Remember that nodes may have different images under these names."""
        gone = set(names(archive))
        self._write({name: one for name, one in self._read().items() if name not in gone})

    def _read(self) -> dict[str, str]:
        return dict(json.loads(self.file.read_text())) if self.file.exists() else {}

    def _write(self, known: dict[str, str]) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(known, indent=2) + "\n")
        new.rename(self.file)


def names(archive: Path) -> list[str]:
    """The image names in a docker archive."""
    try:
        with tarfile.open(archive) as tar:
            manifest = tar.extractfile("manifest.json")
            assert manifest is not None  # it is a regular file
            return [name for image in json.load(manifest) for name in image["RepoTags"] or []]
    except (OSError, tarfile.TarError, KeyError, AssertionError, ValueError) as error:
        raise ClusterError(f"{archive} is not a docker archive: {error}") from error


def _identity(archive: Path) -> str:
    status = archive.stat()
    return f"{archive.resolve()} {status.st_size} {status.st_mtime_ns}"
