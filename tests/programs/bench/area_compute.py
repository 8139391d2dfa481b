"""Measures how exactly containers get their share of a card's time, on simulated cards.

The card's own account is compared: which process it worked for in each millisecond. Each container
consists of processes that keep the card busy (workloads/load.c) under the shim. The node agent runs
beside them as it does on a node (support/node_agent.py): in one process it starts the containers,
audits them by NVML, and slices their time. Nothing has a raised priority. Every case is run; the
worst one is the figure, and the table shows each. Several cases run at the same time, each on a
card of its own.

Of windows of one second, the worst is the figure. Of windows of a tenth of a second, it is the
error that 95 % of them do not exceed, and the table shows the worst as well: a kernel cannot be
interrupted, so a kernel of 5 ms moves single windows of 100 ms by up to 4.5 points at a share of 10
%. For the same reason, a share counts as settled when 95 % of such windows are within 3 points, or
within the error that a kernel of that length causes. Erratic work (one function, sometimes 20 us
and sometimes 5 ms) cannot be predicted: its errors are figures of their own.

Windows in which the machine was too busy with other programs are unknown. Cases that lost much to
that are repeated a few times (compute/runner.py): the tables show how much they lost, and
disturbed_percent of a figure how many windows are unknown of the case that it is taken from.

The cards are ideal, except in the last part: there, they have all the delays that real cards may
have (simgpu's profile `harsh`), and the goals are wider.

MIZAR_BENCH_SECONDS: how long each case runs after it has settled (2 s).
MIZAR_BENCH_CARDS: how many cases run at the same time; fewer if there are few processors or they
are busy.
"""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap

from bench.compute import windows
from bench.compute.rig import Case, Tenant, Work
from bench.compute.runner import CARDS, SECONDS, SETTLING_MS, Result, Runner, Value
from bench.figures import ROOT, Details, Figure, Report
from mizar_core.models import ComputeMode

SHARES = (10, 25, 50, 75, 90)


@dataclass(frozen=True)
class Kind:
    """A kind of work: the load's arguments, and its longest piece in ms. No scheduler can predict
    erratic work, so it is shown without a goal."""

    load: str
    longest: float
    erratic: bool = False


KINDS = {
    "20 us": Kind("us_20", 0.02),
    "200 us": Kind("us_200", 0.2),
    "5 ms": Kind("ms_5", 5),
    "mixed": Kind("mixed", 5),
    "graphs": Kind("graph", 1),
    "cooperative": Kind("cooperative", 0.2),
    "narrow, 4 streams": Kind("narrow 4", 0.2),
    "mixed, 3 streams": Kind("mixed 3", 5),
    "uneven": Kind("uneven", 0.28),
    "erratic": Kind("erratic", 5, erratic=True),
}
MANY_STREAMS = {"20 us, 8 streams": Kind("us_20 8", 0.02)}
"""Used beside a container with a single stream."""
HIDERS = ("interrupted", "hiding")
"""Loads whose work could be mistaken for stalls, or measured as less than it is."""
HIDERS_SHARE = 20
BELOW = ("eager", "copying", "calling_back", "prefetching")
"""Loads that leave more than half of a card idle, whatever their share is."""
KEPT_SHARES = (5, 10, 25, 50)
KEPT_US = (2, 5, 20)
KEPT_STREAMS = (2, 4, 8)
KEPT_AT_ONCE = 2  # each case needs a processor
WANTED = {"short_lived": 100.0, "workers": 30.0}
"""Percent of the card that programs of many threads would use."""
PROCESSES = (1, 3)
HARSH_KINDS = ("20 us", "200 us", "5 ms")
HARSH_SHARES = (30, 50)
HARSH_AT_ONCE = 3
STEPS = ((1.5, 20.0), (3.0, 80.0))  # (seconds, percent): shares after 50 % at first
MANY = 16
WAKES_MS = 1000
WAKERS: dict[str, tuple[int, int, ComputeMode, int]] = {
    # shares of a Soft container that has all of the card and of the owner that wakes, and the
    # owner's mode and priority; a container without a share borrows the card
    "Hard, the card is lent": (0, 70, "Hard", 0),
    "Soft": (30, 70, "Soft", 0),
    "Soft, higher priority": (10, 50, "Soft", 1),
    "Soft, the card is lent": (0, 50, "Soft", 0),
}

