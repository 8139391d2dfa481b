"""Pods that may not go to every node: their shadow pod goes where they can go, or they learn why
not."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from e2e.watching import ready_shadows, wait_event, wait_held
from support import objects
from support.kube import Kube, Object, condition
from support.objects import share_pod, whole_card_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TWO = {"devices": 2, "min": 0, "max": 2}


def on(node: str) -> Object:
    """The part of a pod's spec that selects the node."""
    return {"nodeSelector": {HOSTNAME: node}}


def _nodes(kube: Kube) -> list[str]:
    return sorted(str(one["metadata"]["name"]) for one in kube.all("nodes"))


def _web(tenant: str, **spec: Any) -> Object:
    """A Deployment of two replicas."""
    made = objects.deployment(tenant, "web", replicas=2)
    made["spec"]["template"]["spec"].update(spec)
    return made


def _roll_out(kube: Kube, tenant: str) -> list[str]:
    """Wait for the Deployment; gives the nodes of its replicas."""
    kube.run("rollout", "status", "deployment/web", f"--namespace={tenant}", "--timeout=240s")
    return [one["spec"]["nodeName"] for one in kube.all("pods", tenant, "app=web")]


def _shadow_nodes(kube: Kube, tenant: str, count: int) -> list[str]:
    return sorted(one["status"]["node"] for one in ready_shadows(kube, tenant, count))


def test_replicas_on_two_nodes(kube: Kube, stage: "Stage") -> None:
    """The usual set-up for availability: each replica gets a shadow pod on a node of its own."""
    tenant = stage.tenant(TWO)
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": HOSTNAME}
    kube.apply(_web(tenant, affinity={"podAntiAffinity": {REQUIRED: [term]}}))
    assert sorted(_roll_out(kube, tenant)) == _nodes(kube)
    assert _shadow_nodes(kube, tenant, 2) == _nodes(kube)


def test_replicas_that_only_the_scheduler_keeps_apart(kube: Kube, stage: "Stage") -> None:
    """The replicas are spread over nodes by a constraint that only the scheduler evaluates: it
    passes over the free device of the first node, so that a shadow pod is created on the other."""
    tenant = stage.tenant(TWO)
    spread = {
        "maxSkew": 1,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    kube.apply(_web(tenant, topologySpreadConstraints=[spread]))
    assert sorted(_roll_out(kube, tenant)) == _nodes(kube)
    assert _shadow_nodes(kube, tenant, 2) == _nodes(kube)


def test_node_affinity(kube: Kube, stage: "Stage") -> None:
    """A device is free on one node, and the pod's affinity wants the other."""
    tenant, (here, there) = stage.tenant(TWO), _nodes(kube)
    kube.apply(share_pod(tenant, "a", **on(here)))
    kube.wait_running(tenant, "a")
    line = {"key": HOSTNAME, "operator": "NotIn", "values": [here]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [line]}]}
    kube.apply(share_pod(tenant, "b", affinity={"nodeAffinity": {REQUIRED: terms}}))
    kube.wait_running(tenant, "b")
    assert _shadow_nodes(kube, tenant, 2) == sorted([here, there])


def test_taint_that_the_pod_tolerates(kube: Kube, stage: "Stage") -> None:
    """A shadow pod has the pod's tolerations; the event of a pod without it names the taint."""
    tenant, (here, _) = stage.tenant(TWO), _nodes(kube)
    kube.run("taint", "node", here, "team=a:NoSchedule")
    try:
        kube.apply(share_pod(tenant, "stranger", **on(here)))
        assert "taint team=a:NoSchedule" in wait_event(kube, tenant, "stranger", "NoNodeFits")
        toleration = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
        pod = share_pod(tenant, "a", **on(here), tolerations=[toleration])
        kube.apply(pod)
        kube.wait_running(tenant, "a")
    finally:
        kube.run("taint", "node", here, "team-")


def test_what_no_node_has_is_told_in_the_schedulers_words(kube: Kube, stage: "Stage") -> None:
    """Devices are free, but no node has as much memory as the pod asks for. A shadow pod is created
    elsewhere for it once only."""
    tenant = stage.tenant(TWO)
    pod = share_pod(tenant, "a")
    pod["spec"]["containers"][0]["resources"]["requests"] = {"memory": "1Pi"}
    kube.apply(pod)
    assert "Insufficient memory" in wait_event(kube, tenant, "a", "NoNodeFits", timeout=120)
    wait_for(
        "the quota to be called unsatisfied",
        lambda: (
            condition(kube.get("gpuquota", "gpus", tenant) or {}, "Satisfied")["status"] == "False"
        ),
    )


