"""Containers that the runtime created without asking the agent are killed."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from mizar_nodeagent import container_processes
from mizar_nodeagent.container import missed_containers
from mizar_nodeagent.container.missed_containers import LOOK_FOR_S, MissedContainers
from mizar_nodeagent.container.slots import Owner
from mizar_nodeagent.container_processes import PodProcess
from support.waiting import PATIENCE_S, until

POD = "11111111-2222-3333-4444-555555555555"
OTHER_POD = POD.replace("1", "2")
MISSED, NEIGHBOUR = "a" * 64, "b" * 64
CGROUPS = {
    "v2": "0::/kubepods-pod{slice}.slice/cri-containerd-{container}.scope\n",
    "v1": "4:memory:/kubepods/pod{pod}/{container}\n1:cpu:/kubepods/pod{pod}/{container}\n",
    "hybrid": "4:memory:/kubepods/pod{pod}/{container}\n0::/system.slice/containerd.service\n",
}
OWNER = Owner("team-a", "share", POD, "main")


class Node:
    """A node with an agent that kills missed containers."""

    def __init__(self, proc: Path, stack: ExitStack) -> None:
        self.proc = proc
        self.now = 0.0
        self._stack = stack
        self.warnings: list[str] = []
        self.agent = MissedContainers(self._warn, True, proc, lambda: self.now)

    def _warn(self, owner: Owner, reason: str, message: str) -> None:
        assert (owner, reason) == (OWNER, "NoCardAccess")
        self.warnings.append(message)

    def start(
        self, container: str = MISSED, pod: str = POD, cgroups: str = CGROUPS["v2"]
    ) -> subprocess.Popen[bytes]:
        """Start a process of a container, with these cgroups."""
        pipe = subprocess.PIPE
        made = self._stack.enter_context(subprocess.Popen(["cat"], stdin=pipe, stdout=pipe))
        self._stack.callback(made.kill)
        folder = self.proc / str(made.pid)
        folder.mkdir()
        text = cgroups.format(pod=pod, slice=pod.replace("-", "_"), container=container)
        (folder / "cgroup").write_text(text)
        for name in ("stat", "status", "comm"):
            (folder / name).symlink_to(f"/proc/{made.pid}/{name}")
        return made


async def ended(one: subprocess.Popen[bytes]) -> bool:
    """Whether the process was killed."""
    return await asyncio.to_thread(one.wait, PATIENCE_S) == -signal.SIGKILL


def lives(one: subprocess.Popen[bytes]) -> bool:
    """Whether the process answers: one that was killed does not, even if it has yet to end."""
    assert one.stdin and one.stdout
    try:
        one.stdin.write(b"x")
        one.stdin.flush()
    except BrokenPipeError:
        return False
    return one.stdout.read(1) == b"x"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        yield Node(tmp_path, stack)


@pytest.mark.parametrize("cgroups", CGROUPS)
async def test_it_is_killed_and_its_pod_told(node: Node, cgroups: str) -> None:
    one = node.start(cgroups=CGROUPS[cgroups])
    node.agent.add(MISSED, POD, OWNER)
    (told,) = node.warnings
    assert "container main was created without the node agent's answer" in told
    assert told.endswith("gets its card if the pod's restartPolicy lets it start again")
    await node.agent.kill()
    assert await ended(one)


async def test_also_if_it_starts_later(node: Node) -> None:
    """The runtime has created it, and the kubelet has not had it started yet."""
    node.agent.add(MISSED, POD, OWNER)
    await node.agent.kill()
    one = node.start()
    await node.agent.kill()
    assert await ended(one)


async def test_all_its_processes_are_killed(node: Node) -> None:
    """Also one that another one started while the agent searched."""
    node.agent.add(MISSED, POD, OWNER)
    found = [node.start(), node.start()]
    await node.agent.kill()
    late = node.start()
    await node.agent.kill()
    assert all([await ended(one) for one in (*found, late)])


async def test_no_other_container_is(node: Node) -> None:
    node.agent.add(MISSED, POD, OWNER)
    others = [node.start(NEIGHBOUR), node.start(NEIGHBOUR, OTHER_POD)]
    one = node.start()
    await node.agent.kill()
    assert await ended(one) and all(map(lives, others))


async def test_once_it_has_ended_nobody_searches_for_it(node: Node) -> None:
    node.agent.add(MISSED, POD, OWNER)
    one = node.start()
    await node.agent.kill()
    assert await ended(one)
    await node.agent.kill()
    again = node.start()
    await node.agent.kill()
    assert lives(again)


async def test_nor_if_it_does_not_start(node: Node) -> None:
    """Where the container has a virtual machine of its own, the node does not see its processes."""
    node.agent.add(MISSED, POD, OWNER)
    node.now = LOOK_FOR_S
    await node.agent.kill()
    late = node.start()
    await node.agent.kill()
    assert lives(late)
    _, told = node.warnings
    assert "no process of container main" in told
    assert "was found within 600 s: if it runs nevertheless, delete the pod" in told


async def test_it_may_take_minutes_to_start(node: Node) -> None:
    node.agent.add(MISSED, POD, OWNER)
    node.now = LOOK_FOR_S - 1
    await node.agent.kill()
    late = node.start()
    await node.agent.kill()
    assert await ended(late) and len(node.warnings) == 1


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no process be killed, as those of other users by an agent without CAP_KILL."""
    refusal = Mock(side_effect=PermissionError(1, "Operation not permitted"))
    monkeypatch.setattr(signal, "pidfd_send_signal", refusal)


