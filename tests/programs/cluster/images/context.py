"""The files that go into an image: their hash, and a clean copy of them to build from.

What is hashed is what is built, whatever lies about in the working tree or changes meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries.errors import SetupError
from cluster.images.dockerfile import Needs, needs
from cluster.images.table import Image

_GENERATED_SUFFIXES = {".pyc", ".o", ".so", ".a", ".egg-info"}
_GENERATED_NAMES = {"__pycache__", "build", "node_modules"}


@dataclass(frozen=True)
class Context:
    """What an image is built from: `files` maps paths in the context to their bytes and mode."""

    image: Image
    dockerfile: str
    files: dict[str, tuple[bytes, int]]
    needs: Needs

    def digest(self, *more: str) -> str:
        """A hash of all that decides what comes out; `more` is what the caller adds to that."""
        digest = hashlib.sha256()
        for text in (self.image.name, self.image.target, *self.needs.lines, *more):
            digest.update(text.encode() + b"\0")
        for path, (data, mode) in sorted(self.files.items()):
            digest.update(f"{path} {mode:o} {len(data)}\0".encode() + data)
        return digest.hexdigest()[:12]

    def write(self, folder: Path) -> None:
        """Put the files and the Dockerfile into the empty `folder`."""
        for path, (data, mode) in self.files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(mode)
        (folder / "Dockerfile").write_text(self.dockerfile)


def read(image: Image) -> Context:
    """Read the image's Dockerfile and all that it copies; SetupError if something is missing."""
    try:
        text = image.dockerfile.read_text()
        wanted = needs(text, image.target)
    except FileNotFoundError as error:
        raise SetupError(
            f"{image.dockerfile}, of which {image.name} is built, is missing"
        ) from error
    except ValueError as error:
        raise SetupError(f"{image.dockerfile}: {error}") from error
    files = {
        str(path.relative_to(image.context)): _content(path)
        for path in _files(image, wanted.sources)
    }
    return Context(image, text, files, wanted)


def _content(path: Path) -> tuple[bytes, int]:
    # The mode that any checkout gives, whatever the umask was: non-root users must read it.
    return path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644


def _files(image: Image, sources: Iterable[str]) -> Iterator[Path]:
    for source in sources:
        found = sorted(image.context.glob(source.lstrip("/"))) if source != "." else [image.context]
        if not found:
            raise SetupError(f"{image.dockerfile} copies {source}, which is not there")
        for path in found:
            yield from _walk(path)


def _walk(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for inner in sorted(path.iterdir()):
        if not _generated(inner):
            yield from _walk(inner)


def _generated(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return hidden or path.name in _GENERATED_NAMES or path.suffix in _GENERATED_SUFFIXES
