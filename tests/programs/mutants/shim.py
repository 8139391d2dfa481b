"""`make mutants-shim`: puts each fault of shim.toml into a copy of the tree under build/, and runs
the tests that should notice it there.

Exits with 1 if a fault survives. Writes build/mutants-shim.json. ONLY=text selects the faults with
that text in their name.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[3]
LISTED = Path(__file__).with_name("shim.toml")
TREE = ROOT / "build" / "mutants-shim"
PACKAGES = ("core", "kube", "operator", "nodeagent", "tests", "tests/programs")
LIBRARIES = ("testing/libmizar.so", "tests/account", "tests/libpure.so")
"""The targets, under build/shim, that are built from the sources with faults."""
MADE_THERE = {"build", "__pycache__", ".hypothesis"}
"""Folders of the copy that no file is copied into."""
TIMEOUT_S = 600
KILLED, SURVIVED = 1, 0  # pytest's exit codes


class Unusable(Exception):
    """A fault cannot be tried; the message says which one and why."""


@dataclass(frozen=True)
class Fault:
    """Replaces `before`, which occurs exactly once in the file of shim/, by `after`."""

    name: str
    file: str
    before: str
    after: str
    why: str
    tests: Sequence[str]

    def put_into(self, text: str) -> str:
        """The file's content with the fault. Raises Unusable."""
        if (count := text.count(self.before)) != 1:
            raise Unusable(f"{self.name}: its text is {count} times in {self.file}, not once")
        return text.replace(self.before, self.after)


@dataclass(frozen=True)
class Result:
    """The result of a fault, and the first test that noticed it."""

    name: str
    why: str
    killed: bool
    noticed: str
    seconds: float


def faults() -> list[Fault]:
    """Reads all faults. Raises TypeError for a fault with other fields, Unusable for two of the
    same name."""
    found = [Fault(**one) for one in tomllib.loads(LISTED.read_text())["fault"]]
    if len({one.name for one in found}) < len(found):
        raise Unusable("two faults have the same name")
    return found


def try_out(fault: Fault) -> Result:
    """Build with the fault, run the tests, and restore the file. Raises Unusable."""
    file, began = TREE / "shim" / fault.file, time.monotonic()
    right = file.read_text()
    file.write_text(fault.put_into(right))
    try:
        if (built := _make(LIBRARIES)).returncode:
            raise Unusable(f"{fault.name}: it cannot be compiled:\n{built.stderr}")
        done = _pytest(fault.tests)
    finally:
        file.write_text(right)
    if done.returncode not in (KILLED, SURVIVED):
        raise Unusable(f"{fault.name}: pytest ended with {done.returncode}:\n{done.stdout}")
    noticed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    name = noticed[0].split()[1] if noticed else ""
    seconds = round(time.monotonic() - began, 1)
    return Result(fault.name, fault.why, done.returncode == KILLED, name, seconds)


def copy_tree() -> None:
    """Copy the tracked and new files as they are here, and remove others; build outputs in the copy
    are kept."""
    command = (
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    )
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    here = {name for name in listed.split("\0") if (ROOT / name).is_file()}
    for name in _copied() - here:
        (TREE / name).unlink()  # otherwise a package that has moved would be imported from there
    for name in here:
        source, target = ROOT / name, TREE / name
        if _is_same(source, target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)  # newer than what was built with a fault


def _copied() -> set[str]:
    """The files that earlier runs have copied."""
    paths = (path.relative_to(TREE) for path in TREE.rglob("*") if path.is_file())
    return {str(path) for path in paths if not MADE_THERE & set(path.parts)}


def _is_same(source: Path, target: Path) -> bool:
    return target.is_file() and target.read_bytes() == source.read_bytes()


def _make(targets: Sequence[str]) -> subprocess.CompletedProcess[str]:
    built = (str(TREE / "build" / "shim" / one) for one in targets)
    # A fault may leave something unused, which must not be an error of the compiler.
    command = ("make", "-s", "-C", str(TREE / "shim"), "-j2", "CFLAGS=-O2 -g -w", *built)
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def _pytest(tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    folders = (str(TREE / one) for one in PACKAGES)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "MIZAR_SHIM_IS_BUILT": "1",
        "MIZAR_SHRINK": "0",
    }
    paths = (f"tests/unit/shim/{one}" for one in tests)
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths)
    return subprocess.run(
        command, cwd=TREE, env=env, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def _report(results: Sequence[Result]) -> None:
    path = ROOT / "build" / "mutants-shim.json"
    path.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    table = Table("fault", "killed", "by", "s", title="Faults in the shim")
    for one in results:
        killed = "yes" if one.killed else "[red]no[/red]"
        table.add_row(one.name, killed, one.noticed.rpartition("/")[2], f"{one.seconds:.0f}")
    Console(width=160).print(table)


def _prepare(chosen: Sequence[Fault]) -> None:
    """The copy of the tree, built, in which all tests pass. Raises Unusable."""
    copy_tree()
    for fault in chosen:
        fault.put_into((TREE / "shim" / fault.file).read_text())
    subprocess.run(("make", "-s", "-C", str(TREE / "shim"), "-j2", "tests", "bench"), check=True)
    done = _pytest(sorted({name for fault in chosen for name in fault.tests}))
    if done.returncode:
        raise Unusable(f"the tests fail without any fault:\n{done.stdout[-5000:]}")


def main() -> int:
    """Returns the exit status: 1 if a fault survived, 2 if one cannot be tried."""
    results: list[Result] = []
    try:
        chosen = [one for one in faults() if os.environ.get("ONLY", "") in one.name]
        _prepare(chosen)
        for fault in chosen:
            results.append(try_out(fault))
            print(f"  {'killed' if results[-1].killed else 'SURVIVED'}: {fault.name}", flush=True)
    except Unusable as error:
        print(error, file=sys.stderr)
        return 2
    _report(results)
    return int(not all(one.killed for one in results))


if __name__ == "__main__":
    sys.exit(main())