def test_a_pod_that_may_go_to_any_node_does_not_wait_for_a_full_one(
    kube: Kube, stage: "Stage"
) -> None:
    """One pod must go to a node without a free card; the next one may go to any."""
    tenant, (here, there) = stage.tenant(TWO), _nodes(kube)
    full = [f"full-{number}" for number in range(_cards(kube, here))]
    kube.apply(*(whole_card_pod(tenant, name, **on(here)) for name in full))
    kube.wait_running(tenant, *full)
    kube.apply(share_pod(tenant, "pinned", **on(here)))
    wait_event(kube, tenant, "pinned", "NoCardFree")
    kube.apply(share_pod(tenant, "free"))
    kube.wait_running(tenant, "free")
    # A node agent may say where a shadow pod is after a pod that uses it runs.
    wait_for("the used one's node", lambda: any(map(_is_on_a_node, kube.all("shadowpods", tenant))))
    waits, runs = sorted(kube.all("shadowpods", tenant), key=_is_on_a_node)
    assert not _is_on_a_node(waits) and runs["status"]["node"] == there
    for name in full:
        kube.delete("pod", name, tenant)
    kube.wait_running(tenant, "pinned")


def _is_on_a_node(shadow: Object) -> bool:
    """Whether a ShadowPod has a node."""
    return bool(shadow.get("status", {}).get("node"))


def _cards(kube: Kube, node: str) -> int:
    return int((kube.get("node", node) or {})["status"]["allocatable"]["nvidia.com/gpu"])


def test_a_pool_that_is_corrected(kube: Kube, stage: "Stage") -> None:
    """Its quota has no room for a second shadow pod, and the first waits for a node that is not
    there."""
    pool = stage.pool(nodeSelector={HOSTNAME: "a-typo"})
    tenant = stage.tenant({"devices": 2, "min": 1, "max": 1}, pool=pool)
    kube.apply(share_pod(tenant, "a"))
    wait_event(kube, tenant, "a", "NoNodeFits")
    right = {"spec": {"nodeSelector": {HOSTNAME: _nodes(kube)[0]}}}
    kube.run("patch", "gpupool", pool, "--type=merge", f"--patch={json.dumps(right)}")
    kube.wait_running(tenant, "a")


def test_idle_shadow_pods_give_way_to_whole_card_pods(kube: Kube, stage: "Stage") -> None:
    """They are preempted an hour before their idle timeout; one whose card is not needed stays."""
    tenant, (here, there) = stage.tenant(TWO), _nodes(kube)
    for name, node in (("a", here), ("b", there)):
        kube.apply(share_pod(tenant, name, nodeSelector={HOSTNAME: node}))
    kube.wait_running(tenant, "a", "b")
    kube.delete("pod", "a", tenant)
    kube.delete("pod", "b", tenant)
    kube.apply(whole_card_pod(tenant, "whole", cards=2, **on(here)))
    kube.wait_running(tenant, "whole")
    assert _shadow_nodes(kube, tenant, 1) == [there]


def test_idle_shadow_pods_give_way_to_another_tenants(kube: Kube, stage: "Stage") -> None:
    """A share pod of another tenant waits for a card; shadow pods that `min` keeps ready stay."""
    pool, (here, _) = stage.pool(), _nodes(kube)
    ours = stage.tenant({"devices": 2, "min": 1, "max": 2}, pool=pool)
    theirs = stage.tenant(TWO, pool=pool)
    # One for each of the four devices on a node of two cards.
    kube.apply(*(share_pod(ours, f"p{i}", **on(here)) for i in range(4)))
    kube.wait_running(ours, *(f"p{i}" for i in range(4)))
    for i in range(4):
        kube.delete("pod", f"p{i}", ours)
    kube.apply(share_pod(theirs, "a", **on(here)))
    kube.wait_running(theirs, "a")
    assert _shadow_nodes(kube, theirs, 1) == [here]
    ready_shadows(kube, ours, 1)


