"""A node agent that is too slow when the runtime asks it about a container."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cluster import Node
from e2e.card_access import card_nodes_inside
from e2e.watcher import Container, container_folders, read_container
from e2e.watching import card_of, cards_seen_inside, wait_event
from mizar_nodeagent.nri import session
from mizar_nodeagent.nri.session import Create, Session
from mizar_nodeagent.proto import nri_pb2 as pb
from support.kube import Kube
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SOCKET = "/run/nri/nri.sock"
KILLED = 128 + 9


@contextmanager
def plugin(socket: Path, create: Create, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An NRI plugin that the runtime asks before it asks the agent."""
    monkeypatch.setattr(session, "NAME", "before-mizar")
    monkeypatch.setattr(session, "INDEX", "10")
    connected, loop = threading.Event(), asyncio.new_event_loop()
    made = Session(create, lambda *listed: connected.set())
    task = loop.create_task(made.run(socket))

    def serve() -> None:
        loop.run_until_complete(asyncio.wait([task]))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert connected.wait(60), "the runtime did not accept the plugin"
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


def agent_pid(node: Node) -> int:
    """The PID of the node's agent on this machine."""
    found = [read_container(one, node) for one in container_folders(node).values()]
    (agent,) = [one for one in found if one and one.is_agent and one.lives()]
    processes = [one for one in Path("/proc").iterdir() if one.name.isdigit()]
    (found_here,) = [one for one in processes if _is(one, agent)]
    return int(found_here.name)


def _is(process: Path, container: Container) -> bool:
    """Whether the process on this machine is the container's first one, which the node knows by
    another PID."""
    try:
        inner = (process / "status").read_text().partition("NSpid:")[2].split("\n")[0].split()
        same = (process / "ns/pid").samefile(container.process / "ns/pid")
    except OSError:
        return False  # it has ended
    return same and inner[-1] == container.process.name


def test_a_container_that_was_created_without_its_card_starts_again_with_it(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime waits two seconds for the agent, which stands still, and then creates the
    container as it is."""
    node = mizar_cluster.nodes[0]
    here = {"kubernetes.io/hostname": node.name}
    pool = stage.pool(nodeSelector=here)
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1}, pool=pool)
    agent = os.pidfd_open(agent_pid(node))
    stopped = threading.Event()

    async def create(pod: pb.PodSandbox, _: pb.Container) -> pb.ContainerAdjustment:
        if pod.namespace == tenant and pod.name == "a" and not stopped.is_set():
            signal.pidfd_send_signal(agent, signal.SIGSTOP)
            stopped.set()
        return pb.ContainerAdjustment()

    def is_back() -> bool:
        (status,) = kube.get("pod", "a", tenant)["status"]["containerStatuses"]  # type: ignore[index]
        assert status["restartCount"] >= 1 and status["ready"], status
        return bool(status["lastState"]["terminated"]["exitCode"] == KILLED)

    try:
        with plugin(node.path(SOCKET), create, monkeypatch):
            kube.apply(share_pod(tenant, "a", command=["sleep", "3600"]))
            kube.wait_running(tenant, "a")
            assert stopped.is_set()
            assert not card_nodes_inside(kube, tenant, "a")
            signal.pidfd_send_signal(agent, signal.SIGCONT)
            wait_for("the container to be killed and started again", is_back)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(agent, signal.SIGCONT)
        os.close(agent)
    assert "was created without" in wait_event(kube, tenant, "a", "NoCardAccess")
    assert cards_seen_inside(kube, tenant, "a") == set(
        wait_for("the device to be held", lambda: card_of(kube, tenant, "a"))
    )
