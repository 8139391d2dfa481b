import os
from pathlib import Path

import pytest

from cluster import state
from cluster.enter import write_record
from cluster.errors import AlreadyUp
from cluster.layout import Layout
from cluster.spec import ClusterSpec
from cluster.state import State


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout("demo", tmp_path)
    layout.make()
    return layout


def ready(boot: str) -> State:
    return State(ClusterSpec("demo"), boot, Path("/bin"), ready=True)


def test_state_is_read_as_it_was_written(layout: Layout) -> None:
    written = ready("boot")
    state.write(layout, written)
    assert state.read(layout) == written


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"spec": {"name": "../x"}}'])
def test_a_broken_state_is_none(layout: Layout, content: str) -> None:
    layout.state_file.write_text(content)
    assert state.read(layout) is None


def test_a_cluster_is_up_while_its_nodes_first_processes_live(layout: Layout) -> None:
    state.write(layout, ready(state.current_boot()))
    assert not state.is_up(layout)
    write_record(str(layout.processes / "node-1-holder.json"), os.getpid())
    assert state.is_up(layout)


def test_a_cluster_of_an_earlier_boot_is_not_up(layout: Layout) -> None:
    write_record(str(layout.processes / "node-1-holder.json"), os.getpid())
    state.write(layout, ready("another boot"))
    assert not state.is_up(layout)


def test_only_one_at_a_time_may_change_a_cluster(layout: Layout) -> None:
    assert not state.is_locked(layout)
    with state.locked(layout):
        assert state.is_locked(layout)
        with pytest.raises(AlreadyUp), state.locked(layout):
            pass
        with state.locked(Layout("other", layout.root)):
            pass
    with state.locked(layout):
        pass


def test_names_are_those_of_all_that_left_something(tmp_path: Path) -> None:
    assert state.names(tmp_path / "none") == []
    for name in ("b", "a"):
        Layout(name, tmp_path).make()
    assert state.names(tmp_path) == ["a", "b"]
