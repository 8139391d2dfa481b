import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.binaries import command
from cluster.binaries.errors import CommandFailed
from cluster.binaries.progress import Step
from support.waiting import PATIENCE_S, wait_for


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def shell(script: str, log: Path, limit: float = PATIENCE_S, step: Step | None = None) -> None:
    command.run(["sh", "-c", script], what="the build", log=log, limit=limit, step=step)


def test_output_goes_to_the_log(log: Path) -> None:
    shell("echo out; echo err >&2", log)
    assert log.read_text().splitlines()[-2:] == ["out", "err"]


def test_a_failure_shows_the_last_lines(log: Path) -> None:
    with pytest.raises(CommandFailed) as caught:
        shell("seq 1000; exit 3", log)
    said = str(caught.value).splitlines()
    assert said[0] == f"the build ended with exit status 3; the last lines of {log}:"
    assert said[1:] == [str(number) for number in range(976, 1001)]


def test_a_command_that_says_nothing(log: Path) -> None:
    with pytest.raises(CommandFailed, match=r"it printed nothing"):
        shell("exit 1", log)


def test_too_long_ends_all_of_it(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour passes from the time that the command has begun and said something."""
    times: list[float] = []

    def clock() -> float:
        has_said = log.read_text().count("\n") > 1
        times.append(3600.0 if times and has_said else 0.0)
        return times[-1]

    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=clock))
    with pytest.raises(CommandFailed, match="took longer than 20 s"):
        shell("sleep 60 & echo $!; wait", log, limit=20)
    assert ends(log.read_text().split()[-1])


def test_children_that_outlive_the_command_are_ended(log: Path) -> None:
    shell("sleep 60 & echo $!", log)
    assert ends(log.read_text().split()[-1])


def ends(pid: str) -> bool:
    """Whether the process, which is not our child, is soon gone or a zombie."""

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    return wait_for("its end", gone, PATIENCE_S, interval=0.005)


def test_an_interrupt_ends_it(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(process: subprocess.Popen[bytes], *_: object) -> bool:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_watch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shell("sleep 60", log)
    assert started[0].returncode == -signal.SIGTERM


def test_a_step_is_shown_the_last_line(log: Path) -> None:
    shown = log.with_name("shown")

    class Shown(Step):
        def note(self, detail: str) -> None:
            super().note(detail)
            if detail:
                shown.touch()

    step = Shown("x", 0.0, 0)
    shell(f"echo compiling k8s.io/api; until [ -e {shown} ]; do sleep 0.01; done", log, step=step)
    assert step.detail == "compiling k8s.io/api"
