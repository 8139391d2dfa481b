"""Everything fails at random, again and again; whenever the faults end, everything is as it should
be.

MIZAR_CHAOS_MINUTES says for how long (5), MIZAR_SEED with which faults.
"""

import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from e2e.chaos import Chaos, Users, await_repairs
from e2e.components import SYSTEM, WORKLOADS, component_pods, wait_component
from e2e.watching import holders
from support.effort import SEED
from support.kube import Kube, Object, condition, is_ready
from support.objects import SHARE_PODS, deployment, whole_card_pod
from support.waiting import wait_for

if TYPE_CHECKING:
    from e2e.conftest import Stage

MINUTES = float(os.environ.get("MIZAR_CHAOS_MINUTES", "5"))
STORM_S = 40.0
SETTLED_WITHIN_S = 420.0
"""The kubelet waits at most 5 minutes before it starts a container again."""
PATIENCE_S = 180.0
"""Seconds that everything else is given, at least, once Mizar's programs are back."""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60 * MINUTES + 1200)]


def test_whatever_dies_all_is_well_when_it_is_over(
    kube: Kube, stage: "Stage", mizar_cluster: Cluster
) -> None:
    """After each storm every pod that may run runs, within its limits, and Mizar's statuses agree
    with the kubelets' answers; in the end every card is given back. The watcher looks all the
    time."""
    print(f"MIZAR_SEED={SEED}")
    users = _users(kube, stage)
    chaos = Chaos(kube, mizar_cluster, users, random.Random(SEED))
    until = time.monotonic() + 60 * MINUTES
    try:
        while time.monotonic() < until:
            chaos.storm(STORM_S)
            chaos.calm()
            _await_calm(kube, mizar_cluster, users)
    finally:
        chaos.calm()
    for one in users:
        kube.run("scale", f"deployment/{one.name}", f"--namespace={one.tenant}", "--replicas=0")
    wait_for(
        "all cards to come back",
        lambda: _cards_are_free(kube, mizar_cluster, users),
        240,
        explain=lambda: _explain(kube, users),
    )


def _users(kube: Kube, stage: "Stage") -> list[Users]:
    """Users of halves of two cards, quarters of a third card, and the whole fourth. Idle cards go
    back at once."""
    pool = stage.pool(
        idleTimeoutSeconds=2, profiles=[{"devices": 2, "cards": 1}, {"devices": 4, "cards": 1}]
    )
    halves = stage.tenant({"devices": 2, "min": 0, "max": 2}, pool=pool)
    quarters = stage.tenant({"devices": 4, "min": 0, "max": 1}, pool=pool)
    whole = stage.tenant()
    kube.apply(
        deployment(halves, "users", "mizar.share/gpu.2", replicas=4),
        deployment(quarters, "users", "mizar.share/gpu.4", replicas=4),
        _whole_card(whole),
    )
    users = [
        Users(halves, "users", 4),
        Users(quarters, "users", 4),
        Users(whole, "users", 1, shares=False),
    ]
    for one in users:
        wait_for(
            f"the pods of {one.tenant}",
            lambda one=one: _all_run(kube, one),  # type: ignore[misc]
            explain=lambda: _explain(kube, users),
        )
    return users


def _whole_card(tenant: str) -> Object:
    """A user of a whole card; its next pod waits for the card of the one before."""
    made = deployment(tenant, "users")
    made["spec"]["strategy"] = {"type": "Recreate"}
    made["spec"]["template"]["spec"] = whole_card_pod(tenant, "users")["spec"]
    return made


def _await_calm(kube: Kube, cluster: Cluster, users: list[Users]) -> None:
    begun = time.monotonic()
    for node in cluster.nodes:
        kube.run("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=240s")
    for component in WORKLOADS:
        wait_component(kube, component)
    await_repairs(cluster.nodes)
    for one in users:
        _end_back_off(kube, one.tenant)

    def settled() -> bool:
        return all(_settled(kube, one) for one in users) and _slots_match(kube, cluster, users)

    left = max(SETTLED_WITHIN_S - (time.monotonic() - begun), PATIENCE_S)
    wait_for("everything to be as it should be", settled, left, 1.0, lambda: _explain(kube, users))
    for one in users:
        _assert_within_limits(kube, one)
    print(f"all is well {time.monotonic() - begun:.0f} s after the last fault was mended")


def _end_back_off(kube: Kube, namespace: str) -> None:
    """Let the ReplicaSet controller create missing pods now. For each pod that the API server
    refused while the webhook was away, it waits twice as long before the next attempt, at most
    1,000 s; a change of the ReplicaSet ends this wait (docs/runbooks/on-call.md)."""
    replica_sets = ["replicasets", "--all", f"--namespace={namespace}"]
    kube.run("annotate", *replica_sets, "--overwrite", f"looked-at={time.time():.0f}")


