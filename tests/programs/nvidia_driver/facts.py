"""What the driver libraries answered, as recorded in facts.txt: names, numbers and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvidia_driver.debian import Driver

FACTS: Final = Path(__file__).parent / "facts.txt"
HEAD: Final = """\
# What NVIDIA's driver libraries answer without a card. Made by `python -m nvidia_driver record`.
#
# exported SYMBOL RELEASES           libcuda or libnvidia-ml of these releases exports the symbol
# resolved NAME VERSION FLAVOUR SYMBOL RELEASES
#     cuGetProcAddress of these releases hands out the symbol for the name from that CUDA version
#     on, until the next version of that name and flavour. "-": none. FLAVOUR: "-", or "ptsz" with
#     the flag for per-thread default streams.
"""
SUFFIX: Final = re.compile(r"(_v\d+)?(_pt[sd][sz])?$")


@dataclass(frozen=True)
class Facts:
    """By release: the exported symbols, and the lines of `probe.resolve`."""

    exported: Mapping[int, frozenset[str]]
    resolved: Mapping[int, frozenset[tuple[str, int, str, str]]]


def base_of(symbol: str) -> str:
    """The name that cuGetProcAddress knows: cuMemAlloc of cuMemAlloc_v2."""
    return SUFFIX.sub("", symbol)


def exported(library: Path) -> list[str]:
    """The functions of CUDA and NVML that the library exports, sorted."""
    command = ["nm", "-D", "--defined-only", str(library)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(name for name in (line.split()[-1] for line in lines) if _is_function(name))


def _is_function(name: str) -> bool:
    return bool(re.match(r"cu[A-Z]|nvml[A-Z]", name))


def probe(
    driver: Driver, what: str, names: Iterable[str], env: Mapping[str, str] | None = None
) -> list[str]:
    """The lines that probe.py prints for the driver's libcuda."""
    program = Path(__file__).with_name("probe.py")
    command = [sys.executable, str(program), what, str(driver.libcuda)]
    done = subprocess.run(
        command, input="\n".join(names), capture_output=True, text=True, check=True, env=env
    )
    return done.stdout.splitlines()


def resolved(driver: Driver, env: Mapping[str, str] | None = None) -> list[str]:
    """What cuGetProcAddress of the driver hands out, for the names of its own symbols."""
    symbols = exported(driver.libcuda)
    if "cuGetProcAddress" not in symbols:
        return []
    bases = sorted({f"base:{base_of(symbol)}" for symbol in symbols})
    return probe(driver, "resolve", [*symbols, *bases], env)


def record(drivers: Iterable[Driver]) -> None:
    """Writes facts.txt from these drivers."""
    lines: dict[str, list[int]] = {}
    for driver in drivers:
        symbols = [*exported(driver.libcuda), *exported(driver.libnvml)]
        answers = [f"exported {symbol}" for symbol in symbols]
        answers += [f"resolved {line}" for line in resolved(driver)]
        for answer in answers:
            lines.setdefault(answer, []).append(driver.release.number)
    text = [f"{line} {','.join(map(str, numbers))}" for line, numbers in sorted(lines.items())]
    FACTS.write_text(HEAD + "\n".join(text) + "\n")


def read(path: Path = FACTS) -> Facts:
    """The facts of facts.txt."""
    symbols: dict[int, set[str]] = {}
    answers: dict[int, set[tuple[str, int, str, str]]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        kind, *words, numbers = line.split()
        for number in map(int, numbers.split(",")):
            if kind == "exported":
                symbols.setdefault(number, set()).add(words[0])
            else:
                base, version, flavour, symbol = words
                answers.setdefault(number, set()).add((base, int(version), flavour, symbol))
    return Facts(
        {number: frozenset(names) for number, names in symbols.items()},
        {number: frozenset(found) for number, found in answers.items()},
    )
