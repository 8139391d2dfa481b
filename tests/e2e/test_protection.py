"""A card in use stays with its users, whatever else wants the card or its node."""

from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from e2e.components import living_container
from e2e.test_placement import on
from e2e.watching import ready_shadows
from support import objects
from support.kube import Kube, Object
from support.objects import SHARE_PODS, of_each_kind, share_pod, whole_card_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HALF = {"devices": 2, "min": 0, "max": 1}
CARDS = 2
OTHERS_THAN_MIZAR = "!app.kubernetes.io/part-of"
BUDGET = "mizar-shadow-pods-in-use"


def used_shadow(kube: Kube, tenant: str, **spec: object) -> tuple[Object, str]:
    """A shadow pod that the share pod `a` uses, and its node."""
    kube.apply(share_pod(tenant, "a", **spec))  # type: ignore[arg-type]
    kube.wait_running(tenant, "a")
    (shadow,) = ready_shadows(kube, tenant)
    name = str(shadow["metadata"]["name"])
    pod = wait_for("the mark of use", lambda: marked(kube, tenant, name))
    return pod, str(pod["spec"]["nodeName"])


def marked(kube: Kube, tenant: str, name: str) -> Object | None:
    found = kube.get("pod", name, tenant)
    assert found is not None, f"the shadow pod {name} is gone"
    return found if "mizar.share/in-use" in found["metadata"]["labels"] else None


def is_refused(kube: Kube, tenant: str, pod: str, *words: str) -> None:
    """Wait until the scheduler has said why a pod finds no node."""

    def said() -> bool:
        messages = [text for why, text in kube.events(tenant, pod) if why == "FailedScheduling"]
        assert any(all(word in text for word in words) for text in messages), messages
        return True

    wait_for(f"the scheduler's word on {pod}", said)


@pytest.fixture
def boss(stage: "Stage") -> str:
    """The highest PriorityClass that a user may make."""
    return stage.priority_class("boss", 1_000_000_000)


def test_no_pod_preempts_a_card_in_use(kube: Kube, stage: "Stage", boss: str) -> None:
    tenant = stage.tenant(HALF)
    shadow, node = used_shadow(kube, tenant)
    assert shadow["spec"]["priority"] == 1_000_000_000
    assert shadow["spec"]["preemptionPolicy"] == "Never"
    kube.apply(whole_card_pod(tenant, "whole", CARDS, priorityClassName=boss, **on(node)))
    is_refused(kube, tenant, "whole", "preemption: 0/2 nodes are available", "nvidia.com/gpu")
    kept = marked(kube, tenant, shadow["metadata"]["name"])
    assert kept is not None and kept["metadata"]["uid"] == shadow["metadata"]["uid"]
    assert kube.exec(tenant, "a", "cuda-sample", "alloc", "1024")[0] == 0


def test_below_other_classes_only_idle_cards_are_preempted(
    kube: Kube, stage: "Stage", boss: str
) -> None:
    """The scheduler chooses the shadow pod, and is refused while a pod uses it."""
    humble = stage.priority_class("humble", -10)
    tenant = stage.tenant(HALF, pool=stage.pool(priorityClassName=humble))
    shadow, node = used_shadow(kube, tenant)
    assert shadow["spec"]["priority"] == -10
    kube.apply(whole_card_pod(tenant, "whole", CARDS, priorityClassName=boss, **on(node)))
    is_refused(kube, tenant, "whole", "nvidia.com/gpu")
    kept = marked(kube, tenant, shadow["metadata"]["name"])
    assert kept is not None and "deletionTimestamp" not in kept["metadata"]
    assert kube.exec(tenant, "a", "cuda-sample", "alloc", "1024")[0] == 0
    kube.delete("pod", "a", tenant)
    kube.wait_running(tenant, "whole")


def test_use_is_marked_for_autoscalers_and_evictions(kube: Kube, stage: "Stage") -> None:
    tenant = stage.tenant(HALF)
    shadow, _ = used_shadow(kube, tenant)
    name, notes = shadow["metadata"]["name"], shadow["metadata"]["annotations"]
    assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert notes["karpenter.sh/do-not-disrupt"] == "true"
    assert shadow["status"]["qosClass"] == "Guaranteed"
    wait_for("the budget to count", lambda: observed(kube, tenant))
    kube.delete("pdb", BUDGET, tenant)
    wait_for("the deleted budget to be made again", lambda: observed(kube, tenant))
    said = evict(kube, tenant, name)
    assert "violate the pod's disruption budget" in said, said
    kube.delete("pod", "a", tenant)
    wait_for("the mark to go", lambda: not marked(kube, tenant, name))
    (idle,) = [one for one in kube.all("pods", tenant) if one["metadata"]["name"] == name]
    assert not any("safe-to-evict" in key for key in idle["metadata"]["annotations"])
    assert "Success" in evict(kube, tenant, name)
    kube.wait_gone("pod", tenant, name)
    wait_for("the budget to go", lambda: kube.get("pdb", BUDGET, tenant) is None)


