"""Mutation testing, on modules of a few lines whose faults can be counted by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mutants.harmless import BadList, Entry, read, sort_out
from mutants.mutations import mutations_of
from mutants.report import Outcome
from mutants.scope import LEFT_OUT, PACKAGES, ROOT, Package, UnknownModule, parts
from mutants.suite import Fate

TINY = '''
"""A module."""

from functools import lru_cache

FIRST = 1


def limit(asked, most=8):
    """The least of both."""
    log.info("asked", asked)
    if asked > most:
        return most
    return asked


def bigger(one):
    return one + FIRST


def unused(one):
    return one + 2


@lru_cache
def endless(count):
    while count > 0:
        count -= 1
    return count


@lru_cache
def doubled(one):
    return one * 2


class Tank:
    def __init__(self):
        self.parts = []

    @property
    def full(self):
        return len(self.parts) == 2

    def add(self, part):
        self.parts.append(part)
        if self.full:
            raise ValueError(f"no more than {2} parts")


class log:
    info = print
'''
TESTS = """
import pytest
import tiny


def test_limit():
    assert tiny.limit(9) == 8
    assert tiny.limit(3) == 3


def test_bigger():
    assert tiny.bigger(1) == 2


def test_endless():
    assert tiny.endless(3) == 0


def test_doubled_is_called():
    tiny.doubled(4)


def test_doubled():
    assert tiny.doubled(4) == 8


def test_tank():
    tank = tiny.Tank()
    tank.add(1)
    with pytest.raises(ValueError):
        tank.add(2)
    assert tank.parts == [1, 2]


def test_fails():
    assert tiny.limit(0) == 1
"""
CONFTEST = """
import gc


def pytest_collection_finish():
    gc.freeze()
"""
"""As Mizar's own tests do."""
LIST = """
# {path}

Of two that are the same it makes no difference which one is taken.

```diff
- if asked > most:
+ if asked >= most:
```

It was so, once.

```diff
- return one * FIRST
```
"""


Played = tuple[subprocess.CompletedProcess[str], Any]


