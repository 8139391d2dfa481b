"""A card that pods share fails, without being gone: what its users see, and what becomes of it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from cluster.cluster import Node
from cluster.errors import CommandFailed
from e2e.components import kill_component, wait_component
from e2e.test_compute import BUSY
from e2e.test_figures import scrape
from e2e.test_loss import busy_part
from e2e.test_restarts import restart_counts
from e2e.test_spot_restarts import agent_on
from e2e.watcher import CALM_S
from e2e.watching import card_of, cards_seen_inside, ready_shadows, wait_event, wait_held
from mizar_nodeagent.card_health import NOTED_XIDS, REPAIRED, SIGNS
from simgpu.machine import Machine
from support.kube import Kube, Object, condition
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
FOURTHS = {"devices": 4, "min": 0, "max": 1}
RESOURCE = "mizar.share/gpu.4"
PODS = ("a", "b")
FAULTS = {"temperature_celsius": (35, 95), "nvlinks_down": (0, 1), "remap_failed": (0, 1)}
"""The figures by which a card shows each of the SIGNS: when it is well, and when it is not."""
PROGRAM_XID = 13
TRIED_S = 20.0
"""Seconds in which there may be another shadow pod at most once: one is tried in 45."""
SOON_S = 30.0
"""Seconds in which a change is known everywhere: NVML is read every two."""


def metric_of(kube: Kube, uuid: str) -> float | None:
    """The value of mizar_card_healthy of a card; None without one. Raises AssertionError while an
    agent does not answer."""
    try:
        lines = scrape(kube, "nodeagent").splitlines()
    except CommandFailed as error:
        raise AssertionError(str(error)) from error
    found = [one for one in lines if one.startswith("mizar_card_healthy{") and uuid in one]
    return float(found[0].split()[-1]) if found else None


@dataclass(frozen=True)
class Sharers:
    """Two pods that work on a card of which two more devices are free, and a third pod, `late`,
    that their quota lets have no other card. `uuid`: the card's."""

    kube: Kube
    machine: Machine
    node: Node
    tenant: str
    uuid: str

    def set_figures(self, well: bool) -> None:
        """All figures of the card show a fault, or none does."""
        for figure, (good, bad) in FAULTS.items():
            self.machine.set_figure(self.uuid, figure, good if well else bad)

    def raise_xid(self, xid: int) -> None:
        """The card reports the XID, of which NVIDIA's plugin takes no notice."""
        self.machine.state.raise_xid(self.machine.card(self.uuid).index, xid)

    def healthy(self) -> Object:
        """The condition Healthy of the ShadowPod."""
        (shadow,) = self.kube.all("shadowpods", self.tenant)
        return condition(shadow, "Healthy")

    def wait_healthy(self, status: str, *words: str, timeout: float = 120.0) -> Object:
        """Wait until that is the status, and all words are in the message."""

        def told() -> Object | None:
            found = self.healthy()
            assert all(one in found["message"] for one in words), found
            return found if found["status"] == status else None

        return wait_for(f"the ShadowPod's Healthy to be {status}", told, timeout)

    def wait_metric(self, value: int) -> None:
        """Wait until Prometheus would see the card Healthy, or not."""

        wait_for(
            f"mizar_card_healthy to be {value}",
            lambda: metric_of(self.kube, self.uuid) == value,
        )

    def check_work(self) -> None:
        """Assert that the two pods work on, in the containers that they had at first."""
        assert busy_part(self.machine, self.uuid) > 0.5
        for pod in PODS:
            assert restart_counts(self.kube, self.tenant, pod) == {"main": 0}
            assert self.kube.phase(self.tenant, pod) == "Running"

    def told(self, pod: str) -> list[str]:
        """The messages of the pod's events about its card."""
        found = self.kube.events(self.tenant, pod)
        return [message for reason, message in found if reason == "DeviceUnhealthy"]

    def offered(self) -> int:
        """How many devices of the tenant the scheduler may give out on the node."""
        node = self.kube.get("node", self.node.name) or {}
        found = node["status"]["allocatable"].get(f"{self.tenant}.{RESOURCE}", "0")
        return int(found)


@pytest.fixture
def sharers(kube: Kube, stage: "Stage", mizar_cluster: Cluster) -> Iterator[Sharers]:
    node = mizar_cluster.nodes[-1]
    pool = stage.pool(
        nodeSelector={"kubernetes.io/hostname": node.name}, profiles=[{"devices": 4, "cards": 1}]
    )
    tenant = stage.tenant(FOURTHS, pool=pool)
    kube.apply(*(share_pod(tenant, pod, RESOURCE, command=BUSY) for pod in PODS))
    kube.wait_running(tenant, *PODS)
    ready_shadows(kube, tenant)
    wait_held(kube, tenant, *PODS)
    (uuid,) = card_of(kube, tenant, PODS[0])
    with Machine(node.simgpu_dir) as machine:
        made = Sharers(kube, machine, node, tenant, uuid)
        machine.set_figure(uuid, "nvlinks", 2)
        try:
            wait_for("the agent to see the links", lambda: '"links": 2' in _checkpoint(node))
            yield made
        finally:
            made.set_figures(well=True)
            machine.set_figure(uuid, "nvlinks", 0)
            machine.restore(uuid)
            (node.path("/var/lib/mizar") / f"{REPAIRED}{uuid}").touch()
            made.wait_metric(1)


