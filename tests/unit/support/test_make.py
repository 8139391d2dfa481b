"""`make test` runs every fast test once, whichever part of them it is in."""

import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("unit", "property", "stateful", "simulation")


def commands(*arguments: str) -> list[str]:
    """What make would run, the commands of the makes within included."""
    # Of a make around this one, which may run its jobs in parallel.
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["make", "--dry-run", *arguments],
        cwd=ROOT,
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def files(command: str) -> Iterator[Path]:
    """The test files that a command of pytest runs."""
    words = [word for word in shlex.split(command) if word.startswith(("tests/", "--ignore="))]
    ignored = [ROOT / word.removeprefix("--ignore=") for word in words if word[0] == "-"]
    assert all(path.exists() for path in ignored), command
    for word in words:
        if word[0] != "-":
            path = ROOT / word
            assert path.exists(), command
            for file in [path] if path.is_file() else path.rglob("test_*.py"):
                if not any(file.is_relative_to(each) for each in ignored):
                    yield file


def run_by(*targets: str) -> Counter[Path]:
    """How often each test file is run."""
    tests = [one for one in commands(*targets) if re.search(r"/pytest -q tests/", one)]
    return Counter(file for one in tests for file in files(one))


def fast_tests() -> set[Path]:
    return {file for name in FOLDERS for file in (ROOT / "tests" / name).rglob("test_*.py")}


@pytest.mark.parametrize("targets", [("check", "check-more"), ("beside-e2e",)])
def test_every_fast_test_is_run(targets: tuple[str, ...]) -> None:
    runs = run_by(*targets)
    assert fast_tests() <= set(runs)


def test_no_fast_test_is_in_two_parts() -> None:
    runs = run_by("check", "check-more")
    assert [file for file, times in runs.items() if times > 1] == []
