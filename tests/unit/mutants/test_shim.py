"""The list of faults that the shim's tests must notice: each can still be put into the code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import mutants.shim
from mutants.shim import ROOT, Fault, Unusable, copy_tree, faults


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_fault_has_its_place_and_its_tests(fault: Fault) -> None:
    text = (ROOT / "shim" / fault.file).read_text()
    assert fault.put_into(text) != text
    assert all((ROOT / "tests" / "unit" / "shim" / name).is_file() for name in fault.tests)


@pytest.mark.parametrize("text", ["", "a line\na line\n"])
def test_a_text_that_is_not_there_once_is_an_error(text: str) -> None:
    fault = Fault("f", "x.c", "a line\n", "", "", ())
    with pytest.raises(Unusable, match=r"times in x\.c, not once"):
        fault.put_into(text)


def test_the_copy_has_what_is_here_and_keeps_what_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants.shim, "ROOT", tmp_path)
    monkeypatch.setattr(mutants.shim, "TREE", tree := tmp_path / "build" / "copy")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("/build/\n")
    for name in ("tests/old.py", "build/copy/build/lib.so", "build/copy/__pycache__/old.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("content")
    copy_tree()
    assert (tree / "tests" / "old.py").read_text() == "content"
    (tmp_path / "tests" / "old.py").rename(tmp_path / "tests" / "new.py")
    copy_tree()
    files = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert files == {".gitignore", "tests/new.py", "build/lib.so", "__pycache__/old.pyc"}
