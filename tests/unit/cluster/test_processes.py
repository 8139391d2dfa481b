import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import processes
from cluster.errors import ClusterError, ComponentFailed
from cluster.layout import Layout
from cluster.processes import Process, Processes, marked, tail, wait_gone
from support.waiting import PATIENCE_S, wait_for


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    """A cluster's folders; what is started for it ends with the test."""
    layout = Layout("demo", tmp_path)
    layout.make()
    yield layout
    for process in marked(layout):
        process.signal(signal.SIGKILL)


def test_a_started_process_is_recorded_marked_and_stopped(layout: Layout) -> None:
    known = Processes(layout)
    sleeper = known.run("sleeper", ["/bin/sleep", "60"])
    assert sleeper.alive()
    assert known.all() == {"sleeper": sleeper}
    assert marked(layout) == [sleeper]
    known.stop("sleeper")
    assert not sleeper.alive()
    assert marked(layout) == []


def test_a_process_that_ignores_politeness_is_killed(layout: Layout) -> None:
    known = Processes(layout)
    stubborn = known.run(
        "stubborn", ["/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.01; done"]
    )
    while "up" not in layout.log("stubborn").read_text():
        pass
    known.stop("stubborn", grace=0.1)
    assert not stubborn.alive()


def test_a_process_whose_first_thread_has_ended_runs_while_another_does(layout: Layout) -> None:
    """It has its ports until then. A process with many threads that is killed on a busy machine
    ends like this."""
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    known = Processes(layout)
    headless = known.run("headless", [sys.executable, "-c", program])
    stat = Path(f"/proc/{headless.pid}/stat")
    wait_for("its first thread to end", lambda: ") Z " in stat.read_text())
    assert headless.alive()
    known.stop("headless")
    assert not headless.alive()


def test_output_goes_to_the_log(layout: Layout) -> None:
    known = Processes(layout)
    process = known.run("talker", ["/bin/sh", "-c", "echo out; echo err >&2"])
    assert wait_gone([process], PATIENCE_S)
    assert sorted(layout.log("talker").read_text().split()) == ["err", "out"]


def test_a_process_does_not_belong_to_who_started_it(layout: Layout) -> None:
    process = Processes(layout).run("sleeper", ["/bin/sleep", "60"])
    assert os.getsid(process.pid) == process.pid != os.getsid(0)


def test_a_program_that_is_not_there_is_named(layout: Layout) -> None:
    with pytest.raises(ClusterError, match="/no/such/program"):
        Processes(layout).run("ghost", ["/no/such/program"])


def test_a_dead_component_is_reported_with_its_last_words(layout: Layout) -> None:
    known = Processes(layout)
    wait_gone([known.run("fragile", ["/bin/sh", "-c", "echo oh no; exit 3"])], PATIENCE_S)
    with pytest.raises(ComponentFailed, match=r"fragile has ended\n.*fragile.log:\noh no"):
        known.check(["fragile"])


def test_another_process_with_the_same_id_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        stale = Process(child.pid, start=1)
        assert not stale.alive()
        stale.signal(signal.SIGKILL)
        assert child.poll() is None
        child.kill()


def test_nothing_is_marked_for_a_cluster_whose_name_only_begins_alike(layout: Layout) -> None:
    Processes(layout).run("sleeper", ["/bin/sleep", "60"])
    assert marked(Layout("dem", layout.root)) == []


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{number}\n" for number in range(100_000)))
    assert tail(log, 2) == "99998\n99999"


def test_the_starter_imports_nothing_of_this_package() -> None:
    assert "cluster" not in processes.ENTER.read_text().split("import", 1)[1].split("def ")[0]
