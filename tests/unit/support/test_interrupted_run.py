"""A run of the tests that is asked to end cleans up first."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
WAITS = """
import time
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def cluster():
    yield
    time.sleep(0.5)
    Path("cleaned").touch()

def test_that_waits(cluster):
    print("waiting", flush=True)
    time.sleep(3600)

def test_that_comes_next():
    Path("went on").touch()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_fixtures_clean_up_whatever_follows(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(WAITS)
    command = (sys.executable, "-m", "pytest", "-qs", f"--rootdir={tmp_path}", str(tmp_path))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as run:
        assert run.stdout
        assert any(line.startswith("waiting") for line in run.stdout)
        run.send_signal(number)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert (tmp_path / "cleaned").exists()
    assert not (tmp_path / "went on").exists()