Worst = Callable[[Sequence[Value]], Value]
"""`min` or `max`: which of the values is the worst."""
Pair = tuple[str, str, int, ComputeMode]
"""The kinds of work of both containers, the number of processes of each, and the mode."""


_runner = Runner()


def measure() -> Report:
    """Run every case."""
    subprocess.run(["make", "-s", "-C", ROOT / "shim", "bench"], check=True)
    report = Report("compute")
    parts = (_check, _alone, _changes, _pairs, _many, _soft, _wakes, _below, _hidden)
    for part in (*parts, _kept, _functions, _harsh):
        try:
            figures, details = part()
        except ValueError as error:
            report.unmeasured.append(str(error))
            continue
        report.figures += figures
        report.details.append(details)
        print(f"  {details.title}", flush=True)
        for one in figures:
            print(f"    {one.name}: {one.value:g} {one.unit}", flush=True)
    return report


def _busy(count: int, kind: str) -> tuple[str, ...]:
    return ((KINDS | MANY_STREAMS)[kind].load,) * count


def _name(kind: str, processes: int) -> str:
    return f"{kind}, {processes} processes" if processes > 1 else kind


# ---- checks of the benchmark itself --------------------------------------------------------------


def _check() -> tuple[list[Figure], Details]:
    """Without the shim, one container alone has the whole card, and two have half of it each."""
    cases = [
        Case(_name(kind, count), (Tenant(_busy(1, kind), mode=None),) * count)
        for kind in ("20 us", "5 ms")
        for count in (1, 2)
    ]
    rows, fullest, apart = [], list[Value](), list[Value]()
    for one in _runner.run(cases):
        parts = one.percents()
        second = f"{parts[1]:.2f}" if len(parts) > 1 else ""
        rows.append((one.case.name, f"{parts[0]:.2f}", second, f"{one.lost:.2f}"))
        fullest.append(one.value(sum(parts)))
        if second:
            apart.append(one.value(abs(parts[0] - parts[1])))
    columns = ("work without the shim", "first %", "second %", "lost %")
    worst = [
        _worst("bare_busy_percent", fullest, "%", worst=min),
        _worst("bare_apart_points", apart, "points"),
    ]
    return worst, Details("The card without the shim", columns, rows)


# ---- one container with a Hard share -------------------------------------------------------------


def _alone() -> tuple[list[Figure], Details]:
    """These cases run twice as long as others: in 2 s, a share of 10 % has only two dozen pieces of
    5 ms, so that the error of 95 % of windows would be chance."""
    cases = [(kind, count, share) for kind in KINDS for count in PROCESSES for share in SHARES]
    found, rows = _Found(), []
    results = _runner.run(
        (
            Case(_name(kind, count), (Tenant(_busy(count, kind), share),))
            for kind, count, share in cases
        ),
        2 * SECONDS,
    )
    for (kind, _, share), one in zip(cases, results, strict=True):
        work, control = one.works[0], one.control
        values = (
            windows.worst(work, share, windows.SECOND, SETTLING_MS, control),
            windows.usual(work, share, windows.TENTH, SETTLING_MS, control),
            windows.worst(work, share, windows.TENTH, SETTLING_MS, control),
            windows.settled_after(work, share, 0, len(work), control, KINDS[kind].longest),
        )
        found.add(kind, f"share_{share}_error_1s", values[0], one)
        found.add(kind, "share_error_100ms", values[1], one)
        found.add(kind, "settle_from_start", values[3], one)
        shown = (_told(each) for each in (*one.percents(), *values[:3]))
        rows.append((one.case.name, f"{share} %", *shown, _told(values[3], 0), f"{one.lost:.2f}"))
    columns = (
        "alone, Hard",
        "asked",
        "mean %",
        "worst 1 s",
        "95 % of 100 ms",
        "worst 100 ms",
        "settled ms",
        "lost %",
    )
    errors = [f"share_{share}_error_1s" for share in SHARES]
    figures = [found.figure(name, "points", "<= 1 points") for name in errors]
    figures.append(found.figure("share_error_100ms", "points", "<= 3 points"))
    figures.append(found.figure("settle_from_start", "ms"))
    figures.append(found.erratic("share", errors))
    return figures, Details("One container with a Hard share", columns, rows)


