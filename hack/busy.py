"""Runs a command several times beside processes that each burn a core: `busy.py BURNERS TIMES
COMMAND...`.

Fast tests must pass on a machine that does much else:

    python hack/busy.py 1 10 make check

Each run's output goes to build/busy-RUN.log. Ends with 1 if a run failed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOGS = Path("build")


def main(burners: str, times: str, *command: str) -> int:
    """1 if any run of the command failed, otherwise 0."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    LOGS.mkdir(exist_ok=True)
    with ExitStack() as stack:
        for _ in range(int(burners)):
            stack.enter_context(_burner())
        failed = [run for run in range(1, int(times) + 1) if not _passes(run, command)]
    print(f"{int(times) - len(failed)} of {times} runs passed beside {burners} burners", flush=True)
    return int(bool(failed))


@contextmanager
def _burner() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def _passes(run: int, command: Sequence[str]) -> bool:
    log, began = LOGS / f"busy-{run}.log", time.monotonic()
    with log.open("wb") as output:
        status = _status_of(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))
    print(f"run {run}: exit {status} in {time.monotonic() - began:.0f} s, {log}", flush=True)
    return status == 0


def _status_of(process: subprocess.Popen[bytes]) -> int:
    """The exit status of the process, which ends with this one."""
    try:
        return process.wait()
    except BaseException:
        process.terminate()  # make ends its own processes then
        process.wait()
        raise


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
