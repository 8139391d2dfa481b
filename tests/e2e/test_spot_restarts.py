"""A card is lent while a program that looks after it dies or is away: agent, kubelet, API
server."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster import Cluster
from cluster.cluster import Node
from cluster.local_cluster import LocalCluster
from e2e.agent_metrics import AgentMetrics, agent_metrics
from e2e.components import component_pods, container_id, exec_in_container, kill_component
from e2e.test_loss import busy_part
from e2e.test_restarts import restart_counts
from e2e.test_spot import (
    WORK,
    borrowing,
    had_it_alone,
    lender,
    node_of,
    reason_of_eviction,
    start_borrower,
)
from e2e.watching import card_of, ready_shadows, wait_event
from mizar_nodeagent.cuda_context.costs import CONTEXTS
from simgpu.machine import Machine
from support.kube import Kube, condition, is_ready
from support.objects import deployment
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
WORKED_NS = 50_000_000
OWNER, BORROWER = "owner", "train"


@dataclass(frozen=True)
class Loan:
    """A card that tenant `lends` has lent to pod BORROWER of tenant `borrows`, which works on it as
    process `pid`. `asleep`: the ID of pod OWNER's container."""

    kube: Kube
    cluster: LocalCluster
    machine: Machine
    node: Node
    lends: str
    borrows: str
    card: str
    pid: int
    asleep: str

    def owner(self, *command: str, detach: bool = False) -> str:
        """The output of a command in the owner's container, without kubelet and API server."""
        where = (self.cluster, self.node.name, self.asleep)
        return str(exec_in_container(*where, *command, detach=detach).stdout)

    def owner_works(self) -> None:
        """Let the owner work, for four seconds at a time, until it had the card for itself in one
        of them: whoever takes the card from the borrower may have had no processor before."""
        what = "the owner to have its card for itself"
        wait_for(what, lambda: had_it_alone(self.owner(*WORK)))

    def wait_still(self) -> None:
        """Wait until no process works on the card."""
        wait_for("the borrower to stand still", lambda: busy_part(self.machine, self.card) == 0)

    def wait_ended(self) -> None:
        """Wait until the borrower's process is no longer on the card."""
        wait_for(
            "the borrower's end",
            lambda: self.pid not in self._processes(),
            180,
            interval=0.02,
            explain=self._agents_log,
        )

    def wait_evicted(self) -> None:
        """Wait until the borrower's pod is gone, and its events say why."""
        assert "OwnerBack" in reason_of_eviction(self.kube, self.borrows, BORROWER)
        self.kube.wait_gone("pod", self.borrows, BORROWER)
        assert self.card in wait_event(self.kube, self.lends, OWNER, "OwnerWoke")

    def wait_lent_on(self) -> None:
        """Wait until the borrower, which was not ended, works again."""
        wait_for("the borrower to work", lambda: busy_part(self.machine, self.card) > 0.9)
        assert self.pid in self._processes()
        assert restart_counts(self.kube, self.borrows, BORROWER) == {"main": 0}
        assert "SpotEvicted" not in dict(self.kube.events(self.borrows, BORROWER))
        wait_for("its owner to be told", lambda: self.active() == "False")

    def wait_lendable(self) -> None:
        """Wait until another borrower has the card.

        An API server that has just started refuses objects until its admission plugins have listed
        what they need; a kubelet refuses pods until it has the devices again, and their owner makes
        others.
        """
        wait_for("a borrower to be accepted", self._again)
        here = f"--namespace={self.borrows}"
        self.kube.run("rollout", "status", "deployment/again", here, "--timeout=240s")

    def _again(self) -> bool:
        made = yaml.safe_dump(deployment(self.borrows, "again", "mizar.spot/gpu"))
        status, answer = self.kube.attempt("apply", "--filename=-", input=made)
        assert status == 0, answer
        return True

    def _agents_log(self) -> str:
        """The end of the agent's log, which can be read without a kubelet."""
        logs = self.node.path("/var/log/pods").glob("mizar-system_mizar-nodeagent-*/*/*.log")
        return "\n".join(log.read_text()[-8000:] for log in sorted(logs))

    @contextmanager
    def without_kubelet(self) -> Iterator[None]:
        """The node's kubelet is dead while the block runs."""
        self.cluster.kill_kubelet(self.node.name)
        try:
            yield
        finally:
            self.cluster.start_kubelet(self.node.name)

    def active(self) -> str:
        """The condition of the owner's pod."""
        found = self.kube.get("pod", OWNER, self.lends) or {}
        return str(condition(found, "mizar.share/active")["status"])

    def _processes(self) -> set[int]:
        return {one.pid for one in self.machine.card(self.card).processes}


@contextmanager
def lent(kube: Kube, stage: "Stage", cluster: LocalCluster) -> Iterator[Loan]:
    """A card that is lent, and whose borrower works."""
    lends, borrows = lender(kube, stage, OWNER), borrowing(kube, stage)
    start_borrower(kube, borrows, BORROWER)
    # A kubelet that dies before it has started the shadow pod refuses it when it comes back.
    ready_shadows(kube, lends)
    (card,) = card_of(kube, lends, OWNER)
    node = node_of(kube, cluster, borrows, BORROWER)
    pod = kube.get("pod", OWNER, lends)
    assert pod is not None
    asleep = container_id(pod["status"]["containerStatuses"][0])
    with Machine(node.simgpu_dir) as machine:
        pid = wait_for("the borrower to work", lambda: _worker(machine, card))
        yield Loan(kube, cluster, machine, node, lends, borrows, card, pid, asleep)