def test_the_only_shadow_pod_of_a_quota_goes_where_its_user_can_go(
    kube: Kube, stage: "Stage"
) -> None:
    """The minimum keeps it ready on one node, and the pod may only go to the other one."""
    tenant = stage.tenant({"devices": 2, "min": 1, "max": 1})
    (elsewhere,) = {*_nodes(kube)} - {*_shadow_nodes(kube, tenant, 1)}
    kube.apply(share_pod(tenant, "a", nodeSelector={HOSTNAME: elsewhere}))
    kube.wait_running(tenant, "a")
    assert _shadow_nodes(kube, tenant, 1) == [elsewhere]


def test_what_replaces_a_shadow_pod_does_not_go_where_the_pod_was_refused(
    kube: Kube, stage: "Stage"
) -> None:
    """The quota allows one shadow pod. The pod may go only where its cache is, which only the
    scheduler evaluates, and which is the fuller node; shadow pods without constraints go to the
    other one."""
    tenant, (here, there) = stage.tenant({"devices": 2, "max": 1}), _nodes(kube)
    cache = objects.plain_pod(tenant, "cache", nodeName=here)
    cache["metadata"]["labels"] = {"app": "cache"}
    cache["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    kube.apply(cache, share_pod(tenant, "first", nodeSelector={HOSTNAME: there}))
    kube.wait_running(tenant, "cache", "first")
    kube.delete("pod", "first", tenant)
    term = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": HOSTNAME}
    kube.apply(share_pod(tenant, "a", affinity={"podAffinity": {REQUIRED: [term]}}))
    kube.wait_running(tenant, "a")
    assert _shadow_nodes(kube, tenant, 1) == [here]


def test_containers_of_two_profiles_meet_on_one_node(kube: Kube, stage: "Stage") -> None:
    """The one shadow pod of each profile is idle on a node of its own, and neither can be used."""
    shapes = [{"devices": one, "cards": 1} for one in (2, 4)]
    limits = [{"devices": one, "max": 1} for one in (2, 4)]
    tenant, nodes = stage.tenant(*limits, pool=stage.pool(profiles=shapes)), _nodes(kube)
    names = ["mizar.share/gpu.2", "mizar.share/gpu.4"]
    for name, node in zip(names, nodes, strict=True):
        kube.apply(share_pod(tenant, node, name, nodeSelector={HOSTNAME: node}))
    kube.wait_running(tenant, *nodes)
    for node in nodes:
        kube.delete("pod", node, tenant)
    both = share_pod(tenant, "both", names[0])
    (one,) = both["spec"]["containers"]
    other = {**one, "name": "other", "resources": {"limits": {names[1]: 1}}}
    both["spec"]["containers"].append(other)
    kube.apply(both)
    kube.wait_running(tenant, "both")


def test_what_is_in_use_beyond_a_lowered_quota_takes_nobody_new(kube: Kube, stage: "Stage") -> None:
    """There are two shadow pods with one user each, and the quota now allows one. Of two more pods
    one runs, on the free device of the shadow pod that stays."""
    tenant, nodes = stage.tenant(TWO), _nodes(kube)
    kube.apply(*(share_pod(tenant, node, nodeSelector={HOSTNAME: node}) for node in nodes))
    kube.wait_running(tenant, *nodes)
    patch = '{"spec": {"profiles": [{"devices": 2, "max": 1}]}}'
    kube.run(
        "patch", "gpuquota", "gpus", f"--namespace={tenant}", "--type=merge", f"--patch={patch}"
    )

    def usable() -> list[int]:
        """Devices that the kubelets may still give out or have given out, by shadow pod."""
        shadows = kube.all("shadowpods", tenant)
        return sorted(_healthy(kube, one["metadata"]["name"], tenant) for one in shadows)

    # A lower count in the node's status is not enough: a scheduler that has not yet heard of it
    # sends one more pod, which the node agent serves.
    wait_for("the free device of one shadow pod to be withdrawn", lambda: usable() == [1, 2])
    kube.apply(share_pod(tenant, "c"))
    kube.wait_running(tenant, "c")
    kube.apply(share_pod(tenant, "d"))
    assert "quota gpus allows 1 shadow pod" in wait_event(kube, tenant, "d", "QuotaExceeded")


def test_shadow_pod_deleted_in_use(kube: Kube, stage: "Stage") -> None:
    """Its user stays, no other pod gets its free device, and it is deleted when its user has
    ended."""
    tenant, (here, _) = stage.tenant(TWO), _nodes(kube)
    kube.apply(share_pod(tenant, "a", **on(here)))
    kube.wait_running(tenant, "a")
    (shadow,) = ready_shadows(kube, tenant)
    name = shadow["metadata"]["name"]
    kube.delete("shadowpod", name, tenant, "--wait=false")
    wait_for("its free device to be offered no more", lambda: _healthy(kube, name, tenant) == 1)
    kube.apply(share_pod(tenant, "b", **on(here)))
    kube.wait_running(tenant, "b")
    held = wait_held(kube, tenant, "a", "b")
    assert [pod for device, pod in held.items() if f"/{name}-" in device] == [f"{tenant}/a"]
    kube.delete("pod", "a", tenant)
    kube.wait_gone("shadowpod", tenant, name)
    assert kube.phase(tenant, "b") == "Running"


def _healthy(kube: Kube, name: str, tenant: str) -> int:
    shadow = kube.get("shadowpod", name, tenant) or {}
    devices = shadow.get("status", {}).get("devices", [])
    return sum(one["health"] == "Healthy" for one in devices)


def test_what_a_resource_quota_refuses_is_told_and_heals(kube: Kube, stage: "Stage") -> None:
    """The namespace may have no card: pod, quota and ShadowPod say so, until the ResourceQuota
    allows one."""
    tenant = stage.tenant(TWO)
    limit = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-cards", "namespace": tenant},
        "spec": {"hard": {"requests.nvidia.com/gpu": "0"}},
    }
    kube.apply(limit)
    wait_for(
        "the ResourceQuota to be in force",
        lambda: (kube.get("resourcequota", "no-cards", tenant) or {}).get("status", {}).get("hard"),
    )
    kube.apply(share_pod(tenant, "a"))
    assert "exceeded quota: no-cards" in wait_event(kube, tenant, "a", "ShadowRefused")

    def told() -> bool:
        found = kube.get("gpuquota", "gpus", tenant) or {}
        satisfied = condition(found, "Satisfied")
        assert (satisfied["status"], satisfied["reason"]) == ("False", "ShadowRefused"), satisfied
        return "no-cards" in satisfied["message"] and found["status"]["waiting"] == 1

    wait_for("the quota to say what is refused", told)
    kube.delete("resourcequota", "no-cards", tenant)
    kube.wait_running(tenant, "a")
    wait_for(
        "the quota to be satisfied",
        lambda: (
            condition(kube.get("gpuquota", "gpus", tenant) or {}, "Satisfied")["status"] == "True"
        ),
    )