def _checkpoint(node: Node) -> str:
    return (node.path("/var/lib/mizar") / "checkpoint.json").read_text()


def test_a_card_that_shows_signs_of_a_fault(sharers: Sharers) -> None:
    """Its users are told and run on, and no other pod gets a device of it. It is well again once it
    has shown no sign for a minute, and not before, however often the signs come and go."""
    kube, tenant = sharers.kube, sharers.tenant
    wait_for("its devices", lambda: sharers.offered() == 4)
    wait_for("the card to be busy", lambda: busy_part(sharers.machine, sharers.uuid) > 0.5)
    sharers.set_figures(well=False)
    for pod in PODS:
        assert "a row of its memory could not be replaced" in wait_event(
            kube, tenant, pod, "DeviceUnhealthy"
        )
        assert "DeviceUnhealthy" in kube.run("describe", "pod", pod, f"--namespace={tenant}")
    problems = [sign.problem for sign in SIGNS]
    before = sharers.wait_healthy("False", sharers.uuid, *problems)
    assert before["reason"] == "CardFailed"
    sharers.wait_metric(0)
    wait_for("the scheduler to see none", lambda: sharers.offered() == 0)
    kube.apply(share_pod(tenant, "late", RESOURCE))
    wait_event(kube, tenant, "late", "QuotaExceeded")
    sharers.check_work()

    for well in (True, False, True, False, True):
        sharers.set_figures(well=well)
        time.sleep(5.0)
    calm = time.monotonic() - 5.0
    assert sharers.healthy()["lastTransitionTime"] == before["lastTransitionTime"]
    assert kube.phase(tenant, "late") == "Pending"
    sharers.wait_healthy("True", timeout=CALM_S + SOON_S)
    took = time.monotonic() - calm
    print(f"the card was well {took:.0f} s after its last sign of a fault")
    assert took >= CALM_S
    sharers.wait_metric(1)
    kube.wait_running(tenant, "late")
    assert cards_seen_inside(kube, tenant, "late") == {sharers.uuid}
    sharers.check_work()
    assert len(sharers.told("a")) == 1
    assert sharers.uuid in wait_event(kube, tenant, "a", "DeviceHealthy")


def test_failed_cards_are_not_tried_again_and_again(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """NVIDIA's plugin sees nothing of the failure, and gives a card to the shadow pod. The pod that
    waits is told; the shadow pod keeps its place for a while, and serves if the card is well."""
    node = mizar_cluster.nodes[-1]
    pool = stage.pool(nodeSelector={"kubernetes.io/hostname": node.name})
    with Machine(node.simgpu_dir) as machine:
        cards = [one.uuid for one in machine.cards]
        try:
            for uuid in cards:
                machine.set_figure(uuid, "remap_failed", 1)
            for uuid in cards:
                wait_for("the agent to see it", lambda one=uuid: metric_of(kube, one) == 0)  # type: ignore[misc]
            tenant = stage.tenant({"devices": 2, "min": 0, "max": 1}, pool=pool)
            kube.apply(share_pod(tenant, "a"))
            assert "have failed" in wait_event(kube, tenant, "a", "NoCardFree")
            until, tried = time.monotonic() + TRIED_S, set[str]()
            while time.monotonic() < until:
                tried |= {one["metadata"]["name"] for one in kube.all("shadowpods", tenant)}
        finally:
            for uuid in cards:
                machine.set_figure(uuid, "remap_failed", 0)
                (node.path("/var/lib/mizar") / f"{REPAIRED}{uuid}").touch()
    assert len(tried) <= 2, f"one every four seconds were tried at first: {tried}"
    kube.wait_running(tenant, "a")


def test_a_card_that_reports_errors(sharers: Sharers, mizar_cluster: Cluster) -> None:
    """Errors of a program, and memory errors that the card has contained, change nothing. Others
    count until somebody says that the card was repaired, also for another agent."""
    kube, tenant = sharers.kube, sharers.tenant
    wait_for("the card to be busy", lambda: busy_part(sharers.machine, sharers.uuid) > 0.5)
    for xid in (PROGRAM_XID, *sorted(NOTED_XIDS)):
        sharers.raise_xid(xid)
    sharers.raise_xid(48)
    for pod in PODS:
        assert "XID 48" in wait_event(kube, tenant, pod, "DeviceUnhealthy")
    before = sharers.wait_healthy("False", sharers.uuid, "XID 48")
    assert [len(sharers.told(pod)) for pod in PODS] == [1, 1]
    agent = wait_for("the agent", lambda: agent_on(kube, sharers.node))
    kill_component(kube, mizar_cluster, "nodeagent")
    wait_for("the next one", lambda: agent_on(kube, sharers.node) not in (None, agent))
    wait_component(kube, "nodeagent")
    sharers.wait_metric(0)
    assert sharers.healthy() == before
    kube.apply(share_pod(tenant, "late", RESOURCE))
    wait_event(kube, tenant, "late", "QuotaExceeded")
    sharers.check_work()

    (sharers.node.path("/var/lib/mizar") / f"{REPAIRED}{sharers.uuid}").touch()
    sharers.wait_healthy("True")
    kube.wait_running(tenant, "late")
    assert cards_seen_inside(kube, tenant, "late") == {sharers.uuid}
    sharers.check_work()
    assert [len(sharers.told(pod)) for pod in PODS] == [1, 1]
