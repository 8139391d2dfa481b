"""The API server is away for longer than leases and back-offs last: nodes go on without it.

MIZAR_AWAY_S says for how many seconds (100). Tokens that the API server does not accept any more
stand for those that expire within an hour.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster.cluster import Node
from cluster.local_cluster import LocalCluster
from e2e.components import (
    WORKLOADS,
    component_pods,
    container_id,
    exec_in_container,
    kill_container,
    living_container,
    wait_component,
)
from e2e.test_compute import BUSY
from e2e.test_restarts import restart_counts
from e2e.test_spot import node_of
from e2e.test_spot_restarts import BORROWER, lent
from e2e.watching import card_of, ready_shadows, wait_held
from simgpu.machine import Machine
from support.kube import Kube, Object
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

AWAY_S = float(os.environ.get("MIZAR_AWAY_S", "100"))
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(AWAY_S + 900)]
HALF = {"devices": 2, "min": 0, "max": 1}
PODS = ("left", "right")
TOKENS = "volumes/kubernetes.io~projected/*/token"
"""Where the kubelet keeps the token of a pod's service account, below the pod's folder."""
EXPIRED = "expired"
LOOK_S = 2.0
LOW, HIGH = 0.35, 0.55
"""What a pod gets of the card's time, of which half is its share: at least, on a busy machine, and
at most."""


@dataclass(frozen=True)
class Sharers:
    """Two pods that work on a card without a pause, each with half of its time and memory. Every
    question here is answered by the node alone."""

    cluster: LocalCluster
    node: Node
    machine: Machine
    tenant: str
    card: str

    def container(self, pod: str) -> str:
        """The ID of the pod's container that runs."""
        return living_container(self.node, f"{self.tenant}/{pod}")

    def run(self, pod: str, *words: str) -> tuple[int, str]:
        """Status and output of a command in the pod's container, which prints something."""
        return wait_for(f"what {words} says in {pod}", lambda: self._ask(pod, *words))

    def _ask(self, pod: str, *words: str) -> tuple[int, str] | None:
        """Status and output; None where ctr has lost it, as may happen to a short command on a busy
        machine."""
        where = (self.cluster, self.node.name, self.container(pod))
        done = exec_in_container(*where, *words, check=False)
        return (done.returncode, str(done.stdout)) if done.stdout else None

    def check(self) -> None:
        """Assert that each pod is kept within its memory, sees its card alone, and has its half of
        the time."""
        for pod in PODS:
            status, answer = self.run(pod, "cuda-sample", "alloc", "12000")
            assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer, answer
            status, answer = self.run(pod, "cuda-sample", "smi")
            assert status == 0, answer
            words = answer.replace("|", " ").split()
            assert {one for one in words if one.startswith("GPU-")} == {self.card}, answer
        wait_for("both to have their half of the time", self._halves)

    def kill(self, pod: str) -> None:
        """SIGKILL the pod's container; on return another has started."""
        before = self.container(pod)
        kill_container(self.node, before)
        wait_for(f"{pod} to start again", lambda: self.container(pod) != before)

    def _halves(self) -> bool:
        before, began = self._work(), time.monotonic()
        time.sleep(LOOK_S)
        after, took = self._work(), time.monotonic() - began
        parts = [(after[pid] - before.get(pid, 0)) / took / 1e9 for pid in after]
        shares = sorted(part for part in parts if part > 0.01)
        assert len(shares) == 2 and all(LOW <= one <= HIGH for one in shares), shares
        return True

    def _work(self) -> dict[int, int]:
        return {one.pid: one.work_ns for one in self.machine.card(self.card).processes}


