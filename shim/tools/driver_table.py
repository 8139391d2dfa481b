"""Compares shim/driver.txt with the hook table and with CUDA's own headers.

driver.txt has a line for every function of the driver: symbol, base name, CUDA version since which
cuGetProcAddress hands it out, flavour (-, ptsz or ptds) and what the shim does about it:

    takes     takes device memory: reserved first
    frees     gives device memory back
    answers   asks for memory: answered with the container's limit
    waits     waits for work, after which drivers give pools' memory back
    lookups   hands out functions
    contexts  makes or ends a context, which costs memory
    launches  starts work on the card
    copies    starts work on a copy engine
    loads     loads code, which takes some memory: left to what NVML says of the container
    passes    goes through

    driver_table.py                    the hook table against driver.txt
    driver_table.py --headers DIR...   DIR/cudaTypedefs.h against driver.txt as well
    driver_table.py --fetch VERSION... the same, with the headers of that nvidia-cuda-runtime wheel
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

SHIM = Path(__file__).resolve().parents[1]
HOOKED = {"takes", "frees", "answers", "waits", "lookups", "contexts"}
CLASSES = HOOKED | {"launches", "copies", "loads", "passes"}


@dataclass(frozen=True, order=True)
class Entry:
    """One function as cuGetProcAddress knows it."""

    base: str
    since: int
    flavour: str


def read_table(path: Path = SHIM / "driver.txt") -> dict[tuple[str, Entry], str]:
    """(symbol, entry) -> class."""
    rows = (line.split() for line in path.read_text().splitlines() if line and line[0] != "#")
    return {
        (symbol, Entry(base, int(since), flavour)): kind
        for symbol, base, since, flavour, kind in rows
    }


def read_hooks(path: Path = SHIM / "src" / "hooks.def") -> set[tuple[str, Entry]]:
    """The driver's lines of the hook table."""
    pattern = re.compile(
        r'^(?:HOOK|ALIAS)\(CUDA, (\w+), "(\w+)", (\d+), (ANY|PER_THREAD)\)', re.MULTILINE
    )
    flavours = {"ANY": "-", "PER_THREAD": "ptsz"}
    return {
        (symbol, Entry(base, int(since), flavours[stream]))
        for symbol, base, since, stream in pattern.findall(path.read_text())
    }


def read_headers(folder: Path) -> set[Entry]:
    """Every function type that cudaTypedefs.h defines."""
    text = (folder / "cudaTypedefs.h").read_text()
    names = re.findall(r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d{4,5})(?:_(ptsz|ptds))?\)", text)
    return {Entry(base, int(since), flavour or "-") for base, since, flavour in names}


def check_hooks() -> list[str]:
    """What is wrong between driver.txt and hooks.def."""
    table, hooks = read_table(), read_hooks()
    wrong = [
        f"{symbol}: no such class: {kind}"
        for (symbol, _), kind in table.items()
        if kind not in CLASSES
    ]
    wrong += [
        f"{symbol}: in hooks.def but not in driver.txt as {entry}"
        for symbol, entry in sorted(hooks - table.keys())
    ]
    wrong += [
        f"{symbol}: {kind}, but has no hook"
        for (symbol, entry), kind in table.items()
        if kind in HOOKED and (symbol, entry) not in hooks
    ]
    wrong += [
        f"{symbol}: has a hook, but {table[symbol, entry]}"
        for symbol, entry in sorted(hooks & table.keys())
        if table[symbol, entry] not in HOOKED | {"launches"}
    ]
    return wrong


def check_headers(folder: Path) -> list[str]:
    """Functions of these headers that driver.txt does not classify."""
    known = {entry for _, entry in read_table()}
    return [
        f"{entry.base} of CUDA {entry.since} ({entry.flavour}) is not in driver.txt"
        for entry in sorted(read_headers(folder) - known)
    ]


def fetch(version: str, into: Path) -> Path:
    """The include folder of the wheel of that CUDA version; needs pip and the network."""
    major = int(version.split(".")[0])
    name = "nvidia-cuda-runtime" + (f"-cu{major}" if major < 13 else "")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(into)]
    subprocess.run([*command, f"{name}=={version}.*"], check=True)
    for wheel in into.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(into)
    return next(into.rglob("cudaTypedefs.h")).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headers", nargs="+", type=Path, default=[])
    parser.add_argument("--fetch", nargs="+", default=[], metavar="VERSION")
    options = parser.parse_args()
    wrong = check_hooks()
    for folder in options.headers:
        wrong += check_headers(folder)
    for version in options.fetch:
        with tempfile.TemporaryDirectory() as directory:
            wrong += check_headers(fetch(version, Path(directory)))
    print("\n".join(wrong) or "every function is classified")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
