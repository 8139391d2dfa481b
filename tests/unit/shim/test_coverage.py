"""Every hook is called by some snippet: the compiler counts, in a build of the shim for that."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import run, shim_env
from .slot import BUILD, MIB, ROOT, Card, Slot, card_uuid

COVERAGE = BUILD / "coverage"
OTHER_WAYS = [
    ("snippets", "cuInit", "dlsym"),
    ("snippets", "cuInit", "proc"),
    ("snippets", "cuInit", "proc_v1"),
    ("hidden", "linked.so", "deep_late"),
    ("hidden", "linked.so", "space"),
]


def hooks() -> set[str]:
    table = (ROOT / "shim" / "src" / "lookup" / "hooks_generated.def").read_text()
    return set(re.findall(r"^HOOK\(\w+, (\w+),", table, re.MULTILINE))


def snippets(env: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """Every snippet of every program of snippets, as a command."""
    for program in ("snippets", "nvml"):
        for name in set(run(program, env=env).stdout.split()) - {"oversubscribed"}:
            if not name.startswith("metered"):
                yield program, name, "link"
    for name in run("launches", env=env).stdout.split():
        yield "launches", name, "link", "free"
    for name in set(run("copies", env=env).stdout.split()) - {"metered", "stalls"}:
        yield "copies", name, "link"
    yield "stalls", "all", "link"
    yield "uses", "each_handle_counts", "link"
    yield from OTHER_WAYS


def calls() -> Counter[str]:
    """How often each function of the shim was called."""
    command = ["gcov", "--json-format", "--stdout", *sorted(map(str, COVERAGE.glob("*.gcda")))]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=COVERAGE).stdout
    counted: Counter[str] = Counter()
    for report in told.splitlines():
        for file in json.loads(report)["files"]:
            for function in file["functions"]:
                counted[function["name"]] += function["execution_count"]
    return counted


ASSEMBLY = {"dlsym": "mizar_dlsym", "dlvsym": "mizar_dlvsym"} | {
    name: f"mizar_before_{name}" for name in ("dlopen", "dlmopen")
}


@pytest.mark.timeout(300)
def test_every_hook_has_a_snippet(tmp_path: Path, layout: dict[str, Any]) -> None:
    for old in COVERAGE.glob("*.gcda"):
        old.unlink()
    plain = shim_env(tmp_path)
    for number, command in enumerate(snippets(plain)):
        slot = Slot(tmp_path / str(number), layout)
        slot.set_limits(Card(card_uuid(0), 64 * MIB), Card(card_uuid(1), 32 * MIB))
        env = shim_env(slot.path) | {"LD_PRELOAD": str(COVERAGE / "libmizar.so")}
        run(*command, env=env)
    counted = calls()
    unused = sorted(hook for hook in hooks() if not counted[ASSEMBLY.get(hook, hook)])
    assert not unused, "write a snippet for each of these: see programs/snippets.c"
