"""What helm said in earlier runs of the tests. It says the same again as long as the program, the
chart and the arguments are the same, and each of the chart's 300 tests has values of its own."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

Output = tuple[int, str]
"""Exit status, and what was printed."""

KEPT = 1000
"""Outputs that are kept, those used last; one takes some 10 KiB."""


class HelmOutputs:
    """Outputs of helm in a folder, a file each, named by a hash of all that helm was given.
    `settled`: a chart that nobody changes while this object lives, and which is read once."""

    def __init__(self, folder: Path, settled: Path, kept: int = KEPT) -> None:
        self._folder = folder
        self._settled = settled
        self._settled_content = _hash(settled)
        folder.mkdir(parents=True, exist_ok=True)
        newest = sorted(folder.iterdir(), key=_used, reverse=True)
        for each in newest[kept:]:
            each.unlink(missing_ok=True)

    def of(
        self, helm: Path, chart: Path, arguments: tuple[str, ...], run: Callable[[], Output]
    ) -> Output:
        """The output for the chart in that folder: an earlier one, or that of `run`, which is kept.
        A program is another one when its path, size or time of change is."""
        content = self._settled_content if chart == self._settled else _hash(chart)
        key = hashlib.sha256(repr((_identity(helm), content, arguments)).encode())
        file = self._folder / key.hexdigest()
        try:
            status, text = json.loads(zlib.decompress(file.read_bytes()))
            file.touch()  # it was used last
        except (OSError, zlib.error):
            status, text = run()
            _write(file, zlib.compress(json.dumps([status, text]).encode()))
        return status, text


def _used(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0  # another run of the tests has removed it


def _identity(program: Path) -> tuple[str, int, int]:
    about = program.stat()
    return str(program), about.st_size, about.st_mtime_ns


def _hash(folder: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        found.update(repr((str(file.relative_to(folder)), file.read_bytes())).encode())
    return found.hexdigest()


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all: several runs of the tests may use the folder."""
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(file)
