"""Shares of a card's time, from the quota's isolation to what programs get on a simulated card."""

import shlex
from typing import TYPE_CHECKING

import pytest

from support.kube import Kube, condition, is_ready
from support.objects import share_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
SYSTEM = "mizar-system"
AGENTS = "app.kubernetes.io/component=nodeagent"
TENTHS = {"devices": 10, "cards": 1}
BUSY = ["cuda-sample", "busy"]
# A program with a loader that does not know /etc/ld.so.preload.
WITHOUT_SHIM = (
    "sed s#/etc/ld.so.preload#/etc/no.so.preload# /lib64/ld-linux-x86-64.so.2 > /tmp/ld;"
    "chmod +x /tmp/ld; /tmp/ld /usr/local/bin/cuda-sample hold 500"
)


def tenant_of_tenths(stage: "Stage", compute: str) -> str:
    """A tenant whose one card is cut into tenths."""
    pool = stage.pool(profiles=[TENTHS], isolation={"compute": compute})
    return stage.tenant({"devices": 10, "min": 0, "max": 1}, pool=pool)


def work(kube: Kube, tenant: str, **tenths: int) -> None:
    """Pods that want all of the card."""
    for name, count in tenths.items():
        kube.apply(share_pod(tenant, name, "mizar.share/gpu.10", count, BUSY))
    kube.wait_running(tenant, *tenths)


def percents(kube: Kube, tenant: str, pod: str) -> list[float]:
    """How busy the pod's kernels kept the card in each of the last seconds, in percent."""
    lines = kube.run("logs", pod, f"--namespace={tenant}", "--tail=4").splitlines()
    return [float(one.split()[1]) for one in lines if one.startswith("busy")]


def wait_percent(kube: Kube, tenant: str, pod: str, low: float, high: float) -> None:
    """Wait until the figures of the last seconds all lie between these two."""

    def so() -> bool:
        found = percents(kube, tenant, pod)
        assert len(found) == 4 and all(low <= one <= high for one in found), found
        return True

    wait_for(f"{pod} to be busy {low} to {high} %", so, timeout=180, interval=1)


def agents(kube: Kube) -> set[str]:
    """The node agents that are ready."""
    pods = kube.all("pods", SYSTEM, AGENTS)
    return {one["metadata"]["uid"] for one in pods if is_ready(one)}


def test_hard_shares_hold_beside_each_other_and_alone(kube: Kube, stage: "Stage") -> None:
    """Three tenths and seven tenths: what one pod leaves unused, the other does not get."""
    tenant = tenant_of_tenths(stage, "Hard")
    work(kube, tenant, three=3, seven=7)
    wait_percent(kube, tenant, "three", 22, 31.5)
    wait_percent(kube, tenant, "seven", 55, 71.5)
    kube.delete("pod", "seven", tenant)
    wait_percent(kube, tenant, "three", 27, 31.5)


def test_soft_shares_take_what_others_leave(kube: Kube, stage: "Stage") -> None:
    """Alone, a pod has all of the time; beside another that is busy, its share."""
    tenant = tenant_of_tenths(stage, "Soft")
    work(kube, tenant, three=3)
    wait_percent(kube, tenant, "three", 90, 101)
    work(kube, tenant, seven=7)
    wait_percent(kube, tenant, "three", 22, 31.5)
    kube.delete("pod", "seven", tenant)
    wait_percent(kube, tenant, "three", 90, 101)


def test_another_agent_deals_out_the_time_again(kube: Kube, stage: "Stage") -> None:
    """Without an agent Hard shares go on, and Soft ones borrow again as soon as there is one."""
    hard, soft = tenant_of_tenths(stage, "Hard"), tenant_of_tenths(stage, "Soft")
    work(kube, hard, three=3)
    work(kube, soft, three=3)
    wait_percent(kube, soft, "three", 90, 101)
    before = agents(kube)
    kube.run("delete", "pod", f"--namespace={SYSTEM}", f"--selector={AGENTS}", "--wait=false")
    wait_percent(kube, hard, "three", 27, 31.5)
    wait_for("other agents", lambda: len(agents(kube) - before) == len(kube.all("nodes")))
    wait_percent(kube, soft, "three", 90, 101)


def test_weights_divide_the_card_among_the_busy(kube: Kube, stage: "Stage") -> None:
    """Two pods with two tenths each get a half each."""
    tenant = tenant_of_tenths(stage, "Weighted")
    work(kube, tenant, one=2, two=2)
    wait_percent(kube, tenant, "one", 38, 51.5)
    wait_percent(kube, tenant, "two", 38, 51.5)


def test_a_process_without_the_shim_is_reported(kube: Kube, stage: "Stage") -> None:
    """Its container's pod has an event that says what to do."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    kube.apply(share_pod(tenant, "a", command=["sh", "-c", WITHOUT_SHIM]))
    kube.wait_running(tenant, "a")

    def told() -> bool:
        events = kube.events(tenant, "a")
        assert "IsolationNotEnforced" in dict(events), events
        return "without Mizar's shim" in dict(events)["IsolationNotEnforced"]

    wait_for("the event", told)
    wait_for("the condition", lambda: isolation_condition(kube, tenant) == "False")


def test_a_process_without_the_shim_is_killed_where_the_quota_says_strict(
    kube: Kube, stage: "Stage"
) -> None:
    """One process of the container is killed; the others go on."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1}, isolation={"enforcement": "Strict"})
    survives = f"sh -c {shlex.quote(WITHOUT_SHIM)}; sleep 3600"
    kube.apply(share_pod(tenant, "a", command=["sh", "-c", survives]))
    kube.wait_running(tenant, "a")
    wait_for(
        "the event",
        lambda: "is killed" in dict(kube.events(tenant, "a")).get("IsolationNotEnforced", ""),
    )
    wait_for("the condition", lambda: isolation_condition(kube, tenant) == "True")
    pod = kube.get("pod", "a", tenant)
    assert pod is not None
    (status,) = pod["status"]["containerStatuses"]
    assert status["restartCount"] == 0 and "running" in status["state"]


def isolation_condition(kube: Kube, tenant: str) -> str:
    """The status of the pod's condition. LookupError: the pod has none yet."""
    pod = kube.get("pod", "a", tenant)
    assert pod is not None
    return str(condition(pod, "mizar.share/isolation-enforced")["status"])


def test_memory_beyond_the_card_where_the_quota_says_so(kube: Kube, stage: "Stage") -> None:
    """Two containers on one card of 16 GiB, each with 10 GiB of 12."""
    pool = stage.pool(memoryScaling="1.5", isolation={"memory": "Oversubscribe"})
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1}, pool=pool)
    for name in ("a", "b"):
        kube.apply(share_pod(tenant, name, command=["cuda-sample", "hold", "10240"]))
    kube.wait_running(tenant, "a", "b")
    kube.wait_holding(tenant, "a", "b")
    for name in ("a", "b"):
        assert kube.exec(tenant, name, "cuda-sample", "alloc", "3072")[0] == 3