def observed(kube: Kube, tenant: str) -> bool:
    budget = kube.get("pdb", BUDGET, tenant)
    assert budget is not None, "there is no budget yet"
    status = budget.get("status") or {}
    assert not [one for one in status.get("conditions", []) if one["reason"] == "SyncFailed"]
    # It is met, so that monitoring reports nothing.
    return bool(status.get("observedGeneration")) and (
        status["currentHealthy"] == status["desiredHealthy"] == 1
    )


def evict(kube: Kube, tenant: str, pod: str) -> str:
    body = (
        '{"apiVersion":"policy/v1","kind":"Eviction",'
        f'"metadata":{{"name":"{pod}","namespace":"{tenant}"}}}}'
    )
    path = f"/api/v1/namespaces/{tenant}/pods/{pod}/eviction"
    return kube.attempt("create", "--raw", path, "--filename=-", input=body)[1]


def test_a_budget_over_all_pods_of_a_namespace_permits_evictions(
    kube: Kube, stage: "Stage"
) -> None:
    """The budget counts the tenant's shadow pods as well, and asks their owners how many there
    should be."""
    tenant = stage.tenant(HALF)
    kube.apply(objects.deployment(tenant, "web", replicas=2))
    kube.run("rollout", "status", "deployment/web", f"--namespace={tenant}", "--timeout=240s")
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    spec = {"maxUnavailable": 1, "selector": {}}
    kube.apply({**head, "metadata": {"name": "all", "namespace": tenant}, "spec": spec})

    def permitted() -> bool:
        status = (kube.get("poddisruptionbudget", "all", tenant) or {}).get("status") or {}
        return int(status.get("disruptionsAllowed", 0)) == 1

    wait_for("an eviction to be permitted", permitted)


def test_a_drained_node_waits_for_who_shares_its_cards(kube: Kube, stage: "Stage") -> None:
    """`kubectl drain` comes to an end: share pods end in their time, then the shadow pod is
    deleted."""
    tenant = stage.tenant(HALF)
    shadow, node = used_shadow(kube, tenant, terminationGracePeriodSeconds=8)
    wait_for("the budget to count", lambda: observed(kube, tenant))
    try:
        said = kube.run(
            *("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data"),
            *(f"--pod-selector={OTHERS_THAN_MIZAR}", "--timeout=240s"),
        )
    finally:
        kube.run("uncordon", node)
    assert f"evicting pod {tenant}/a" in said
    assert kube.get("pod", shadow["metadata"]["name"], tenant) is None


def test_a_drain_does_not_wait_for_pods_that_it_leaves_alone(kube: Kube, stage: "Stage") -> None:
    """`kubectl drain` evicts the shadow pod, but not the DaemonSet's pod that uses it, which loses
    its card."""
    tenant, node = stage.tenant(HALF), str(kube.all("nodes")[0]["metadata"]["name"])
    spec = {**share_pod(tenant, "a")["spec"], **on(node)}
    kube.apply(of_each_kind(tenant, "a", spec)["DaemonSet"])
    (shadow,) = ready_shadows(kube, tenant)
    name = str(shadow["metadata"]["name"])
    wait_for("the mark of use", lambda: marked(kube, tenant, name))
    (user,) = (str(one["metadata"]["name"]) for one in kube.all("pods", tenant, SHARE_PODS))
    try:
        kube.run(
            *("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data"),
            *(f"--pod-selector={OTHERS_THAN_MIZAR}", "--timeout=90s"),
        )
    finally:
        kube.run("uncordon", node)
    assert kube.get("pod", name, tenant) is None
    kube.wait_gone("pod", tenant, user)


def test_a_namespace_that_goes_keeps_its_cards_until_its_users_have_ended(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    tenant, other = stage.tenant(HALF), stage.tenant()
    _, node = used_shadow(kube, tenant, terminationGracePeriodSeconds=15)
    kube.apply(whole_card_pod(other, "whole", CARDS, **on(node)))
    is_refused(kube, other, "whole", "nvidia.com/gpu")

    (place,) = (one for one in mizar_cluster.nodes if one.name == node)

    def has_a_card() -> bool:
        return bool((kube.get("pod", "whole", other) or {})["spec"].get("nodeName"))

    assert living_container(place, f"{tenant}/a") and not has_a_card()
    kube.run("delete", "namespace", tenant, "--wait=false")
    wait_for("the card to be free", has_a_card, timeout=180)
    with pytest.raises(LookupError):  # else it was given away while pods shared it
        living_container(place, f"{tenant}/a")
    kube.wait_running(other, "whole")