def _settled(kube: Kube, users: Users) -> bool:
    _all_run(kube, users)
    running = {
        f"{users.tenant}/{one['metadata']['name']}" for one in _share_pods(kube, users.tenant)
    }
    shadows = kube.all("shadowpods", users.tenant)
    if users.shares:
        held = sorted(holders(kube, users.tenant).values())
        assert held == sorted(running), f"devices are held by {held}, and {running} run"
        quota = kube.get("gpuquota", "gpus", users.tenant)
        assert quota
        assert condition(quota, "Satisfied")["status"] == "True", quota["status"]
    for shadow in shadows:
        assert condition(shadow, "Ready")["status"] == "True", shadow["status"]
    made = {one["metadata"]["name"] for one in shadows}
    pods = {
        one["metadata"]["name"]
        for one in kube.all("pods", users.tenant, "mizar.share/shadow-pod")
        if one["status"]["phase"] == "Running"
    }
    assert made == pods, f"ShadowPods are {made}, and their Pods {pods}"
    return True


def _all_run(kube: Kube, users: Users) -> bool:
    found = kube.get("deployment", users.name, users.tenant)
    assert found
    wanted, status = found["spec"]["replicas"], found["status"]
    assert status.get("observedGeneration") == found["metadata"]["generation"]
    assert wanted == status.get("updatedReplicas", 0) == status.get("replicas", 0)
    ready = [one for one in _share_pods(kube, users.tenant) if is_ready(one)]
    leaving = [
        one
        for one in kube.all("pods", users.tenant, SHARE_PODS)
        if "deletionTimestamp" in one["metadata"]
    ]
    assert not leaving, f"{len(leaving)} pods of {users.tenant} have not ended"
    assert len(ready) == wanted, f"{len(ready)} of {wanted} pods of {users.tenant} run"
    return True


def _share_pods(kube: Kube, tenant: str) -> list[Object]:
    """The pods that have not failed: a Deployment replaces a failed pod and leaves it there."""
    return [
        one
        for one in kube.all("pods", tenant, SHARE_PODS)
        if one["status"].get("phase") != "Failed" and "deletionTimestamp" not in one["metadata"]
    ]


def _slots_match(kube: Kube, cluster: Cluster, users: list[Users]) -> bool:
    """Assert that no slots are left on the nodes of containers that have ended."""
    for node in cluster.nodes:
        here = [
            pod
            for one in users
            if one.shares
            for pod in _share_pods(kube, one.tenant)
            if pod["spec"].get("nodeName") == node.name
        ]
        slots = list(node.path("/var/lib/mizar").glob("slots/*"))  # the folder may not exist
        assert len(slots) == len(here), f"{node.name}: {len(here)} pods, {len(slots)} slots"
    return True


def _assert_within_limits(kube: Kube, users: Users) -> None:
    """Any pod of the tenant is kept within its part of a card of 16 GiB."""
    pods = _share_pods(kube, users.tenant)
    if users.shares and pods:
        name = random.Random(SEED).choice(pods)["metadata"]["name"]
        status, answer = kube.exec(users.tenant, name, "cuda-sample", "alloc", "12000")
        assert status == 3 and "CUDA_ERROR_OUT_OF_MEMORY" in answer, answer


def _cards_are_free(kube: Kube, cluster: Cluster, users: list[Users]) -> bool:
    for one in users:
        left = kube.all("shadowpods", one.tenant)
        assert not left, f"{one.tenant} has {[shadow['metadata']['name'] for shadow in left]}"
    return _slots_match(kube, cluster, users)


def _explain(kube: Kube, users: list[Users]) -> str:
    """Print what helps to explain a failure, the most useful first, since long logs are cut in
    their middle."""
    looks: list[tuple[str, ...]] = [("get", "pods", "--all-namespaces", "--output=wide")]
    looks += [("get", "events", f"--namespace={one.tenant}") for one in users]
    looks += [
        ("logs", one["metadata"]["name"], f"--namespace={SYSTEM}", "--tail=100")
        for component in ("operator", "nodeagent")
        for one in component_pods(kube, component)
    ]
    answers = [kube.attempt(*look)[1][-20_000:] for look in looks]
    return "\n".join([_conditions(kube, users), *answers])


def _conditions(kube: Kube, users: list[Users]) -> str:
    return "\n".join(
        f"{tenant.tenant} {one['metadata']['name']} {state['type']}={state['status']} "
        f"since {state['lastTransitionTime']}: {state['reason']}: {state['message']}"
        for tenant in users
        for kind in ("gpuquotas", "shadowpods")
        for one in kube.all(kind, tenant.tenant)
        for state in one.get("status", {}).get("conditions", [])
    )
