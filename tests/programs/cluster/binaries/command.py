"""Runs a long command: output to a log that is kept, a time bound, and no child left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.binaries.errors import CommandFailed
from cluster.binaries.progress import Step

POLL = 0.2  # seconds between two looks at the command
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
TAIL_LINES = 25
# Everything started inside dies with the first process, and its mounts go with it.
ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")


def run(
    argv: Sequence[str],
    *,
    what: str,
    log: Path,
    limit: float,
    step: Step | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    isolated: bool = False,
) -> None:
    """Run `argv` for at most `limit` seconds; CommandFailed with the log's end if it fails.

    `env` is added to the environment; `isolated` (root) gives it mount and process namespaces
    of its own, so that nothing can outlive it. `step` is shown the log's last line.
    """
    prefix = (*_lifeline(), *(ISOLATED if isolated else ()))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        output.write(f"$ {' '.join(argv)}\n".encode())
        output.flush()
        process = _start([*prefix, *argv], cwd, {**os.environ, **(env or {})}, output.fileno())
    try:
        ended = _watch(process, log, limit, step)
    finally:
        stop(process)
    if not ended:
        raise CommandFailed(what, f"took longer than {limit:.0f} s", log, tail(log))
    if process.returncode != 0:
        raise CommandFailed(what, f"ended with {_status(process.returncode)}", log, tail(log))


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, without the line that names the command."""
    text = log.read_text(errors="replace").splitlines()[1:]
    return "\n".join(line.rstrip() for line in text[-lines:])


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the command and its whole session by SIGTERM and then SIGKILL, and wait for it."""
    if process.poll() is None:
        _signal_session(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    _signal_session(process, signal.SIGKILL)
    process.wait(GRACE)


def _signal_session(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _lifeline() -> tuple[str, ...]:
    """A prefix by which the command dies with us, also after a kill -9, and yields the CPU."""
    if shutil.which("setpriv") is None:
        return ("nice", "-n", "10")
    return ("setpriv", "--pdeathsig", "KILL", "nice", "-n", "10")


def _start(
    argv: list[str], cwd: Path | None, env: dict[str, str], output: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _watch(process: subprocess.Popen[bytes], log: Path, limit: float, step: Step | None) -> bool:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            process.wait(POLL)
            return True
        except subprocess.TimeoutExpired:
            if step is not None:
                step.note(_last_line(log))
    return False


def _last_line(log: Path, width: int = 100) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
        lines = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
    full = [line.strip() for line in lines if line.strip() and not line.startswith("$ ")]
    return full[-1][:width] if full else ""


def _status(code: int) -> str:
    return f"exit status {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