def _changes() -> tuple[list[Figure], Details]:
    """The limit is lowered and raised while the container works."""
    cases = [(kind, count) for kind in KINDS for count in PROCESSES]
    found, rows = _Found(), []
    results = _runner.run(
        (
            Case(_name(kind, count), (Tenant(_busy(count, kind), 50, changes=STEPS),))
            for kind, count in cases
        ),
        seconds=4.2,
    )
    for (kind, _), one in zip(cases, results, strict=True):
        times = _settled_steps(one.works[0], one.control, KINDS[kind].longest)
        for each in times:
            found.add(kind, "settle", each, one)
        rows.append((one.case.name, *(_told(each, 0) for each in times), f"{one.lost:.2f}"))
    changes = (f"to {share:.0f} %" for _, share in STEPS)
    columns = ("settled after ms", "start, 50 %", *changes, "lost %")
    figures = [found.figure("settle", "ms", "<= 300 ms")]
    return figures, Details("A limit that changes", columns, rows)


def _settled_steps(work: Work, control: Work, longest: float) -> list[float | None]:
    steps = [(0, 50.0), *((round(at * 1000), share) for at, share in STEPS)]
    ends = [at for at, _ in steps[1:]] + [len(work)]
    return [
        windows.settled_after(work, share, start, end, control, longest)
        for (start, share), end in zip(steps, ends, strict=True)
    ]


# ---- several containers on a card ----------------------------------------------------------------


def _pairs() -> tuple[list[Figure], Details]:
    found, rows = _Found(), []
    cases = _pair_cases()
    alone = _alone_without_the_shim()
    results = _runner.run(case for _, case in cases)
    for (kind, _), one in zip(cases, results, strict=True):
        (first, second), asked = one.works, one.case.tenants[0].share
        error = windows.ratio_error(first, second, asked, SETTLING_MS, one.control)
        found.add(kind, f"pair_{asked:.0f}_{100 - asked:.0f}_error", error, one)
        apart = [
            windows.worst(work, tenant.share, windows.SECOND, SETTLING_MS, one.control)
            for work, tenant in zip(one.works, one.case.tenants, strict=True)
        ]
        for each in apart:
            found.add(kind, "pair_tenant_error", each, one)
        parts = one.percents()
        busy = sum(parts)
        found.add(kind, "pair_busy", busy, one)
        throughput = one.throughput_percent / alone[kind].throughput_percent
        found.add(kind, "pair_total_throughput", throughput, one, alone[kind])
        figures = (100 * parts[0] / (busy or 1), busy, throughput, error, *apart, one.lost)
        ratio = f"{asked:.0f}:{100 - asked:.0f}"
        rows.append((one.case.name, ratio, *(_told(each) for each in figures)))
    columns = (
        "two containers",
        "asked",
        "first %",
        "card busy %",
        "of one alone",
        "ratio, worst 1 s",
        "first, worst 1 s",
        "second, worst 1 s",
        "lost %",
    )
    errors = ["pair_30_70_error", "pair_50_50_error"]
    worst = [found.figure(name, "points", "<= 1 points") for name in (*errors, "pair_tenant_error")]
    worst.append(found.figure("pair_busy", "percent", ">= 97 %", min))
    worst.append(found.figure("pair_total_throughput", "ratio", "", min))
    worst.append(found.erratic("pair", [*errors, "pair_tenant_error"]))
    return worst, Details("Two containers on a card", columns, rows)


def _alone_without_the_shim() -> dict[str, Result]:
    """For each kind of work, one container without the shim. A pair has less throughput because of
    context switches and because the card waits."""
    results = _runner.run(Case(kind, (Tenant(_busy(1, kind), mode=None),)) for kind in KINDS)
    return {one.case.name: one for one in results}


def _pair_cases() -> list[tuple[str, Case]]:
    """Each pair with the kind of work of its first tenant."""
    alike: list[Pair] = [(kind, kind, count, "Hard") for kind in KINDS for count in PROCESSES]
    unlike: list[Pair] = [("20 us", "5 ms", 1, "Hard"), ("5 ms", "20 us", 1, "Hard")]
    streams: list[Pair] = [("20 us", "20 us, 8 streams", 1, "Hard")]
    weighted: list[Pair] = [("20 us", "20 us", 1, "Weighted"), ("5 ms", "mixed", 1, "Weighted")]
    cases = []
    for first, second, count, mode in alike + unlike + streams + weighted:
        kinds = first if first == second else f"{first} and {second}"
        for share in (30, 50):
            tenants = (
                Tenant(_busy(count, first), share, mode),
                Tenant(_busy(count, second), 100 - share, mode),
            )
            cases.append((first, Case(f"{mode}: {_name(kinds, count)}", tenants)))
    return cases


