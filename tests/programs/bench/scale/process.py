"""Runs the operator as a process and measures it from outside: its metrics, memory and CPU time."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.waiting import wait_for

PLAN = re.compile(r'^mizar_reconcile_duration_seconds_(count|sum){step="plan"} (\S+)', re.MULTILINE)
PATIENCE_S = 600.0
TICKS = os.sysconf("SC_CLK_TCK")


class Operator:
    """`mizar-operator` from this checkout. `begun`: when it was started, by time.monotonic."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._process = process
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._log = log
        self.begun = time.monotonic()

    def page(self) -> str:
        """Its metrics page; empty while it does not serve one yet."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the operator ended:\n{self._log.read_text()[-4000:]}")
        try:
            with urllib.request.urlopen(self._url, timeout=30) as found:
                return str(found.read().decode())
        except OSError:
            return ""

    def plans(self) -> tuple[float, float]:
        """The number of plans that were made, and the seconds that they took in total."""
        found = dict(PLAN.findall(self.page()))
        return float(found.get("count", 0)), float(found.get("sum", 0))

    def wait_for(self, what: str, true: Callable[[], object], interval: float = 0.1) -> float:
        """Waits until the condition is true; returns the seconds since the process was started."""
        wait_for(what, true, PATIENCE_S, interval, lambda: self._log.read_text()[-2000:])
        return time.monotonic() - self.begun

    def memory_mib(self, what: str = "VmRSS") -> float:
        """Resident memory now, or its peak (`VmHWM`), in MiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"{what}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def stop(self) -> float:
        """End it as Kubernetes does; returns the seconds until it has ended."""
        begun = time.monotonic()
        self._process.terminate()
        self._process.wait(60)
        return time.monotonic() - begun

    def cpu_s(self) -> float:
        """CPU seconds used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def running(kubeconfig: Path, folder: Path) -> Iterator[Operator]:
    """A running operator that is the only replica; it is ended afterwards."""
    port, log = free_port(), folder / "operator.log"
    argv = [sys.executable, "-m", "mizar_operator.main", f"--kubeconfig={kubeconfig}"]
    argv += ["--no-leader-election", f"--port={port}", "--log-level=WARNING"]
    with log.open("ab") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output)
    operator = Operator(process, port, log)
    try:
        yield operator
    finally:
        operator.stop()


def free_port() -> int:
    """A TCP port that no process uses now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