async def test_what_may_not_be_killed_is_told_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch)
    one = node.start()
    node.agent.add(MISSED, POD, OWNER)
    for _ in range(3):
        await node.agent.kill()
    assert lives(one)
    _, told = node.warnings
    assert told.startswith(
        "container main, which did not get its card, cannot be killed: [Errno 1]"
    )
    assert "Operation not permitted; delete the pod" in told
    assert "nodeagent.mayKill" in told


async def test_what_ends_with_the_containers_first_process_is_no_problem(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of another user may not be killed, and ends all the same."""
    one = node.start()
    node.agent.add(MISSED, POD, OWNER)
    with monkeypatch.context() as patch:
        refuse(patch)
        await node.agent.kill()
    one.kill()
    assert await ended(one)
    await node.agent.kill()
    assert len(node.warnings) == 1 and not node.agent._pending


async def test_what_survives_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs in the kernel, for example."""
    monkeypatch.setattr(signal, "pidfd_send_signal", Mock())
    node.start()
    node.agent.add(MISSED, POD, OWNER)
    await node.agent.kill()
    assert len(node.warnings) == 1
    node.now = LOOK_FOR_S
    await node.agent.kill()
    _, told = node.warnings
    assert told.startswith("container main, which")
    assert "cannot be killed: SIGKILL does not end its processes; delete the pod" in told
    assert not node.agent._pending


async def test_a_process_that_has_the_pid_of_one_that_was_found_is_left_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour = node.start(NEIGHBOUR, OTHER_POD)
    was = [PodProcess(neighbour.pid, "cat", MISSED)]
    monkeypatch.setattr(container_processes, "of_pods", lambda _uids, _proc: was)
    node.agent.add(MISSED, POD, OWNER)
    await node.agent.kill()
    assert lives(neighbour)


async def test_an_agent_that_sees_no_processes_asks_for_the_pods_deletion(node: Node) -> None:
    node.agent.sees = False
    one = node.start()
    node.agent.add(MISSED, POD, OWNER)
    assert node.warnings[0].endswith("; delete the pod")
    await node.agent.kill()
    assert lives(one)


async def test_it_is_killed_without_being_asked(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody searches when there is nothing to kill."""
    monkeypatch.setattr(missed_containers, "EVERY_S", 0.01)
    one = node.start()
    running = asyncio.create_task(node.agent.run())
    await asyncio.sleep(0)
    node.agent.add(MISSED, POD, OWNER)
    await until(lambda: one.poll() == -signal.SIGKILL)
    await until(lambda: not node.agent._added.is_set())
    running.cancel()
