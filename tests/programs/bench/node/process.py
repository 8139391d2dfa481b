"""Runs the node agent as a process and measures it from outside: its probe, memory and CPU time."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import yaml

PATIENCE_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


class AgentProcess:
    """`mizar-nodeagent` from this checkout. `environment`: variables by which it finds its
    cards."""

    def __init__(self, folder: Path, kubeconfig: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._kubeconfig = kubeconfig
        self._environment = environment
        self._port = _free_port()
        self._log = folder / "agent.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.begun = 0.0
        """When it was started last, by time.monotonic."""

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process. Raises RuntimeError with the end of its log if it has ended."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the node agent does not run:\n{self._log.read_text()[-4000:]}")
        return self._process

    def start(self, **config: Any) -> None:
        """Start it; it is not ready yet on return. `config`: settings, in camelCase."""
        path = self._folder / "nodeagent.yaml"
        path.write_text(yaml.safe_dump({**config, "metricsPort": self._port}))
        argv = [sys.executable, "-m", "mizar_nodeagent.main", f"--config={path}"]
        argv.append(f"--kubeconfig={self._kubeconfig}")
        self.begun = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                argv, stdout=log, stderr=log, env=os.environ | self._environment
            )

    async def wait_ready(self) -> None:
        """Wait until /readyz reports that it is ready. Raises TimeoutError or RuntimeError."""
        url = f"http://127.0.0.1:{self._port}/readyz"
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
            while True:
                assert self.process
                try:
                    async with session.get(url) as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.02)

    async def stop(self, *, kill: bool = False) -> None:
        """End it, and wait until it has ended."""
        process = self.process
        process.kill() if kill else process.terminate()
        await asyncio.to_thread(process.wait, PATIENCE_S)

    def memory_mib(self) -> float:
        """Resident memory now, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    async def cpu_percent(self, seconds: float) -> float:
        """Percent of one CPU that it uses during the next seconds."""
        before, began = self._cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        return 100 * (self._cpu_s() - before) / (time.monotonic() - began)

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
