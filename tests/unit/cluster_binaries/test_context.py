import os
from pathlib import Path

import pytest

from cluster.binaries.errors import SetupError
from cluster.images import context
from cluster.images.table import Image

FILES = {
    "Dockerfile": "FROM a AS operator\nCOPY core run.sh /app/\nFROM a AS nodeagent\nCOPY shim /\n",
    "core/names.py": "x = 1",
    "core/__pycache__/names.pyc": "generated",
    "core/.mypy_cache/x": "generated",
    "run.sh": "#!/bin/sh",
    "shim/shim.c": "int x;",
    "shim/shim.o": "generated",
    "README.md": "not copied",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o600)
    (tmp_path / "tree/run.sh").chmod(0o700)
    return tmp_path / "tree"


def read(tree: Path, target: str = "operator") -> context.Context:
    return context.read(Image("localhost/x:dev", tree / "Dockerfile", tree, target))


def test_only_what_is_copied_goes_in(tree: Path, tmp_path: Path) -> None:
    read(tree).write(tmp_path)
    assert (tmp_path / "Dockerfile").read_text() == FILES["Dockerfile"]
    assert (tmp_path / "core/names.py").read_text() == "x = 1"
    assert set(read(tree).files) == {"core/names.py", "run.sh"}


def test_modes_are_those_of_a_usual_checkout(tree: Path, tmp_path: Path) -> None:
    read(tree).write(tmp_path)
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "core/names.py").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["core/names.py", "run.sh"])
def test_a_changed_input_changes_the_digest(tree: Path, name: str) -> None:
    before = read(tree).digest()
    (tree / name).write_text("changed")
    assert read(tree).digest() != before


@pytest.mark.parametrize(
    "name", ["README.md", "shim/shim.c", "core/__pycache__/names.pyc", "core/.mypy_cache/x"]
)
def test_anything_else_does_not(tree: Path, name: str) -> None:
    before = read(tree).digest()
    (tree / name).write_text("changed")
    os.utime(tree / "core/names.py", (1, 1))
    assert read(tree).digest() == before


def test_the_base_and_the_stage_change_the_digest(tree: Path) -> None:
    digests = {read(tree).digest(), read(tree, "nodeagent").digest(), read(tree).digest("base")}
    assert len(digests) == 3


def test_a_copied_file_that_is_missing_is_named(tree: Path) -> None:
    (tree / "run.sh").unlink()
    with pytest.raises(SetupError, match=r"Dockerfile copies run\.sh, which is not there"):
        read(tree)


def test_a_missing_dockerfile_is_named(tree: Path) -> None:
    (tree / "Dockerfile").unlink()
    with pytest.raises(SetupError, match=r"Dockerfile, of which localhost/x:dev is built, is mis"):
        read(tree)
