from pathlib import Path

import pytest

from cluster import waiting
from cluster.errors import ComponentFailed
from cluster.layout import Layout
from cluster.processes import Processes, wait_gone


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    layout = Layout("demo", tmp_path)
    layout.make()
    return Processes(layout)


def test_waiting_ends_when_it_is_so(processes: Processes) -> None:
    answers = iter([None, 0, "yes"])
    assert waiting.wait_until("it", lambda: next(answers), processes, []) == "yes"


def test_not_yet_may_be_said_by_an_error(processes: Processes) -> None:
    def refused() -> bool:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(ComponentFailed, match=r"within 0 s.*nobody there"):
        waiting.wait_until("it", refused, processes, [], limit=0)


def test_waiting_ends_when_a_component_has_died(processes: Processes) -> None:
    wait_gone([processes.run("part", ["/bin/sh", "-c", "echo last words"])], 10)
    with pytest.raises(ComponentFailed, match="last words"):
        waiting.wait_until("it", lambda: None, processes, ["part"])
