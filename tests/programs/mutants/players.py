"""Runs jobs in processes forked from one that has imported everything and has run nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

MEMORY_BYTES = 3 << 30
"""The most memory that a faulty process may take, so that it does not exhaust the machine's."""
CRASHED = 99
T = TypeVar("T")
_NUMBERS = count()


@dataclass(frozen=True)
class End(Generic[T]):
    """The result of a job."""

    of: T
    status: int
    """Exit status, or minus the signal."""
    words: bytes
    """The bytes that the job wrote to its pipe, 64 KiB at most."""


def play(
    jobs: Iterable[T], job: Callable[[T, int], int], at_once: int, scratch: Path
) -> Iterator[End[T]]:
    """Run `job(one, pipe)` in a process each, that many at a time. Yields their results as they
    end.

    The temporary files of each are removed with it, as are processes that it leaves behind.
    """
    queue = iter(jobs)
    running: dict[int, tuple[T, int, Path]] = {}
    try:
        while True:
            while len(running) < at_once and (one := next(queue, None)) is not None:
                started = _start(one, job, scratch)
                running[started[0]] = (one, *started[1:])
            if not running:
                return
            pid, status = os.wait()
            one, pipe, folder = running.pop(pid)
            yield End(one, os.waitstatus_to_exitcode(status), _clear(pid, pipe, folder))
    finally:
        for pid, (_, pipe, folder) in running.items():
            _clear(pid, pipe, folder)


def _start(one: T, job: Callable[[T, int], int], scratch: Path) -> tuple[int, int, Path]:
    # Short names, since the paths of sockets may have at most 107 bytes.
    folder = scratch / str(next(_NUMBERS))
    folder.mkdir()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_a_player(one, job, writer, folder)
    os.close(writer)
    return pid, reader, folder


def _be_a_player(one: T, job: Callable[[T, int], int], pipe: int, folder: Path) -> NoReturn:
    status = CRASHED
    with contextlib.suppress(BaseException):
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = str(folder)
        sys.argv[:] = ["pytest"]
        status = job(one, pipe)
    os._exit(status)


def _clear(pid: int, pipe: int, folder: Path) -> bytes:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.set_blocking(pipe, False)
    words = b""
    with contextlib.suppress(BlockingIOError):
        words = os.read(pipe, 1 << 16)
    os.close(pipe)
    shutil.rmtree(folder, ignore_errors=True)
    return words