def _many() -> tuple[list[Figure], Details]:
    """One case at a time, since sixteen busy processes use the whole machine. The cases run longer:
    in 2 s each tenant has 25 kernels of 5 ms, so that one more or less is already unfair."""
    rows, found, busy, apart = [], [], [], []
    kinds = ("20 us", "200 us", "5 ms", "mixed")
    cases = [Case(kind, (Tenant(_busy(1, kind), 100 / MANY),) * MANY) for kind in kinds]
    for one in _runner.run(cases, 5 * SECONDS, at_once=1):
        parts = one.percents()
        found.append(one.value(windows.jain(parts)))
        busy.append(one.value(sum(parts)))
        apart += [one.value(abs(part - 100 / MANY)) for part in parts]
        figures = (*(f(parts) for f in (min, max, sum)), one.lost)
        rows.append((one.case.name, f"{found[-1].value:.5f}", *(f"{each:.2f}" for each in figures)))
    columns = (f"{MANY} containers", "Jain's index", "least %", "most %", "card busy %", "lost %")
    worst = [
        _worst("jain_16", found, "", ">= 0.9995", worst=min),
        _worst("jain_16_busy_percent", busy, "%", ">= 97 %", worst=min),
        _worst("jain_16_tenant_error_points", apart, "points", "<= 1 points"),
    ]
    return worst, Details("Sixteen containers of equal share", columns, rows)


