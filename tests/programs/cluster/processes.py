"""Starts the processes of a cluster so that they can be found again, and ends them.

No command waits for them: the cluster outlives the command that started it. A process is identified
by its ID and start time together, because IDs are used again. Besides its record, each has the
variable MARK in its environment, by which it is found if the record was lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError, ComponentFailed
from cluster.layout import Layout

MARK = "MIZAR_CLUSTER_MEMBER"
ENTER = Path(__file__).with_name("enter.py")
START_LIMIT = 60.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Mount = tuple[str, str, str, int, str]
Request = dict[str, object]


@dataclass(frozen=True)
class Process:
    """A process that was started at `start`, in ticks since boot."""

    pid: int
    start: int

    def alive(self) -> bool:
        """Whether it still runs. A zombie does not, but its first thread is one already while
        others of it still end, and hold its files and ports."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return False
        state, threads, start = fields[0], int(fields[17]), int(fields[19])
        return start == self.start and (state not in "ZX" or (state == "Z" and threads > 1))

    def argv(self) -> list[str]:
        """The command that it runs. OSError when it has ended."""
        line = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        return [word.decode() for word in line.split(b"\0")[:-1]]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it, and never to another process that has got its ID since."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive():  # checked after the handle is ours: the id cannot change hands now
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)


@dataclass(frozen=True)
class Processes:
    """The processes of one cluster, by name."""

    layout: Layout

    def hold(self, name: str, hostname: str, mounts: Sequence[Mount]) -> Process:
        """Start the process that keeps a node's namespaces; `mounts` are made inside."""
        request: Request = {"do": "hold", "hostname": hostname, "mounts": list(mounts)}
        return self._enter(name, request, {})

    def run(
        self,
        name: str,
        argv: Sequence[str],
        holder: Process | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a program, in the namespaces of `holder` if given; its output goes to its log."""
        if holder is not None and not holder.alive():
            raise ClusterError(f"cannot start {name}: its node's first process is gone")
        request: Request = {
            "do": "run",
            "holder": holder.pid if holder else None,
            "argv": list(argv),
            "log": str(self.layout.log(name)),
        }
        return self._enter(name, request, env or {})

    def _enter(self, name: str, request: Request, env: Mapping[str, str]) -> Process:
        record = self._record(name)
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(ENTER)],
            input=json.dumps({**request, "record": str(record)}),
            capture_output=True,
            text=True,
            env={"PATH": PATH, MARK: str(self.layout.dir), **env},
            cwd="/",
            timeout=START_LIMIT,
            start_new_session=True,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"cannot start {name}: {done.stderr.strip()}")
        return read_record(record)

    def _record(self, name: str) -> Path:
        return self.layout.processes / f"{name}.json"

    def get(self, name: str) -> Process | None:
        """The process last started by that name, running or not."""
        record = self._record(name)
        return read_record(record) if record.exists() else None

    def all(self) -> dict[str, Process]:
        """Every process that was started, running or not, by name."""
        if not self.layout.processes.is_dir():
            return {}
        records = sorted(self.layout.processes.glob("*.json"))
        return {record.stem: read_record(record) for record in records}

    def stop(self, name: str, grace: float = 10.0) -> None:
        """End a process by SIGTERM, after `grace` seconds by SIGKILL. It has ended on return."""
        process = self.get(name)
        if process is None:
            return
        process.signal(signal.SIGTERM)
        if not wait_gone([process], grace):
            process.signal(signal.SIGKILL)
            if not wait_gone([process], 30):
                raise ClusterError(f"{name} (process {process.pid}) does not end")

    def check(self, names: Iterable[str]) -> None:
        """Raise ComponentFailed, with the end of its log, if one of these does not run."""
        for name in names:
            process = self.get(name)
            if process is None or not process.alive():
                raise ComponentFailed(f"{name} has ended", self.tails([name]))

    def tails(self, names: Iterable[str], lines: int = 25) -> dict[Path, str]:
        """The last lines of the logs of these processes."""
        logs = [self.layout.log(name) for name in names]
        return {log: tail(log, lines) for log in logs if log.exists()}


def read_record(path: Path) -> Process:
    """The process in a record file."""
    return Process(**json.loads(path.read_text()))


def marked(layout: Layout) -> list[Process]:
    """Every living process on this machine that was started for the cluster."""
    mark = f"{MARK}={layout.dir}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and mark in _environment(entry) and (one := _identify(entry)):
            found.append(one)
    return found


def _environment(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is not ours to look at
        return []


def _identify(entry: Path) -> Process | None:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Process(int(entry.name), int(fields[19]))


def wait_gone(processes: Sequence[Process], limit: float) -> bool:
    """Wait until none of them runs any more; False when `limit` seconds did not suffice."""
    deadline = time.monotonic() + limit
    while any(process.alive() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def tail(log: Path, lines: int = 25) -> str:
    """The last lines of a file, each at most 400 characters."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 64 * 1024))
        text = file.read().decode(errors="replace")
    return "\n".join(line[:400] for line in text.splitlines()[-lines:])