def test_pods_never_notice_that_the_api_server_is_away(
    kube: Kube, stage: "Stage", mizar_cluster: LocalCluster
) -> None:
    """Limits are kept and time is shared; containers and agents are killed and come back; the owner
    of a lent card gets it back. When the API server is there again, it accepts no token of Mizar's
    programs until the kubelets have renewed them; then statuses become right, and no agent was
    restarted but those that were killed."""
    tenant = stage.tenant(HALF, pool=stage.pool(isolation={"compute": "Hard"}))
    kube.apply(*(share_pod(tenant, name, command=BUSY) for name in PODS))
    kube.wait_running(tenant, *PODS)
    ready_shadows(kube, tenant)
    held = wait_held(kube, tenant, *PODS)
    (card,) = card_of(kube, tenant, PODS[0])
    node = node_of(kube, mizar_cluster, tenant, PODS[0])
    agents = _restarts(kube)
    pods = [one["metadata"]["uid"] for part in WORKLOADS for one in component_pods(kube, part)]
    with lent(kube, stage, mizar_cluster) as loan, Machine(node.simgpu_dir) as machine:
        # The next agent that looks after the loan must see the owner work before it has heard of
        # any pod.
        killed = {one.name: (one, _agent_of(kube, one)) for one in (node, loan.node)}
        sharers = Sharers(mizar_cluster, node, machine, tenant, card)
        sharers.check()
        mizar_cluster.kill_api_server()
        try:
            until = time.monotonic() + AWAY_S
            sharers.check()
            sharers.kill("left")
            sharers.check()
            for where, agent in killed.values():
                _kill_agent(where, agent)
            sharers.check()
            sharers.kill("left")
            sharers.check()
            while time.monotonic() < until:
                sharers.check()
            loan.owner_works()
            loan.wait_ended()
            for token in (tokens := _tokens(mizar_cluster, pods)):
                token.write_text(EXPIRED)
        finally:
            mizar_cluster.start_api_server()
        back = time.monotonic()
        # The kubelet looks after a pod's volumes every minute or so.
        wait_for("new tokens", lambda: all(one.read_text() != EXPIRED for one in tokens), 240)
        print(f"all tokens were new {time.monotonic() - back:.0f} s after it was back")
        # By now agent and operator ask for the pod every 30 s, one after the other; and the kubelet
        # may wait before it starts an operator again that has lost its Lease more than once.
        kube.wait_gone("pod", loan.borrows, BORROWER, timeout=300)
        print(f"the borrower's pod was gone {time.monotonic() - back:.0f} s after it was back")
        loan.wait_evicted()
        # Until the kubelets report, Kubernetes calls the pods of silent nodes not ready.
        for component in WORKLOADS:
            wait_component(kube, component)
        loan.wait_lendable()
    assert wait_held(kube, tenant, *PODS) == held
    ready_shadows(kube, tenant)
    wait_for("left's restarts", lambda: restart_counts(kube, tenant, "left") == {"main": 2})
    assert restart_counts(kube, tenant, "right") == {"main": 0}
    names = [agent["metadata"]["name"] for _, agent in killed.values()]
    assert _restarts(kube) == agents | {name: agents[name] + 1 for name in names}


def _restarts(kube: Kube) -> dict[str, int]:
    """How often each agent was started again."""
    return {
        one["metadata"]["name"]: int(one["status"]["containerStatuses"][0]["restartCount"])
        for one in component_pods(kube, "nodeagent")
    }


def _tokens(cluster: LocalCluster, pods: list[str]) -> list[Path]:
    """The files with the tokens of these pods, by UID, one for each."""

    def found() -> Iterator[Path]:
        for node in cluster.nodes:
            for pod in pods:
                yield from node.path(f"/var/lib/kubelet/pods/{pod}").glob(TOKENS)

    tokens = list(found())
    assert len(tokens) == len(pods), tokens
    return tokens


def _agent_of(kube: Kube, node: Node) -> Object:
    pods = component_pods(kube, "nodeagent")
    (found,) = (one for one in pods if one["spec"]["nodeName"] == node.name)
    return found


def _kill_agent(node: Node, agent: Object) -> None:
    """SIGKILL the agent's container; on return another has started."""
    pod = f"{agent['metadata']['namespace']}/{agent['metadata']['name']}"
    before = container_id(agent["status"]["containerStatuses"][0])
    kill_container(node, before)
    wait_for("the next agent", lambda: living_container(node, pod, "nodeagent") != before)
