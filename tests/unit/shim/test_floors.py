"""The folders of shim/src are floors: a file includes what is on its own floor or below, and no
files include one another in a circle. A header and the source of the same name are one file here;
a function that a header declares and another source defines counts as included from there.

What does not hold is listed, and a list may only shrink: what is on it and holds now has to go.
Tables that the top fills in (shim/src/cuda/listeners.c) are how a lower floor calls a higher one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from .slot import ROOT

SOURCES = ROOT / "shim" / "src"
FLOORS = (("base",), ("region",), ("lookup",), ("memory",), ("time",), ("cuda", "nvml"))
"""From the lowest up; those side by side do not include each other."""

UPWARD: set[str] = set()
"""Includes that go up."""
CIRCULAR: set[str] = set()
"""Includes among files that include one another."""

DECLARED = re.compile(r"^(?!typedef|static)\w[\w *]*?\b(\w+)\([^;{}#]*\);", re.MULTILINE)
DEFINED = re.compile(r"^(?!static|EXPORT)\w[\w *]*?\b(\w+)\([^;{}#]*\) \{", re.MULTILINE)
DRIVER = "base/cuda_api"  # what it declares is the driver's


class Include(NamedTuple):
    """One file, as floor/name, that includes another."""

    file: str
    other: str

    def __str__(self) -> str:
        return f"{self.file} -> {self.other}"


def files_of(sources: Path) -> dict[str, str]:
    """floor/name -> the text of all that is called so."""
    texts: dict[str, str] = {}
    for path in sorted(sources.rglob("*.*")):
        name = str(path.relative_to(sources).with_suffix(""))
        texts[name] = texts.get(name, "") + path.read_text()
    return texts


def defined_elsewhere(sources: Path) -> Iterator[Include]:
    """From a header to the source that has what it declares."""
    home = {
        function: str(path.relative_to(sources).with_suffix(""))
        for path in sources.rglob("*.c")
        for function in DEFINED.findall(path.read_text())
    }
    for path in sources.rglob("*.h"):
        name = str(path.relative_to(sources).with_suffix(""))
        for function in DECLARED.findall(path.read_text()):
            if name != DRIVER and home.get(function, name) != name:
                yield Include(name, home[function])


def includes(sources: Path) -> set[Include]:
    """Which file includes which; the region's layout, in shim/include, is below all floors."""
    found = set(defined_elsewhere(sources))
    for name, text in files_of(sources).items():
        for other in re.findall(r'#include "(\w+/\w+)\.\w+"', text):
            found.add(Include(name, other))
    return {one for one in found if one.file != one.other}


def level(file: str) -> int:
    """Of the file's floor. Raises ValueError for a file that is on none."""
    for number, floors in enumerate(FLOORS):
        if file.partition("/")[0] in floors:
            return number
    raise ValueError(f"shim/src/{file} is on no floor: move it into one of {FLOORS}")


def goes_up(one: Include) -> bool:
    here, there = level(one.file), level(one.other)
    beside = here == there and one.file.partition("/")[0] != one.other.partition("/")[0]
    return there > here or beside


def reached(file: str, graph: Mapping[str, set[str]]) -> set[str]:
    """All that the file includes, by way of others too."""
    found: set[str] = set()
    todo = [file]
    while todo:
        new = graph.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def in_circles(found: set[Include]) -> set[Include]:
    """Those whose other file includes the first one again."""
    graph: dict[str, set[str]] = {}
    for one in found:
        graph.setdefault(one.file, set()).add(one.other)
    below = {file: reached(file, graph) for file in graph}
    return {one for one in found if one.file in below.get(one.other, set())}


def assert_is_listed(found: set[Include], listed: set[str], what: str) -> None:
    now = {str(one) for one in found}
    new, mended = sorted(now - listed), sorted(listed - now)
    assert not new, f"{what}; let the lower one offer what it needs, or move it: {new}"
    assert not mended, f"these hold now, take them off the list in {__name__}: {mended}"


def test_every_file_is_on_a_floor() -> None:
    for file in files_of(SOURCES):
        level(file)


def test_every_include_names_its_floor() -> None:
    bare = re.compile(r'#include "(?!mizar_regions\.h)[^/"]+"')
    assert not {name for name, text in files_of(SOURCES).items() if bare.search(text)}


def test_no_include_goes_up() -> None:
    assert_is_listed(set(filter(goes_up, includes(SOURCES))), UPWARD, "includes go up")


def test_no_files_include_one_another() -> None:
    found = in_circles(includes(SOURCES))
    assert_is_listed(found, CIRCULAR, "files include one another")


# ---- the check itself ----


def write(sources: Path, **texts: str) -> set[str]:
    """The includes of files made so: `base__a_h` is base/a.h."""
    for name, text in texts.items():
        folder, _, file = name.partition("__")
        stem, _, suffix = file.rpartition("_")
        path = sources / folder / f"{stem}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return {str(one) for one in includes(sources)}


def test_an_include_upward_is_found(tmp_path: Path) -> None:
    write(
        tmp_path, base__a_c='#include "time/b.h"\n', time__b_h="", nvml__c_c='#include "cuda/d.h"\n'
    )
    found = {str(one) for one in includes(tmp_path) if goes_up(one)}
    assert found == {"base/a -> time/b", "nvml/c -> cuda/d"}


def test_a_circle_is_found_through_headers_and_sources(tmp_path: Path) -> None:
    write(
        tmp_path,
        base__a_c='#include "base/b.h"\n',
        base__b_c='#include "base/c.h"\n',
        base__c_h='#include "base/a.h"\n#include "base/d.h"\n',
    )
    found = {str(one) for one in in_circles(includes(tmp_path))}
    assert found == {"base/a -> base/b", "base/b -> base/c", "base/c -> base/a"}


def test_what_a_header_lends_its_name_to_is_found(tmp_path: Path) -> None:
    found = write(tmp_path, base__a_h="void lent(int x);\n", cuda__b_c="void lent(int x) {\n}\n")
    assert found == {"base/a -> cuda/b"}


def test_a_file_on_no_floor_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on no floor"):
        level("a")


def test_the_list_only_shrinks() -> None:
    one = Include("base/a", "time/b")
    assert_is_listed({one}, {str(one)}, "")
    with pytest.raises(AssertionError, match="time/b"):
        assert_is_listed({one}, set(), "up")
    with pytest.raises(AssertionError, match="take them off"):
        assert_is_listed(set(), {str(one)}, "up")