@pytest.fixture
def loan(kube: Kube, stage: "Stage", mizar_cluster: LocalCluster) -> Iterator[Loan]:
    with lent(kube, stage, mizar_cluster) as made:
        yield made


def _worker(machine: Machine, card: str) -> int | None:
    found = [one.pid for one in machine.card(card).processes if one.work_ns > WORKED_NS]
    return found[0] if found else None


def agent_on(kube: Kube, node: Node) -> tuple[str, int] | None:
    """The node's agent that is ready, and how often it was started again."""
    for pod in component_pods(kube, "nodeagent"):
        if pod["spec"].get("nodeName") == node.name and is_ready(pod):
            status = pod["status"]["containerStatuses"][0]
            return pod["metadata"]["uid"], status["restartCount"]
    return None


def counted(agent: AgentMetrics) -> tuple[float, float]:
    """How many pods the agent ended since an owner was back, and how many reclaims it has timed."""
    evictions = agent.value("mizar_spot_evictions_total", reason="OwnerBack")
    return evictions, agent.value("mizar_spot_reclaim_seconds_count")


def test_an_agent_that_is_killed_and_comes_back(
    loan: Loan, kube: Kube, mizar_cluster: Cluster
) -> None:
    """What the agent had lent stays lent, and comes back when its owner works."""
    before = wait_for("the agent", lambda: agent_on(kube, loan.node))
    kill_component(kube, mizar_cluster, "nodeagent")
    wait_for("the next one", lambda: agent_on(kube, loan.node) not in (None, before))
    loan.wait_lent_on()
    loan.owner_works()
    loan.wait_evicted()
    loan.wait_lendable()


def test_an_agent_that_has_to_measure_the_card_again(
    loan: Loan, kube: Kube, mizar_cluster: Cluster
) -> None:
    """It measures the driver's contexts once it has read the card; the process by which it does is
    not taken for the owner's work, as unit/nodeagent/test_spot_detectors.py shows at each look."""
    contexts = loan.node.path("/var/lib/mizar") / CONTEXTS
    known = _contexts(contexts)
    before = wait_for("the agent", lambda: agent_on(kube, loan.node))
    contexts.unlink()
    kill_component(kube, mizar_cluster, "nodeagent")
    wait_for("the next one", lambda: agent_on(kube, loan.node) not in (None, before))
    wait_for("it to measure", contexts.exists)
    # Before, models of other tests' cards may have been known too.
    measured = _contexts(contexts)
    assert measured and measured.items() <= known.items()
    loan.wait_lent_on()
    assert "OwnerWoke" not in dict(kube.events(loan.lends, OWNER))


def _contexts(file: Path) -> dict[str, int]:
    """Bytes of a context, by driver and model."""
    return dict(json.loads(file.read_text())["contexts"])


@pytest.mark.parametrize("still", [False, True], ids=["sleeps again", "still works"])
def test_an_owner_that_wakes_while_nobody_is_there_to_see_it(
    loan: Loan, kube: Kube, mizar_cluster: Cluster, still: bool
) -> None:
    """There is no agent, and no kubelet that would start one: the borrower stops working by itself.
    The next agent goes on lending if the owner sleeps again."""
    with loan.without_kubelet():
        kill_component(kube, mizar_cluster, "nodeagent")
        loan.wait_still()
        loan.owner_works()
        if still:
            loan.owner("cuda-sample", "busy", detach=True)
    if not still:
        loan.wait_lent_on()
        return
    loan.wait_ended()
    loan.wait_evicted()
    wait_for("the owner to work on", lambda: busy_part(loan.machine, loan.card) > 0.5)
    wait_for("the owner's condition", lambda: loan.active() == "True")


def test_a_kubelet_that_starts_again(loan: Loan, mizar_cluster: Cluster) -> None:
    """The card stays lent, and its owner gets it back even while there is no kubelet."""
    mizar_cluster.restart_kubelet(loan.node.name)
    loan.wait_lent_on()
    with loan.without_kubelet():
        loan.owner_works()
        loan.wait_ended()
    loan.wait_evicted()
    loan.wait_lendable()


def test_an_owner_that_wakes_while_the_api_server_is_away(loan: Loan) -> None:
    """The node does everything alone, except for the pod's deletion, which follows later. So the
    eviction is counted before anybody else can see it."""
    agent = agent_metrics(loan.kube, loan.cluster, loan.node)
    evictions, reclaims = counted(agent)
    loan.cluster.kill_api_server()
    try:
        loan.owner_works()
        loan.wait_ended()
        wait_for("both to be counted", lambda: counted(agent) == (evictions + 1, reclaims + 1))
    finally:
        loan.cluster.start_api_server()
    loan.wait_evicted()
    loan.wait_lendable()
