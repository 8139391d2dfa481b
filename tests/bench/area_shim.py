"""What the shim adds to a call, on a driver that does nothing, in the same run with and without it.

Every work (shim/bench/overhead.c) is run in pairs, bare and with the shim right after one another,
in processes of their own. A figure is the median of the pairs' differences: what else the machine
does falls on both of a pair, and where a process' memory happens to lie averages out.
MIZAR_BENCH_RUNS sets the number of pairs.
"""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.figures import ROOT, Figure, Report, figure
from bench.precedence import give_precedence
from unit.shim.slot import BUILD, Card, Slot, card_uuid, load_layout

PAIRS = int(os.environ.get("MIZAR_BENCH_RUNS", "9"))
TIMEOUT_S = 120
COMPUTE_HARD = 1


@dataclass(frozen=True)
class Work:
    """One way to call overhead, and the figure that comes of it."""

    name: str
    arguments: tuple[str, ...]
    goal: str
    unit: str = "ns"
    difference: bool = True  # else the figure is the shim's own best

    @property
    def bare(self) -> str:
        return f"bare_{self.name}".replace("_overhead", "")


WORKS = (
    Work("launch_overhead_1t_ns", ("launch", "1"), "<= 5 ns"),
    Work("launch_overhead_8t_ns", ("launch", "8"), "<= 10 ns"),
    Work("alloc_free_overhead_ns", ("alloc",), "<= 100 ns"),
    Work("alloc_free_overhead_100k_live_ns", ("live", "100000"), "<= 100 ns"),
    Work("alloc_free_overhead_64_idle_processes_ns", ("idle", "64"), "<= 100 ns"),
    Work("alloc_free_async_overhead_ns", ("async",), ""),
    Work("meminfo_overhead_ns", ("meminfo",), "<= 50 ns"),
    Work("copy_async_overhead_ns", ("copy",), "<= 20 ns"),
    Work("copy_wait_overhead_ns", ("wait",), ""),
    Work("start_500_processes_s", ("starts", "500"), "<= 1 s", "s", difference=False),
)


def measure() -> Report:
    """Build the shim and the fake driver, run every work."""
    subprocess.run(["make", "-s", "-C", ROOT / "shim", "bench"], check=True)
    report = Report("shim")
    for work in WORKS:
        with tempfile.TemporaryDirectory() as folder:
            slot = Slot(Path(folder) / "slot", load_layout())
            pairs = _pairs(work, slot)
            if work.name.startswith("launch") and not slot.compute(0, "charged_ns"):
                report.unmeasured.append(f"{work.name}: the shim charges no GPU time")
                continue
        report.figures += _figures(work, pairs)
        print(f"  {work.name}: {report.figures[-1].value:g} {work.unit}", flush=True)
    return report


def _pairs(work: Work, slot: Slot) -> list[tuple[float, float]]:
    """(bare, with the shim), once more than counted: the first warms the caches."""
    slot.set_limits(Card(card_uuid(0), 64 << 30, compute_mode=COMPUTE_HARD, core_share=5000))
    bare = {"LD_LIBRARY_PATH": str(BUILD / "tests" / "fake")}
    preload = BUILD / "testing" / "libmizar.so"
    shim = bare | {"LD_PRELOAD": str(preload), "MIZAR_DIR": str(slot.path)}
    return [(_run(work, bare), _run(work, shim)) for _ in range(PAIRS + 1)][1:]


def _run(work: Work, env: dict[str, str]) -> float:
    """What overhead prints first."""
    command = [str(BUILD / "bench" / "overhead"), *work.arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        give_precedence(process.pid)
        out, errors = process.communicate(timeout=TIMEOUT_S)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed ({process.returncode}): {errors}")
    return float(out.split()[0])


def _figures(work: Work, pairs: list[tuple[float, float]]) -> list[Figure]:
    bare = [each for each, _ in pairs]
    added = [shim - each * work.difference for each, shim in pairs]
    percent = 50 if work.difference else 0
    return [
        figure(work.bare, bare, percent, work.unit),
        figure(work.name, added, percent, work.unit, work.goal, work.bare),
    ]
