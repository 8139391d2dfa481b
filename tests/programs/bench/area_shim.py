"""Measures how much the shim adds to a call, on a driver that does nothing, in one run with and
without the shim.

Every work (workloads/overhead.c) is run in pairs, bare and with the shim right after one another,
in processes of their own. A figure is the median of the pairs' differences: disturbances by the
machine affect both of a pair, and effects of memory layout average out. MIZAR_BENCH_RUNS sets the
number of pairs.
"""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figures import ROOT, Figure, Report, figure
from bench.precedence import give_precedence
from unit.shim.slot import BUILD, Card, Slot, card_uuid, load_layout

PAIRS = int(os.environ.get("MIZAR_BENCH_RUNS", "9"))
TIMEOUT_S = 120
COMPUTE_HARD = 1
HALF, FULL = 5000, 10000  # of the card: basis points


@dataclass(frozen=True)
class Work:
    """One way to call overhead, and the figure that results."""

    name: str
    arguments: tuple[str, ...]
    goal: str
    unit: str = "ns"
    share: int = HALF
    difference: bool = True  # otherwise the figure is the time with the shim

    @property
    def bare(self) -> str:
        return f"bare_{self.name}".replace("_overhead", "")


WORKS = (
    Work("launch_overhead_1t_ns", ("launch", "1"), "<= 5 ns"),
    Work("launch_overhead_8t_ns", ("launch", "8"), "<= 10 ns"),
    Work("launch_overhead_4000_functions_ns", ("launch", "1", "4000"), ""),
    Work("launch_overhead_2_streams_ns", ("launch", "1", "16", "2"), ""),
    Work("launch_overhead_4_shapes_ns", ("launch", "1", "16", "1", "4"), ""),
    # With the whole card as share: with a part of it, launches would have to wait.
    Work(
        "launch_overhead_5_us_kernels_ns", ("launch", "1", "16", "1", "1", "5000"), "", share=FULL
    ),
    Work("alloc_free_overhead_ns", ("alloc", "1"), "<= 100 ns"),
    Work("alloc_free_overhead_4t_ns", ("alloc", "4"), ""),
    Work("alloc_free_overhead_100k_live_ns", ("live", "100000"), "<= 100 ns"),
    Work("alloc_free_overhead_64_idle_processes_ns", ("idle", "64"), "<= 100 ns"),
    Work("alloc_free_async_overhead_ns", ("async",), ""),
    Work("meminfo_overhead_ns", ("meminfo",), "<= 50 ns"),
    Work("nvml_meminfo_overhead_ns", ("nvml_meminfo",), "<= 200 ns"),
    Work("copy_async_overhead_ns", ("copy",), "<= 20 ns"),
    Work("copy_wait_overhead_ns", ("wait",), ""),
    Work("start_500_processes_s", ("starts", "500"), "<= 1 s", "s", difference=False),
)


MANY = (
    "launch_overhead_1t_ns",
    "launch_overhead_4000_functions_ns",
    "launch_overhead_2_streams_ns",
    "launch_overhead_4_shapes_ns",
    "launch_overhead_5_us_kernels_ns",
)
"""Figures of which the worst is launch_overhead_many_ns."""
BASICS = ("call", "add", "swap", "probe")
"""Basic operations, for comparison: nanoseconds differ by a factor of two between machines."""


def measure() -> Report:
    """Build the shim and the fake driver, and run every work."""
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
    report.figures += _many(report.figures)
    report.figures += _ratios(report.figures)
    return report


def _many(figures: Sequence[Figure]) -> list[Figure]:
    found = [one for one in figures if one.name in MANY]
    worst = max(found, key=lambda one: one.value, default=None)
    return [replace(worst, name="launch_overhead_many_ns", beside=worst.name)] if worst else []


def _ratios(figures: Sequence[Figure]) -> list[Figure]:
    """Ratios to the basic operations of each work, measured in the same run. That of the worst of
    many ways to launch has no goal, as these ways have none."""
    bare = {"LD_LIBRARY_PATH": str(BUILD / "tests" / "fake")}
    runs = {name: [_run((name,), bare) for _ in range(PAIRS)] for name in BASICS}
    basics = {f"basic_{name}_ns": figure(f"basic_{name}_ns", runs[name], 50, "ns") for name in runs}
    values = {one.name: one.value for one in (*figures, *basics.values())}
    swaps_and_probes = 2 * (values["basic_swap_ns"] + values["basic_probe_ns"])
    call = values["basic_call_ns"]
    bounds = {
        "launch_ratio": ("launch_overhead_1t_ns", "<= 4", call, "basic_call_ns"),
        "launch_many_ratio": ("launch_overhead_many_ns", "", call, "basic_call_ns"),
        "alloc_free_ratio": (
            "alloc_free_overhead_ns",
            "<= 4",
            swaps_and_probes,
            "2 basic_swap_ns + 2 basic_probe_ns",
        ),
    }
    return [
        *basics.values(),
        *(
            figure(name, [values[of] / least], 50, "", goal, beside)
            for name, (of, goal, least, beside) in bounds.items()
            if of in values
        ),
    ]


def _pairs(work: Work, slot: Slot) -> list[tuple[float, float]]:
    """Runs (bare, with the shim), once more than counted: the first run warms the caches."""
    slot.set_limits(Card(card_uuid(0), 64 << 30, compute_mode=COMPUTE_HARD, core_share=work.share))
    bare = {"LD_LIBRARY_PATH": str(BUILD / "tests" / "fake")}
    preload = BUILD / "testing" / "libmizar.so"
    shim = bare | {"LD_PRELOAD": str(preload), "MIZAR_DIR": str(slot.path)}
    asked = work.arguments
    return [(_run(asked, bare), _run(asked, shim)) for _ in range(PAIRS + 1)][1:]


def _run(arguments: Sequence[str], env: dict[str, str]) -> float:
    """The first number that overhead prints."""
    command = [str(BUILD / "bench" / "overhead"), *arguments]
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
    return [
        figure(work.bare, bare, 50, work.unit),
        figure(work.name, added, 50, work.unit, work.goal, work.bare),
    ]
