"""Tenants get their own devices and no others; quotas hold; what can't be placed is explained."""

from typing import TYPE_CHECKING

import pytest

from cluster.errors import CommandFailed
from e2e.watching import card_of, ready_shadows, wait_event, wait_held
from support import objects
from support.kube import Kube, condition
from support.objects import share_pod, whole_card_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_each_tenant_only_ever_gets_its_own(kube: Kube, stage: "Stage") -> None:
    """Two tenants with free devices on one node: no pod lands on the other's card."""
    pool = stage.pool(nodeSelector={"kubernetes.io/hostname": first_node(kube)})
    warm = {"devices": 2, "min": 1, "max": 1}
    ours, theirs = stage.tenant(warm, pool=pool), stage.tenant(warm, pool=pool)
    ready_shadows(kube, ours), ready_shadows(kube, theirs)
    for tenant in (ours, theirs):
        kube.apply(share_pod(tenant, "a"), share_pod(tenant, "b"))
    for tenant in (ours, theirs):
        kube.wait_running(tenant, "a", "b")
        held = wait_held(kube, tenant, "a", "b")
        assert all(device.startswith(f"{tenant}/") for device in held)
    assert card_of(kube, ours, "a").isdisjoint(card_of(kube, theirs, "a"))


def test_asking_for_the_others_devices_by_name_is_refused(kube: Kube, stage: "Stage") -> None:
    """A tenant can't name the resource of another tenant."""
    warm = {"devices": 2, "min": 0, "max": 1}
    pool = stage.pool()
    ours, theirs = stage.tenant(warm, pool=pool), stage.tenant(warm, pool=pool)
    thief = share_pod(ours, "thief", f"{theirs}.mizar.share/gpu.2")
    with pytest.raises(CommandFailed, match=f"belongs to namespace '{theirs}'"):
        kube.apply(thief)
    assert kube.get("pod", "thief", ours) is None


def test_dotted_name_in_a_pod_and_in_a_deployment(kube: Kube, stage: "Stage") -> None:
    """`mizar.share.gpu.2`, which Kubernetes itself would refuse, is accepted."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    pod = share_pod(tenant, "dotted", "mizar.share.gpu.2")
    kube.apply(pod, objects.deployment(tenant, "dotted", "mizar.share.gpu.2"))
    kube.wait_running(tenant, "dotted")
    kube.run("rollout", "status", "deployment/dotted", f"--namespace={tenant}", "--timeout=240s")
    limits = kube.get("pod", "dotted", tenant)["spec"]["containers"][0]["resources"]["limits"]  # type: ignore[index]
    assert limits == {f"{tenant}.mizar.share/gpu.2": "1"}


def test_quota_is_never_exceeded(kube: Kube, stage: "Stage") -> None:
    """With quota for one shadow pod, the third pod waits and says why; a freed device serves it."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 1})
    for name in ("a", "b"):
        kube.apply(share_pod(tenant, name))
    kube.wait_running(tenant, "a", "b")
    kube.apply(share_pod(tenant, "c"))
    message = wait_event(kube, tenant, "c", "QuotaExceeded")
    assert "gpus" in message
    # A quota's limit does not depend on time: what the next plan leaves is left by all.
    kube.wait_planned_again("gpuquota", "gpus", tenant)
    assert kube.phase(tenant, "c") == "Pending"
    assert len(kube.all("shadowpods", tenant)) == 1
    wait_for(
        "the quota to say that it is exhausted",
        lambda: (
            condition(kube.get("gpuquota", "gpus", tenant) or {}, "Exhausted")["status"] == "True"
        ),
    )
    kube.delete("pod", "a", tenant)
    kube.wait_running(tenant, "c")
    kube.wait_planned_again("gpuquota", "gpus", tenant)
    assert len(kube.all("shadowpods", tenant)) == 1


def test_namespace_without_quota_is_told_so(kube: Kube, stage: "Stage") -> None:
    """A share pod in a namespace without a quota waits, with an event that says so."""
    pool = stage.pool()
    tenant = stage.tenant()
    kube.apply(share_pod(tenant, "a"))
    # It comes once the pod has waited for NO_QUOTA_AFTER, 3 s. Nothing else about a pod without a
    # quota depends on time, so that the next plan shows what all later ones do.
    message = wait_event(kube, tenant, "a", "NoQuota")
    assert "GPUQuota" in message
    kube.wait_planned_again("gpupool", pool)
    assert not kube.all("gpuquotas", tenant)
    assert not kube.all("shadowpods", tenant)


def test_minimum_is_kept_warm(kube: Kube, stage: "Stage") -> None:
    """`min` shadow pods are there before any pod asks, and outlive the idle timeout."""
    tenant = stage.tenant({"devices": 2, "min": 1, "max": 2}, pool=stage.pool(idleTimeoutSeconds=1))
    ready_shadows(kube, tenant)
    kube.apply(*(share_pod(tenant, name) for name in "abc"))
    kube.wait_running(tenant, "a", "b", "c")
    ready_shadows(kube, tenant, 2)
    for name in "abc":
        kube.delete("pod", name, tenant)
    wait_for("one shadow pod to be reaped", lambda: len(kube.all("shadowpods", tenant)) == 1)
    assert ready_shadows(kube, tenant, 1)


def test_shadow_pod_that_cannot_be_scheduled_is_reported(kube: Kube, stage: "Stage") -> None:
    """No card free: the ShadowPod, its quota and the waiting pod all say so; later it runs."""
    tenant = stage.tenant({"devices": 2, "min": 0, "max": 2})
    for name in ("left", "right"):
        kube.apply(whole_card_pod(tenant, name, cards=2))
    kube.wait_running(tenant, "left", "right")
    kube.apply(share_pod(tenant, "a"))

    def reported() -> bool:
        shadows = kube.all("shadowpods", tenant)
        assert len(shadows) == 1, f"{len(shadows)} ShadowPods"
        (shadow,) = shadows
        scheduled = condition(shadow, "Scheduled")
        assert shadow["status"].get("phase") == "Pending"
        return bool(scheduled["status"] == "False" and "nvidia.com/gpu" in scheduled["message"])

    wait_for("the ShadowPod to say why it waits", reported)
    wait_event(kube, tenant, "a", "NoCardFree")
    kube.delete("pod", "left", tenant)
    kube.wait_running(tenant, "a")
    assert len(kube.all("shadowpods", tenant)) == 1


def first_node(kube: Kube) -> str:
    """The name of one node."""
    return str(kube.all("nodes")[0]["metadata"]["name"])


def test_wrong_quota_is_refused(kube: Kube, stage: "Stage") -> None:
    """A profile that the pool doesn't have is refused, and the sentence names it."""
    pool = stage.pool(profiles=[{"devices": 10, "cards": 1}])
    tenant = stage.tenant()
    with pytest.raises(CommandFailed, match="has no profile of 2 devices: choose among 10"):
        kube.apply(objects.quota(tenant, {"devices": 2, "min": 0, "max": 1}, pool=pool))
