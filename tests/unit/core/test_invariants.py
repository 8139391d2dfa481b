"""INVARIANTS.md names files that exist, and for every invariant a test that needs no cluster."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "INVARIANTS.md").read_text()
SECTIONS = {int(one[0]): one for one in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]}
PATHS = sorted(set(re.findall(r"[`(]([\w./-]+\.(?:py|c|h|md))[`)]", TEXT)))


def test_they_are_numbered_one_to_nine() -> None:
    assert list(SECTIONS) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("path", PATHS)
def test_the_files_named_exist(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("number", SECTIONS)
def test_each_is_shown_by_a_fast_test(number: int) -> None:
    enforced, _, shown = SECTIONS[number].partition("**Shown by**")
    assert "**Enforced by**" in enforced
    assert re.search(r"`tests/(unit|property|stateful)/[\w/]+\.py`", shown)
