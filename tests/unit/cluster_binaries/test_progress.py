import threading

import pytest

from cluster.binaries.progress import Progress, duration
from support.waiting import PATIENCE_S


class Screen:
    def __init__(self) -> None:
        self.text = ""
        self.changed = threading.Condition()

    def write(self, piece: str) -> None:
        with self.changed:
            self.text += piece
            self.changed.notify_all()

    def wait_for(self, piece: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: piece in self.text, timeout=PATIENCE_S), self.text


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def progress(screen: Screen) -> Progress:
    return Progress(write=screen.write, clock=iter(range(0, 1000, 3)).__next__)


def test_a_step_is_one_line_with_its_time(screen: Screen, progress: Progress) -> None:
    with progress.step("starting etcd"):
        pass
    assert screen.text == "starting etcd ... 3.0 s\n"


def test_steps_inside_are_indented_and_end_on_lines_of_their_own(
    screen: Screen, progress: Progress
) -> None:
    with progress.step("cluster"):
        with progress.step("etcd"):
            pass
        progress.say("etcd listens\non a port")
    assert screen.text.splitlines() == [
        "cluster ...",
        "  etcd ... 3.0 s",
        "  etcd listens",
        "  on a port",
        "cluster ... 9.0 s",
    ]


def test_a_failure_is_said(screen: Screen, progress: Progress) -> None:
    with pytest.raises(ValueError), progress.step("kubelet"):
        raise ValueError
    assert screen.text == "kubelet ... failed after 3.0 s\n"


def test_a_slow_step_shows_elapsed_time_and_detail(screen: Screen) -> None:
    progress = Progress(write=screen.write, every=0.01)
    with progress.step("building") as step:
        step.note("k8s.io/api")
        screen.wait_for(" s: k8s.io/api\n")
    assert screen.text.startswith("building ...\n")


def test_only_the_innermost_step_ticks(screen: Screen) -> None:
    progress = Progress(write=screen.write, every=0.01)
    with progress.step("outer") as outer, progress.step("inner") as inner:
        outer.note("outer detail")
        inner.note("inner detail")
        screen.wait_for("inner detail")
    assert "outer detail" not in screen.text


def test_silent_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress.silent().step("anything"):
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (42, "42 s"), (119.6, "2 min 00 s"), (365, "6 min 05 s")],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
