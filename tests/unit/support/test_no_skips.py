"""With MIZAR_NO_SKIPS, as in `make test`, a skipped test fails the run: otherwise a machine that
lacks something would pass whatever is broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
SKIPPED = """
import pytest

@pytest.fixture
def card():
    pytest.skip("no card")

@pytest.mark.skipif(True, reason="no root")
def test_with_a_mark():
    pass

def test_with_a_fixture(card):
    pass

def test_that_skips_itself():
    pytest.skip("no compiler")

@pytest.mark.xfail
def test_that_is_known_to_fail():
    raise AssertionError
"""


def run(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "test_it.py").write_text(SKIPPED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("MIZAR_NO_SKIPS", None)
    command = (sys.executable, "-m", "pytest", "-q", f"--rootdir={folder}", str(folder))
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment | more
    )


def test_skipped_tests_fail_where_none_may_be_skipped(tmp_path: Path) -> None:
    done = run(tmp_path, MIZAR_NO_SKIPS="1")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    for why in ("no card", "no root", "no compiler"):
        assert f"{why}')" in done.stdout
    assert "skipped, though MIZAR_NO_SKIPS is set" in done.stdout
    # A fixture's skip, and a mark's, is in the test's setup.
    assert "1 failed, 1 xfailed, 2 errors" in done.stdout


def test_elsewhere_they_are_skipped(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "3 skipped, 1 xfailed" in done.stdout