def _soft() -> tuple[list[Figure], Details]:
    """A Soft container alone on its card has all of it: compared with the same load without the
    shim."""
    cases = [
        Case(kind, (Tenant(_busy(1, kind), 50, mode),)) for kind in KINDS for mode in (None, "Soft")
    ]
    done = _runner.run(cases, at_once=CARDS // 2 * 2 or 2)
    rows, ratios = [], []
    for bare, soft in zip(done[::2], done[1::2], strict=True):
        ratios.append(_ratio((bare, soft)))
        got = (f"{each:.2f}" for one in (bare, soft) for each in one.percents())
        rows.append((bare.case.name, *got, f"{ratios[-1].value:.4f}", f"{soft.lost:.2f}"))
    columns = ("alone, Soft 50 %", "bare %", "with the shim %", "ratio", "lost %")
    figures = [_worst("soft_alone_ratio", ratios, "", ">= 0.995", worst=min)]
    return figures, Details("What a Soft container alone gets", columns, rows)


def _wakes() -> tuple[list[Figure], Details]:
    """The owner of a card wakes while a borrower uses all of the card."""
    cases = [(kind, how) for kind in ("200 us", "5 ms") for how in WAKERS]
    rows, woken, begun, shareless = [], [], [], []
    for (kind, how), one in zip(
        cases, _runner.run(starmap(_waking, cases), seconds=1.5), strict=True
    ):
        owner, share = one.works[1], one.case.tenants[1].share
        woken.append(one.value(windows.woken_after(owner, share, WAKES_MS)))
        begun.append(one.value(windows.begun_after(owner, WAKES_MS)))
        before, after = one.percents(end=WAKES_MS)[0], one.percents(WAKES_MS + SETTLING_MS)
        if not one.case.tenants[0].share:
            shareless.append(one.value(after[0]))
        shown = (f"{each:.2f}" for each in (before, *after, one.lost))
        rows.append((kind, how, f"{begun[-1].value:g}", f"{woken[-1].value:g}", *shown))
    columns = (
        "borrower",
        "owner",
        "first work ms",
        "its share ms",
        "borrower before %",
        "after %",
        "owner after %",
        "lost %",
    )
    figures = [
        _worst("owner_wake_ms", woken, "ms", "<= 100 ms"),
        _worst("owner_first_work_ms", begun, "ms", "<= 50 ms"),
        _worst("shareless_beside_owner_percent", shareless, "%", "<= 1 %"),
    ]
    return figures, Details("An owner that wakes while another has all of the card", columns, rows)


def _waking(kind: str, how: str) -> Case:
    lower, share, mode, priority = WAKERS[how]
    borrower = Tenant(_busy(1, kind), lower, "Soft")
    wakes = WAKES_MS / 1000
    owner = Tenant(_busy(1, "200 us"), share, mode, wakes=wakes, priority=priority)
    return Case(f"{kind}, {how}", (borrower, owner))


def _below() -> tuple[list[Figure], Details]:
    """A container that uses less than its share is not slowed down. One case runs at a time, since
    each needs a processor."""
    rows, ratios = [], []
    for load in BELOW:
        tenants = (Tenant((load,), 50, None), Tenant((load,), 50))
        done = _runner.run([Case(load, (each,)) for each in tenants], at_once=1)
        ratios.append(_ratio(done))
        got = (f"{each:.2f}" for one in done for each in one.percents())
        rows.append((load, *got, f"{ratios[-1].value:.4f}", f"{done[1].lost:.2f}"))
    columns = ("alone, Hard 50 %", "bare %", "with the shim %", "ratio", "lost %")
    figures = [_worst("below_share_ratio", ratios, "", ">= 0.95", worst=min)]
    return figures, Details("What a container gets that needs less than its share", columns, rows)


def _hidden() -> tuple[list[Figure], Details]:
    """Work is charged also if it could be mistaken for stalls, or measured as less than it is."""
    cases = [Case(load, (Tenant((load,), HIDERS_SHARE),)) for load in HIDERS]
    rows, excess = [], []
    for one in _runner.run(cases, 2 * SECONDS):
        (got,) = one.percents()
        excess.append(one.value(got - HIDERS_SHARE))
        rows.append((one.case.name, f"{HIDERS_SHARE} %", f"{got:.2f}", f"{one.lost:.2f}"))
    columns = ("alone, Hard", "asked", "mean %", "lost %")
    figures = [_worst("hidden_excess_points", excess, "points", "<= 1 points")]
    return figures, Details("Work that hides", columns, rows)


def _kept(seconds: float = SECONDS) -> tuple[list[Figure], Details]:
    """How much of their share programs of many streams or threads use: one thread that launches
    into its streams in turn, threads that end soon, sixteen workers that launch little."""
    loads = {
        f"us_{us} {streams} {max(1, 4 // streams)} in_turns": "streams"
        for us in KEPT_US
        for streams in KEPT_STREAMS
    } | {"short_lived": "threads", "workers": "workers"}
    cases = [Case(load, (Tenant((load,), share),)) for load in loads for share in KEPT_SHARES]
    rows, kept, above = [], dict[str, list[Value]](), list[Value]()
    for one in _runner.run(cases, seconds, at_once=min(CARDS, KEPT_AT_ONCE)):
        name, share = one.case.name, one.case.tenants[0].share
        wanted = min(share, WANTED.get(name, 100.0))
        (got,) = one.percents()
        kept.setdefault(loads[name], []).append(one.value(got / wanted))
        most = max(windows.shares(one.works[0], windows.SECOND, SETTLING_MS))
        above.append(one.value(most - share))
        shown = (f"{each:.2f}" for each in (got, got / wanted, most - share, one.lost))
        rows.append((name, f"{share} %", *shown))
    columns = (
        "many streams or threads",
        "share",
        "mean %",
        "of what it wants",
        "above, 1 s",
        "lost %",
    )
    figures = [_worst(f"{of}_kept_ratio", each, "", ">= 0.9", min) for of, each in kept.items()]
    figures.append(_worst("kept_above_points", above, "points", "<= 1 points"))
    return figures, Details("Shares of many streams and threads", columns, rows)


def _functions() -> tuple[list[Figure], Details]:
    """Launches of 5,000 functions in turn, compared with the same program without the shim, once
    each has been measured."""
    cases = [
        Case("5,000 functions", (Tenant(("functions",), 100, mode),)) for mode in (None, "Hard")
    ]
    done = [_runner.run([case], 3.0, at_once=1)[0] for case in cases]
    last = -windows.SECOND
    got = (f"{each:.2f}" for one in done for each in one.percents(len(one.works[0]) + last))
    rows = [("5,000 functions", *got, f"{done[1].lost:.2f}")]
    ratio = _ratio(done, last=windows.SECOND)
    figures = [_worst("launch_5000_functions_ratio", [ratio], "", ">= 0.8", min)]
    columns = ("launched in turn", "bare %", "with the shim %", "lost %")
    return figures, Details("Many functions", columns, rows)


# ---- harsh cards ---------------------------------------------------------------------------------


def _harsh() -> tuple[list[Figure], Details]:
    """One container and two. The cases run longer, since a slice of a harsh card takes up to 6
    ms."""
    cases = _harsh_cases()
    done = dict(zip(cases, _runner.run(cases.values(), 2 * SECONDS, HARSH_AT_ONCE), strict=True))
    rows, errors = [], dict[int, list[Value]]()
    for (kind, share, count), one in done.items():
        parts = one.percents()
        found = _known_errors(one) if share else []
        errors.setdefault(count, []).extend(map(one.value, found))
        shown = (" and ".join(f"{part:.2f}" for part in parts), _told(max(found, default=None)))
        asked = " and ".join(f"{each.share:g} %" for each in one.case.tenants) if share else "bare"
        rows.append((kind, asked, *shown, f"{one.lost:.2f}"))
    figures = [
        _worst("harsh_share_error_1s_points", errors[1], "points", "<= 5 points"),
        _worst("harsh_pair_tenant_error_points", errors[2], "points", "<= 5 points"),
    ]
    columns = ("harsh card", "asked", "mean %", "worst 1 s", "lost %")
    return figures, Details("Shares on harsh cards", columns, rows)


def _harsh_cases() -> dict[tuple[str, int, int], Case]:
    """Cases by kind of work, share of the first tenant (0: without the shim), and number of
    containers."""
    cases = {}
    for kind in HARSH_KINDS:
        cases[kind, 0, 1] = Case(kind, (Tenant(_busy(1, kind), mode=None),), harsh=True)
        for share in HARSH_SHARES:
            one, other = (Tenant(_busy(1, kind), each) for each in (share, 100 - share))
            cases[kind, share, 1] = Case(kind, (one,), harsh=True)
            cases[kind, share, 2] = Case(kind, (one, other), harsh=True)
    return cases


def _known_errors(one: Result) -> list[float]:
    """The worst second of each tenant, where it is known."""
    errors = (
        windows.worst(work, tenant.share, windows.SECOND, SETTLING_MS, one.control)
        for work, tenant in zip(one.works, one.case.tenants, strict=True)
    )
    return [each for each in errors if each is not None]


def _told(value: float | None, digits: int = 2) -> str:
    return "?" if value is None else f"{value:.{digits}f}"


def _value(value: float, *cases: Result) -> Value:
    """A value that is computed from these cases: it is as uncertain as the worst of them."""
    return Value(value, max(one.disturbed for one in cases))


def _ratio(bare_and_shim: Sequence[Result], last: int | None = None) -> Value:
    """What the card did with the shim, as a part of what it did without it: in the last `last` ms,
    or in all of the time after settling."""
    starts = [SETTLING_MS if last is None else len(one.works[0]) - last for one in bare_and_shim]
    bare, shim = (one.percents(start)[0] for one, start in zip(bare_and_shim, starts, strict=True))
    return _value(shim / bare, *bare_and_shim)


class _Found:
    """The values of each figure in all cases, of which the worst is taken. Erratic work is
    separate."""

    def __init__(self) -> None:
        self._values: dict[str, list[Value]] = {}
        self._erratic: dict[str, list[Value]] = {}

    def add(self, kind: str, name: str, value: float | None, *cases: Result) -> None:
        """Add the value of a case with that kind of work, and the case (and another one to which
        it was compared); None: unknown."""
        values = self._erratic if KINDS[kind].erratic else self._values
        values.setdefault(name, [])
        if value is not None:
            values[name].append(_value(value, *cases))

    def figure(self, name: str, unit: str, goal: str = "", worst: Worst = max) -> Figure:
        """The worst case. Raises ValueError if none is known."""
        return _worst(f"{name}_{unit}", self._values[name], unit, goal, worst)

    def erratic(self, title: str, names: Sequence[str]) -> Figure:
        """The worst of several figures together, for erratic work."""
        values = [value for name in names for value in self._erratic[name]]
        return _worst(f"erratic_{title}_error_points", values, "points")


def _worst(
    name: str, values: Sequence[Value], unit: str, goal: str = "", worst: Worst = max
) -> Figure:
    """A figure from the worst case; it was disturbed as much as that case was."""
    if not values:
        raise ValueError(f"{name}: the machine was too busy with other things in every case")
    value, disturbed = worst(values)
    spread = (round(min(values).value, 5), round(max(values).value, 5))
    return Figure(name, round(value, 5), unit, goal, len(values), spread, "", disturbed)