@pytest.fixture(scope="module")
def played(
    tmp_path_factory: pytest.TempPathFactory,
) -> Played:
    """`python -m mutants` of the tiny module: how it ended, and what it wrote."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny, tests = folder / "tiny.py", folder / "test_tiny.py"
    tiny.write_text(TINY)
    tests.write_text(TESTS)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "list.md").write_text(LIST.format(path=tiny))
    asked = [str(tiny), "--tests", str(tests)]
    files = ["--harmless", str(folder / "list.md"), "--out", str(folder / "out.json")]
    done = subprocess.run(
        [sys.executable, "-m", "mutants", *asked, *files],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    return done, json.loads((folder / "out.json").read_text())


def _fates(written: Any) -> dict[str, str]:
    return {one["now"]: one["fate"] for one in written["left"]}


def test_a_survivor_is_told(played: Played) -> None:
    done, written = played
    assert _fates(written) == {"return one - 2": "not_covered", "return one + 3": "not_covered"}
    assert "- return one + 2\n+ return one - 2" in done.stdout


def test_the_report_names_the_test_that_noticed_each_fault(played: Played) -> None:
    noticed = {one["now"]: one["test"].split("::")[1] for one in played[1]["noticed_by"]}
    assert noticed["if not self.full:"] == "test_tank"
    assert noticed["return one - FIRST"] == "test_bigger"
    assert noticed["return len(self.parts) == 3"] == "test_tank"
    assert noticed["count -= 2"] == "test_endless"
    assert noticed["return one * 3"] == "test_doubled", "it is not hidden by a cache"


def test_what_never_ends_is_ended(played: Played) -> None:
    (module,) = played[1]["modules"]
    # A count that grows, and one that is set to 1 again and again.
    assert module["timed_out"] == 2


def test_what_is_listed_does_not_count(
    played: Played,
) -> None:
    (module,) = played[1]["modules"]
    assert module["harmless"] == 1
    assert module["mutants"] == module["killed"] + module["timed_out"] + module["not_covered"]


def test_an_entry_that_fits_nothing_is_told(
    played: Played,
) -> None:
    done, _ = played
    assert done.returncode == 1, done.stderr
    assert "nothing in " in done.stdout and "'return one * FIRST'" in done.stdout


def test_a_test_that_fails_without_a_fault_is_reported_as_such(
    played: Played,
) -> None:
    assert [name.split("::")[1] for name in played[1]["failed_without_fault"]] == ["test_fails"]


def _mutations(folder: Path, text: str) -> dict[str, str]:
    """Each changed line of a module with this text, and what it was."""
    path = folder / "module.py"
    path.write_text(text)
    found = mutations_of(path)
    for one in found:
        compile(one.change.apply(path.read_bytes()), str(path), "exec")
    return {one.now: one.was for one in found}


@pytest.mark.parametrize(
    ("line", "now"),
    [
        ("if a:", "if not a:"),
        ("if a and b:", "if a or b:"),
        ("if a.b(c):", "if not a.b(c):"),
        ("if (a := b):", "if not (a := b):"),
        ("if a < 3:", "if a <= 3:"),
        ("if a is b:", "if a is not b:"),
        ("a(b, c)", "pass"),
        ("a(b, c)", "a(None, c)"),
        ("a(b, c)", "a(c)"),
        ("await a.b()", "pass"),
        ("a += 1", "a -= 1"),
        ('a = "Pod"', 'a = "XXPodXX"'),
        ("[b for b in a if b]", "[b for b in a if not b]"),
    ],
)
def test_a_line_is_changed(tmp_path: Path, line: str, now: str) -> None:
    body = line + " pass" if line.endswith(":") else line
    changed = _mutations(tmp_path, f"async def f(a, b, c):\n    {body}\n")
    assert now in [each.removesuffix(" pass") if line.endswith(":") else each for each in changed]


@pytest.mark.parametrize(
    "line",
    [
        'a = "a sentence for people"',
        'a = f"{b + 1} pods"',
        'self._log.info("told", a=1)',
        'log.warning("told", a=1)',
        '"""A docstring."""',
        "super().__init__()",
        "a: dict[str, int]",
    ],
)
def test_what_only_people_read_is_left(tmp_path: Path, line: str) -> None:
    assert _mutations(tmp_path, f"def f(self, a=1, b=True):\n    {line}\n") == {}


def test_strictness_of_zip_is_left(tmp_path: Path) -> None:
    changed = _mutations(tmp_path, "def f(a, b):\n    return zip(a, b, strict=True)\n")
    assert not [each for each in changed if "strict=True" not in each]


def test_what_runs_at_import_is_left(tmp_path: Path) -> None:
    text = "A = 1\n\n\n@cached(1)\nclass B:\n    a = field(2)\n"
    assert _mutations(tmp_path, text) == {}


def test_a_change_over_several_lines_tells_those_that_change(tmp_path: Path) -> None:
    changed = _mutations(tmp_path, "def f(a):\n    return a(\n        1,\n        2,\n    )\n")
    assert changed["3,"] == "2,"


def _outcome(killed: int, survived: int, whole: bool = True) -> Outcome:
    (part,) = parts(["webhook"])
    found = mutations_of(part.files[0])[: killed + survived]
    fates = [Fate.KILLED] * killed + [Fate.SURVIVED] * survived
    return Outcome([part], 1, None, whole, fates=dict(zip(found, fates, strict=True)))


def test_a_package_below_the_goal_is_missed() -> None:
    assert _outcome(17, 3).missed == []
    assert _outcome(16, 4).missed == ["webhook"]


def test_a_sample_is_not_judged() -> None:
    assert _outcome(0, 20, whole=False).missed == []


def test_every_package_has_modules_and_tests() -> None:
    for package in PACKAGES:
        assert package.files()
        assert all((ROOT / folder).is_dir() for folder in package.tests), package.name
    assert {part.package.name for part in parts([])} == {package.name for package in PACKAGES}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: str(one.name))
def test_every_module_that_a_package_names_exists(package: Package) -> None:
    missing = [one for one in package.modules if not list(ROOT.glob(one))]
    assert missing == []


def _modules(*patterns: str) -> set[str]:
    found = (path for pattern in patterns for path in ROOT.glob(pattern))
    return {str(path.relative_to(ROOT)) for path in found if path.name != "__init__.py"}


def test_each_module_of_a_mutated_program_is_in_scope_or_left_out_for_a_reason() -> None:
    """Also modules in a folder within a folder."""
    judged = _modules(*(one for package in PACKAGES for one in package.modules))
    left_out = _modules(*(one for patterns, _ in LEFT_OUT for one in patterns))
    programs = {"/".join(one.split("/")[:2]) for one in judged}
    every = _modules(*(f"{program}/**/*.py" for program in programs))
    assert len(programs) == 3
    assert every - judged - left_out == set(), "name them in PACKAGES or LEFT_OUT"
    assert judged & left_out == set()


def test_what_is_left_out_exists() -> None:
    assert all(why for _, why in LEFT_OUT)
    assert [one for patterns, _ in LEFT_OUT for one in patterns if not _modules(one)] == []


def test_no_module_is_of_two_packages() -> None:
    every = [path for package in PACKAGES for path in package.files()]
    assert len(every) == len(set(every))


def test_part_of_a_package_is_not_judged_as_a_whole() -> None:
    (part,) = parts(["core/mizar_core/planning/first_fit.py"])
    assert part.package.name == "core/planning"
    assert not part.whole


def test_what_is_nowhere_is_told() -> None:
    with pytest.raises(UnknownModule, match=r"nothing to mutate in 'core/mizar_core/bin\.py'"):
        parts(["core/mizar_core/bin.py"])


def test_a_line_without_a_change_means_any(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def f(a):\n    return a + 1\n")
    found = mutations_of(path)
    entry = Entry(str(path), "return a + 1", None, "why", 1)
    harmless, stale = sort_out([entry], found)
    assert set(harmless) == set(found) and len(found) == 2 and not stale


def test_the_list_is_read(tmp_path: Path) -> None:
    path = tmp_path / "list.md"
    path.write_text(
        "# a.py\n\nBecause\nof this.\n"
        "\n```diff\n- x\n+ y\n+ z\n- v\n```\n\n```diff\n- w\n+ u\n```\n"
    )
    why = "Because of this."
    assert [(e.was, e.now, e.why) for e in read(path)] == [
        ("x", "y", why), ("x", "z", why), ("v", None, why), ("w", "u", why)
    ]  # fmt: skip


def test_a_list_that_cannot_be_read_says_where(tmp_path: Path) -> None:
    path = tmp_path / "list.md"
    path.write_text("# a.py\n\nWhy.\n\n```diff\n+ y\n```\n")
    with pytest.raises(BadList, match=r"list\.md:6"):
        read(path)
