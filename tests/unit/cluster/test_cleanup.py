import json
from pathlib import Path

import pytest

from cluster import cgroups, cleanup, state
from cluster.binaries.progress import Progress
from cluster.layout import Layout
from cluster.processes import Processes, marked
from cluster.spec import ClusterSpec


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A cluster without cgroups, so that no root is needed."""
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [])
    layout = Layout("demo", tmp_path / "root")
    layout.make()
    known = state.State(ClusterSpec("demo"), state.current_boot(), Path("/bin"))
    state.write(layout, known)
    return layout


def test_everything_goes_and_a_second_time_there_is_nothing(layout: Layout) -> None:
    process = Processes(layout).run("sleeper", ["/bin/sleep", "60"])
    assert cleanup.remove(layout, Progress.silent())
    assert not process.alive()
    assert not layout.root.exists()
    assert not cleanup.remove(layout, Progress.silent())


def test_a_process_whose_record_is_lost_is_found_by_its_mark(layout: Layout) -> None:
    process = Processes(layout).run("sleeper", ["/bin/sleep", "60"])
    (layout.processes / "sleeper.json").unlink()
    cleanup.remove(layout, Progress.silent())
    assert not process.alive()


def test_processes_are_ended_when_the_folder_is_gone_already(layout: Layout) -> None:
    process = Processes(layout).run("sleeper", ["/bin/sleep", "60"])
    cleanup.remove_files(layout)
    assert marked(layout) == [process]
    assert cleanup.remove(layout, Progress.silent())
    assert not process.alive()


def test_records_of_an_earlier_boot_are_not_believed(layout: Layout) -> None:
    lasting = Processes(Layout("other", layout.root))
    lasting.layout.make()
    other = lasting.run("sleeper", ["/bin/sleep", "60"])
    record = {"pid": other.pid, "start": other.start}
    (layout.processes / "stale.json").write_text(json.dumps(record))
    state.write(layout, state.State(ClusterSpec("demo"), "another boot", Path("/bin")))
    try:
        cleanup.remove(layout, Progress.silent())
        assert other.alive()
    finally:
        lasting.stop("sleeper")


def test_other_clusters_are_left_alone(layout: Layout) -> None:
    Layout("other", layout.root).make()
    cleanup.remove(layout, Progress.silent())
    assert state.names(layout.root) == ["other"]
