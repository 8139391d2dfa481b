"""A test that waits where no signal reaches it ends the run, and the output shows where it
waits."""

import subprocess
import sys
from pathlib import Path

HANGS = """
import signal, threading
import pytest
from support import watchdog
from support.watchdog import pytest_runtest_protocol
watchdog.LATE_S = 0.5

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.timeout(1))
"""
TESTS = """
import signal, time

def test_that_ends():
    pass

def test_that_hears_no_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(3600)
"""


def test_a_test_that_no_signal_reaches_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(HANGS)
    (tmp_path / "test_it.py").write_text(TESTS)
    command = (sys.executable, "-m", "pytest", "-q", f"--rootdir={tmp_path}", str(tmp_path))
    tests = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": tests}
    )
    assert done.returncode == 1
    assert "test_that_hears_no_signal" in done.stderr, done.stderr
