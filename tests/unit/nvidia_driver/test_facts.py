"""The shim's table and the simulated driver agree with NVIDIA's own driver libraries."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

import nvidia_driver
from nvidia_driver.facts import base_of
from simgpu.build import SOURCES

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "shim" / "tools"))
import hook_table  # noqa: E402

FACTS = nvidia_driver.read()
RELEASES = sorted(FACTS.exported)
RESOLVING = sorted(FACTS.resolved)  # cuGetProcAddress exists since 465
CUDA = {470: 11040, 535: 12020, 550: 12040, 555: 12050}
UNPUBLISHED = {"cuEGLApiInit", "cuMemGetAttribute", "cuMemGetAttribute_v2"}
"""Functions that no header declares: programs have no way to call them."""

Entry = tuple[str, int, str, str]  # name, CUDA version, flavour, symbol


def of_shim() -> set[Entry]:
    functions = hook_table.read_driver()
    entries = ((one.entry, one.symbol) for one in functions)
    return {(e.base, e.since, e.flavour or "-", symbol) for e, symbol in entries}


def of_simulated_driver() -> set[Entry]:
    lines = (SOURCES / "driver_symbols.txt").read_text().splitlines()
    rows = [line.split() for line in lines]
    return {
        (base, int(since), flavour, symbol) for symbol, base, since, flavour in rows if since != "0"
    }


def expected(
    entries: Iterable[Entry], release: int
) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """By name and flavour, the versions from which another symbol is handed out, and which."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    entries = [
        one for one in entries if one[1] <= CUDA[release] and one[3] in FACTS.exported[release]
    ]
    twins = {base for base, _, flavour, _ in entries if flavour != "-"}
    for base, since, flavour, symbol in sorted(entries, key=lambda one: one[1]):
        if flavour == "-":
            found[base, "-"].append((since, symbol))
        if (flavour != "-") == (base in twins):
            found[base, "ptsz"].append((since, symbol))
    return found


def answered(release: int) -> dict[tuple[str, str], list[tuple[int, str]]]:
    found: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for base, since, flavour, symbol in sorted(FACTS.resolved[release], key=lambda one: one[1]):
        found[base, flavour].append((since, symbol))
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_the_shim_knows_every_function_of_libcuda(release: int) -> None:
    known = {function.entry.base for function in hook_table.read_driver()}
    functions = {name for name in FACTS.exported[release] if name.startswith("cu")}
    assert len(functions) > 400
    assert {name for name in functions if base_of(name) not in known} == UNPUBLISHED


@pytest.mark.parametrize("release", RELEASES)
def test_the_shim_knows_every_function_of_nvml_about_memory_and_processes(release: int) -> None:
    functions = {name for name in FACTS.exported[release] if name.startswith("nvml")}
    assert len(functions) > 200
    assert hook_table.check_nvml(functions, hook_table.read_nvml()) == []


def test_answers_are_recorded() -> None:
    assert sorted(CUDA) == RESOLVING
    assert all(len(answered(release)) > 700 for release in RESOLVING)


@pytest.mark.parametrize("release", RESOLVING)
@pytest.mark.parametrize("table", [of_shim(), of_simulated_driver()], ids=["shim", "simulated"])
def test_cuGetProcAddress_hands_out_what_the_table_says(release: int, table: set[Entry]) -> None:
    theirs, ours = answered(release), expected(table, release)
    both = theirs.keys() & ours.keys()
    assert len(both) > 600
    assert {key: (theirs[key], ours[key]) for key in both if theirs[key] != ours[key]} == {}


@pytest.mark.parametrize("release", RESOLVING)
def test_the_shim_knows_every_name_of_cuGetProcAddress(release: int) -> None:
    ours = expected(of_shim(), release)
    assert {base for base, _ in answered(release).keys() - ours.keys()} <= UNPUBLISHED
