"""A shadow pod is lost while pods share its card: they stop and are evicted, and others replace
them."""

import time
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from e2e.test_compute import BUSY
from e2e.watching import card_of, wait_event, wait_held
from simgpu.machine import Machine
from support.kube import Kube, Object, condition
from support.objects import SHARE_PODS, deployment
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HALF = {"devices": 2, "min": 0, "max": 1}
QUIET_WITHIN_S = 25.0
"""Far longer than it takes where every program has a processor."""
ENDED_AFTER_S = 45
"""Long after the card has become idle: the pods' limits stop them, not the end of their
containers."""
LOOK_S = 0.5


def test_a_shadow_pod_deleted_by_force_in_use(
    kube: Kube,
    stage: "Stage",
    mizar_cluster: Cluster,
    expected_faults: list[str],
    possible_faults: list[str],
) -> None:
    """No kernel of the pods runs any more on the card, which other pods may have next. The pods are
    evicted with a reason, and the next pods of their Deployment get a shadow pod of their own."""
    tenant = stage.tenant(HALF)
    made = deployment(tenant, "busy", replicas=2)
    made["spec"]["template"]["spec"]["containers"][0]["command"] = BUSY
    # The program cannot end itself while its launch waits.
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = ENDED_AFTER_S
    kube.apply(made)
    names = wait_for("two pods on a card", lambda: running(kube, tenant, 2))
    wait_held(kube, tenant, *names)
    (card,) = card_of(kube, tenant, names[0])
    (shadow,) = kube.all("shadowpods", tenant)
    name, node = shadow["metadata"]["name"], shadow["status"]["node"]
    expected_faults += [f"{tenant}/{name} holds no card", f"{card}, which was given to nobody"]
    # If the next shadow pod gets this card, or is on this node, before the pods have ended.
    possible_faults += [f"{card}, which was given to {tenant}/", f"holds {tenant}/{name}-"]
    (place,) = (one for one in mizar_cluster.nodes if one.name == node)
    with Machine(place.simgpu_dir) as machine:
        wait_for("the card to be busy", lambda: busy_part(machine, card) > 0.5)
        kube.delete("pod", name, tenant, "--force", "--grace-period=0")
        deleted = time.monotonic()
        wait_for("the card to be quiet", lambda: busy_part(machine, card) == 0, interval=0)
        took = time.monotonic() - deleted - LOOK_S
    print(f"the card was quiet {took:.1f} s after the shadow pod was gone")
    assert took < QUIET_WITHIN_S

    # This comes first, since the condition is gone when the pods are.
    why = wait_for("the reason of an eviction", lambda: _disruption(kube, tenant, names))
    assert (why["status"], why["reason"]) == ("True", "EvictionByEvictionAPI")
    for pod in names:
        assert card in wait_event(kube, tenant, pod, "CardLost")
        assert name in wait_event(kube, tenant, pod, "ShareEvicted")
    after = wait_for("two others", lambda: running(kube, tenant, 2, but=names), 180)
    held = wait_held(kube, tenant, *after, timeout=180)
    assert not any(name in device for device in held)
    wait_for("the quota to be satisfied", lambda: _satisfied(kube, tenant))


def _disruption(kube: Kube, tenant: str, pods: list[str]) -> Object | None:
    """The condition DisruptionTarget of one of the pods that has it."""
    for pod in filter(None, (kube.get("pod", one, tenant) for one in pods)):
        for one in pod["status"].get("conditions", []):
            if one["type"] == "DisruptionTarget":
                return dict(one)
    return None


def running(kube: Kube, tenant: str, count: int, but: list[str] | None = None) -> list[str] | None:
    """The names of the tenant's pods, if that many run."""
    found = [
        one["metadata"]["name"]
        for one in kube.all("pods", tenant, SHARE_PODS)
        if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
    ]
    found = [one for one in found if one not in (but or [])]
    return found if len(found) == count else None


def busy_part(machine: Machine, uuid: str) -> float:
    """During which part of half a second the card worked."""
    (index,) = (i for i, card in enumerate(machine.cards) if card.uuid == uuid)
    before = machine.state.busy(index)
    time.sleep(LOOK_S)
    after = machine.state.busy(index)
    return (after[0] - before[0]) / (after[2] - before[2])


def _satisfied(kube: Kube, tenant: str) -> bool:
    quota: Object | None = kube.get("gpuquota", "gpus", tenant)
    assert quota is not None
    return bool(condition(quota, "Satisfied")["status"] == "True")