def test_a_pool_that_packs_fills_a_node_before_it_uses_the_next(kube: Kube, stage: "Stage") -> None:
    """Both nodes have free devices, one of them in a shadow pod that nobody uses any more. With the
    scheduler's own scores, one of three pods or two go there."""
    pool = stage.pool(profiles=[{"devices": 4, "cards": 1}], nodePolicy="Binpack")
    tenant, (here, there) = (
        stage.tenant({"devices": 4, "min": 0, "max": 2}, pool=pool),
        _nodes(kube),
    )
    for name, node in (("stays", here), ("goes", there)):
        kube.apply(share_pod(tenant, name, resource="mizar.share/gpu.4", **on(node)))
    kube.wait_running(tenant, "stays", "goes")
    assert _shadow_nodes(kube, tenant, 2) == [here, there]
    kube.delete("pod", "goes", tenant)
    wait_for("one shadow pod to be in use", lambda: len(_in_use(kube, tenant)) == 1)
    others = ("a", "b", "c")
    kube.apply(*(share_pod(tenant, one, resource="mizar.share/gpu.4") for one in others))
    kube.wait_running(tenant, *others)
    pods = [kube.get("pod", one, tenant) for one in others]
    assert [one["spec"]["nodeName"] for one in pods if one] == [here] * 3


def _in_use(kube: Kube, tenant: str) -> list[Object]:
    """The tenant's shadow pods that are marked as in use, whose pods the scheduler is to prefer."""
    return kube.all("pods", tenant, "mizar.share/in-use=true")
