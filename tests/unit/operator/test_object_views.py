"""The views that are kept of the API server's objects."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from mizar_core.names import PREEMPTION_GATE, gives_way
from mizar_core.planning.node_fit import NO_NEEDS, Taint
from mizar_core.planning.snapshot import CardsOnNode, NodeView, ShadowView
from mizar_operator.node_needs import needs_of
from mizar_operator.node_view import node_view
from mizar_operator.object_views import shadow_view
from mizar_operator.pod_views import HolderPod, SharePod, pending_view, pod_view

GPU = "team-a.mizar.share/gpu.2"


def _share(**changes: Any) -> dict[str, Any]:
    meta = {
        "name": "p",
        "namespace": "team-a",
        "uid": "u",
        "creationTimestamp": "2026-01-31T12:00:00Z",
    }
    spec = {"containers": [{"name": "c", "resources": {"limits": {GPU: "1"}}}]}
    return {
        "metadata": meta | changes.get("meta", {}),
        "spec": spec | changes.get("spec", {}),
        "status": {"phase": "Pending"} | changes.get("status", {}),
    }


def test_a_waiting_share_pod() -> None:
    pod = pod_view(_share(spec={"nodeSelector": {"zone": "a"}, "priority": 7}))
    assert isinstance(pod, SharePod)
    ((prefix, view),) = pod.demands
    assert view.priority == 7
    assert (prefix, view.count, view.node) == ("team-a.mizar.share", 1, None)
    assert view.needs.selector == {("zone", "a")}


@pytest.mark.parametrize(
    "changes",
    [
        {"status": {"phase": "Succeeded"}, "spec": {"nodeName": "n1"}},
        {"status": {"phase": "Failed"}},
        {"meta": {"deletionTimestamp": "2026-01-31T12:00:00Z"}},
        {"spec": {"schedulingGates": [{"name": "quota"}]}},
        {"spec": {"schedulingGates": [{"name": PREEMPTION_GATE}, {"name": "quota"}]}},
        {"spec": {"containers": [{"name": "c"}]}},
    ],
)
def test_pods_that_do_not_count(changes: dict[str, Any]) -> None:
    assert pod_view(_share(**changes)) is None


def test_a_pod_that_mizars_gate_alone_holds_back() -> None:
    pod = pod_view(_share(spec={"schedulingGates": [{"name": PREEMPTION_GATE}]}))
    other = pod_view(_share())
    assert isinstance(pod, SharePod) and isinstance(other, SharePod)
    assert [one.demands[0][1].gated for one in (pod, other)] == [True, False]


def test_a_bound_pod_counts_until_it_is_gone() -> None:
    gone = {"deletionTimestamp": "2026-01-31T12:00:00Z", "deletionGracePeriodSeconds": 60}
    pod = pod_view(_share(spec={"nodeName": "n1"}, meta=gone, status={"phase": "Running"}))
    assert isinstance(pod, SharePod)
    view = pod.demands[0][1]
    assert (view.node, view.overdue_at) == ("n1", datetime(2026, 1, 31, 12, 1, tzinfo=UTC))


@pytest.mark.parametrize("kind", ["DaemonSet", "Job", "ReplicaSet", "Node", None])
def test_what_controls_a_pod(kind: str | None) -> None:
    """A static pod's node is no controller: it would run the same pod again."""
    owners = [{"kind": kind, "uid": "uid-of-it", "controller": True}] if kind else []
    mentioned = {"kind": "DaemonSet", "uid": "another"}
    pod = pod_view(_share(meta={"ownerReferences": [mentioned, *owners]}))
    assert isinstance(pod, SharePod)
    ((_, view),) = pod.demands
    assert view.of_daemon_set == (kind == "DaemonSet")
    assert view.of_job == (kind == "Job")
    assert (view.owner == "uid-of-it") == (kind not in ("Node", None))


def test_what_many_pods_have_is_kept_once() -> None:
    """Otherwise the constraints of 10,000 pods that have none take 16 MB, and a plan compares them
    by their contents."""
    text = json.dumps(_share(spec={"nodeName": "n1", "nodeSelector": {"zone": "a"}}))
    found = [pod_view(json.loads(text)) for _ in range(2)]
    one, two = (pod.demands[0][1] for pod in found if isinstance(pod, SharePod))
    for what in ("namespace", "resource", "node", "needs", "outages"):
        assert getattr(one, what) is getattr(two, what), what


def test_a_label_of_many_nodes_is_kept_once() -> None:
    text = json.dumps({"metadata": {"name": "n1", "labels": {"zone": "a"}}})
    one, two = (node_view(json.loads(text)) for _ in range(2))
    assert next(iter(one.labels)) is next(iter(two.labels))


def test_what_many_shadow_pods_have_is_kept_once() -> None:
    quota = {"apiVersion": "mizar.share/v1alpha1", "kind": "GPUQuota", "name": "gpus", "uid": "q-1"}
    meta = {"name": "s", "namespace": "team-a", "ownerReferences": [quota]}
    spec = {"pool": "default", "quota": "gpus", "devices": 2, "cards": 1}
    text = json.dumps({"metadata": meta, "spec": spec, "status": {"node": "node-1"}})
    one, two = (shadow_view(json.loads(text)) for _ in range(2))
    for what in ("namespace", "pool", "quota", "quota_uid", "node"):
        assert getattr(one, what) is getattr(two, what), what


def test_what_a_pod_keeps_when_its_init_containers_have_ended() -> None:
    def asks(name: str, count: str, **more: str) -> dict[str, Any]:
        return {"name": name, "resources": {"limits": {GPU: count}}, **more}

    init = [asks("side", "1", restartPolicy="Always"), asks("load", "3")]
    spec = {"initContainers": init, "containers": [asks("c", "1")], "nodeName": "n1"}
    for status, owed in (("False", 4), ("True", 2)):
        ready = {"conditions": [{"type": "Initialized", "status": status}]}
        pod = pod_view(_share(spec=spec, status=ready))
        assert isinstance(pod, SharePod)
        assert (pod.demands[0][1].count, pod.demands[0][1].owed) == (4, owed)


def test_a_static_pod_is_about_to_get_no_device() -> None:
    """It may run without the device that it requests: a shadow pod must not be kept for that."""
    mirror = {"annotations": {"kubernetes.io/config.mirror": "ab"}}
    for meta, owed in ((mirror, 0), ({}, 1)):
        pod = pod_view(_share(spec={"nodeName": "n1"}, meta=meta, status={"phase": "Running"}))
        assert isinstance(pod, SharePod)
        assert (pod.demands[0][1].count, pod.demands[0][1].owed) == (1, owed)


def test_what_the_scheduler_says() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes",
        "lastTransitionTime": "2026-01-31T12:00:01Z",
    }
    pod = pod_view(_share(status={"conditions": [condition]}))
    assert isinstance(pod, SharePod)
    assert pod.demands[0][1].unschedulable == "0/1 nodes"


SEVERAL = (
    "device plugin PreStartContainer rpc failed with err: rpc error: code = PermissionDenied desc ="
    " SeveralCards: sameCard of pool default demands one card, but its 2 devices are on 2 cards"
)
"""What the kubelet says of a container that the node agent refuses to start."""


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
@pytest.mark.parametrize(
    ("reason", "message", "several"),
    [
        ("CreateContainerConfigError", SEVERAL, True),
        ("CreateContainerConfigError", 'secret "SeveralCards" not found', False),
        ("CrashLoopBackOff", SEVERAL, False),
    ],
)
def test_a_container_that_does_not_start_on_several_cards(
    kind: str, reason: str, message: str, several: bool
) -> None:
    running = {"name": "other", "state": {"running": {}}}
    waiting = {"name": "c", "state": {"waiting": {"reason": reason, "message": message}}}
    pod = pod_view(_share(spec={"nodeName": "n1"}, status={kind: [running, waiting]}))
    assert isinstance(pod, SharePod)
    assert pod.demands[0][1].several_cards is several


TWICE = (
    "device plugin PreStartContainer rpc failed with err: rpc error: code = PermissionDenied desc ="
    " DeviceGivenTwice: the kubelet gave team-a/shadow-2-aaaaa-0 to 2 containers: {}, "
    "and team-a/x starts after that"
)


@pytest.mark.parametrize(
    ("reason", "who", "given_twice", "has_to_go"),
    [
        ("CreateContainerConfigError", gives_way("team-a", "p"), True, True),
        ("CreateContainerConfigError", gives_way("team-a", "p-2"), True, False),
        ("CreateContainerConfigError", gives_way("team-a", "other"), True, False),
        ("CrashLoopBackOff", gives_way("team-a", "p"), False, False),
    ],
)
def test_a_container_that_does_not_start_since_another_has_its_device(
    reason: str, who: str, given_twice: bool, has_to_go: bool
) -> None:
    """Both pods show the same words, in which the node agent names the one that has to go."""
    waiting = {"name": "c", "state": {"waiting": {"reason": reason, "message": TWICE.format(who)}}}
    shown = {"containerStatuses": [waiting]}
    pod = pod_view(_share(spec={"nodeName": "n1"}, status=shown))
    assert isinstance(pod, SharePod)
    view = pod.demands[0][1]
    assert (view.given_twice, view.gives_way) == (given_twice, has_to_go)
    assert view.gives_way_to == (("team-a", "x") if has_to_go else None)
    assert not view.several_cards


def test_a_shadow_pod_that_a_gate_holds_back_says_so() -> None:
    """The scheduler does not look at it, and says nothing of it."""
    gated = _share(
        spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        meta={"labels": {"mizar.share/shadow-pod": "true"}},
        status={"conditions": [{"type": "PodScheduled", "status": "False"}]},
    )
    pod = pod_view(gated)
    assert isinstance(pod, HolderPod)
    assert pod.view.unschedulable is not None
    assert pod.view.unschedulable.startswith("the scheduling gate kueue.x-k8s.io/admission holds")


KAI = "no nodes with enough resources were found: 5 node(s) didn't have enough resources: GPUs."


@pytest.mark.parametrize(
    ("scheduler", "message", "waits"),
    [
        ("kai-scheduler", KAI, True),
        ("kai-scheduler", "", True),
        ("kai-scheduler", "0/1 nodes are available: 1 Insufficient cpu.", False),
        ("default-scheduler", KAI, False),
        (None, KAI, False),
    ],
)
def test_a_pod_whose_scheduler_does_not_say_what_it_lacks(
    scheduler: str | None, message: str, waits: bool
) -> None:
    pod = _whole(message)
    pod["spec"] |= {"schedulerName": scheduler} if scheduler else {}
    view = pending_view(pod)
    assert (view is not None) is waits
    if view is not None:
        assert (view.cards, view.reason_unknown) == ((("nvidia.com/gpu", 2),), True)


def test_a_pod_whose_other_scheduler_names_the_cards_is_like_any_other() -> None:
    pod = _whole("0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu.")
    pod["spec"]["schedulerName"] = "volcano"
    view = pending_view(pod)
    assert view is not None and not view.reason_unknown


def test_a_pod_that_its_other_scheduler_has_not_looked_at_waits_for_no_cards() -> None:
    pod = _whole(KAI)
    pod["spec"]["schedulerName"] = "kai-scheduler"
    pod["status"]["conditions"][0]["reason"] = "SchedulingGated"
    assert pending_view(pod) is None


def _whole(message: str, **meta: Any) -> dict[str, Any]:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    limits = {"nvidia.com/gpu": "2", "cpu": "1"}
    return _share(
        meta=meta,
        spec={"containers": [{"name": "c", "resources": {"limits": limits}}]},
        status={"conditions": [condition]},
    )


def test_a_pod_that_waits_for_whole_cards() -> None:
    view = pending_view(_whole("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))
    assert view is not None
    assert (view.cards, view.pool) == ((("nvidia.com/gpu", 2),), "")
    labels = {"mizar.share/shadow-pod": "true", "mizar.share/pool": "p"}
    of_shadow = pending_view(_whole("1 Insufficient nvidia.com/gpu.", labels=labels))
    assert of_shadow is not None and of_shadow.pool == "p"


def test_pods_that_wait_for_something_else() -> None:
    assert pending_view(_whole("0/1 nodes are available: 1 Insufficient cpu.")) is None
    assert pending_view(_share()) is None


BY_DRA = "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable"


def test_a_pod_that_waits_for_whole_cards_of_a_dra_driver() -> None:
    """The message names no resource."""
    pod = _whole(BY_DRA)
    view = pending_view(pod)
    assert view is not None
    assert (view.cards, view.reason_unknown) == ((("nvidia.com/gpu", 2),), False)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    limits["example.com/nic"] = "1"
    view = pending_view(pod)
    assert view is not None, "the other resource may be of a DRA driver too, or the cards lack"
    assert (view.cards, view.reason_unknown) == ((("nvidia.com/gpu", 2),), True)
    del limits["example.com/nic"]
    pod["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": "nic"}]
    view = pending_view(pod)
    assert view is not None, "its own claim may be in the way, or the cards"
    assert (view.cards, view.reason_unknown) == ((("nvidia.com/gpu", 2),), True)
    del pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert pending_view(pod) is None


def test_a_pod_that_waits_for_mig_devices_of_a_dra_driver() -> None:
    pod, size = _whole(BY_DRA), "nvidia.com/mig-1g.5gb"
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    limits[size] = "1"
    view = pending_view(pod)
    assert view is not None, "either may be lacking"
    assert (view.cards, view.reason_unknown) == ((("nvidia.com/gpu", 2), (size, 1)), True)
    del limits["nvidia.com/gpu"]
    view = pending_view(pod)
    assert view is not None
    assert (view.cards, view.reason_unknown) == (((size, 1),), False)


def test_a_damaged_carve_is_no_reason_to_forget_the_pod() -> None:
    pod = pod_view(
        {
            "metadata": {
                "name": "shadow-2-x",
                "namespace": "team-a",
                "labels": {"mizar.share/shadow-pod": "true"},
                "annotations": {"mizar.share/carve": "{", "mizar.share/drain": "soon"},
            },
            "spec": {"containers": [], "priority": 7},
        }
    )
    assert isinstance(pod, HolderPod)
    assert (pod.resource, pod.view.priority) == ("", 7)
    assert pod.view.drain_asked is not None


def test_a_pod_that_is_being_deleted_is_overdue_as_kubernetes_quota_reckons() -> None:
    """Its grace period after its deletion time."""

    def overdue_at(**meta: Any) -> datetime | None:
        labels = {"mizar.share/shadow-pod": "true"}
        pod = {"metadata": {"name": "s", "namespace": "a", "labels": labels, **meta}, "spec": {}}
        found = pod_view(pod)
        assert isinstance(found, HolderPod)
        return found.view.overdue_at

    ends = {"deletionTimestamp": "2026-01-31T12:00:00Z"}
    assert overdue_at() is None and overdue_at(**ends) is None
    late = overdue_at(**ends, deletionGracePeriodSeconds=60)
    assert late == datetime(2026, 1, 31, 12, 1, tzinfo=UTC)


def test_a_pod_that_waits_for_a_borrowed_card_waits_for_no_whole_one() -> None:
    spot = _whole("0/1 nodes are available: 1 Insufficient mizar.spot/gpu.")
    limits = {"mizar.spot/gpu": "2"}
    spot["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    assert pending_view(spot) is None


def test_a_node_and_its_cards() -> None:
    node = node_view(
        {
            "metadata": {"name": "n1", "labels": {"zone": "a"}},
            "spec": {"unschedulable": True},
            "status": {
                "capacity": {"cpu": "8", "nvidia.com/gpu": "4", GPU: "2", "example.com/none": "0"},
                "allocatable": {"nvidia.com/gpu": "3", GPU: "2"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )
    assert node.cards == {"nvidia.com/gpu": CardsOnNode(4, 3)}
    assert not node.available


def test_taints_of_people_and_of_kubernetes() -> None:
    def view(*taints: str) -> NodeView:
        spec = {"taints": [{"key": key, "effect": effect} for key, _, effect in map(_cut, taints)]}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        return node_view({"metadata": {"name": "n1"}, "spec": spec, "status": ready})

    mine = view("team:NoSchedule", "soft:PreferNoSchedule")
    assert mine.available and mine.taints == {Taint("team", "", "NoSchedule")}
    pressed = view("node.kubernetes.io/disk-pressure:NoSchedule")
    assert not pressed.available and not pressed.taints


@pytest.mark.parametrize(
    "taint",
    [
        "karpenter.sh/disrupted:NoSchedule",
        "karpenter.sh/unregistered:NoExecute",
        "ToBeDeletedByClusterAutoscaler:NoSchedule",
    ],
)
def test_a_node_that_an_autoscaler_drains_is_like_a_cordoned_one(taint: str) -> None:
    """They do not cordon it. A shadow pod that tolerated Karpenter's taint would not be evicted."""
    key, _, effect = _cut(taint)
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    spec = {"taints": [{"key": key, "effect": effect}]}
    found = node_view({"metadata": {"name": "n1"}, "spec": spec, "status": status})
    assert not found.available and not found.taints
    tolerating = {"tolerations": [{"key": key, "operator": "Exists", "effect": effect}]}
    assert needs_of({"metadata": {}, "spec": tolerating}) == NO_NEEDS


def _cut(taint: str) -> tuple[str, str, str]:
    return taint.partition(":")


@pytest.mark.parametrize(
    ("status", "reason", "draining", "drained"),
    [
        ("True", "Drained", True, True),
        ("Unknown", "InProgress", True, False),
        ("False", "InUse", False, False),
        ("False", "NotAsked", False, False),
    ],
)
def test_what_the_node_agent_says_of_a_drain(
    status: str, reason: str, draining: bool, drained: bool
) -> None:
    condition = {
        "type": "Draining",
        "status": status,
        "reason": reason,
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }
    view = _view_with(condition)
    assert (view.draining, view.drained) == (draining, drained)


def test_a_share_pod_that_is_refused_by_its_spread() -> None:
    zone = "topology.kubernetes.io/zone"
    spread = {"topologyKey": zone, "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1}
    refused = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes are available: "
        "1 node(s) didn't match pod topology spread constraints.",
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }
    spec, status = {"topologySpreadConstraints": [spread]}, {"conditions": [refused]}
    for changes, label in (({"status": status}, zone), ({}, None)):
        pod = pod_view(_share(spec=spec, **changes))
        assert isinstance(pod, SharePod)
        ((_, view),) = pod.demands
        assert view.refused_by == label


def _view(**status: Any) -> ShadowView:
    """The view of a ShadowPod with this status."""
    return shadow_view(
        {
            "apiVersion": "mizar.share/v1alpha1",
            "kind": "ShadowPod",
            "metadata": {"name": "s", "namespace": "team-a", "uid": "u"},
            "spec": {"pool": "p", "quota": "q", "devices": 2, "cards": 1},
            "status": status,
        }
    )


def _view_with(condition: dict[str, str]) -> ShadowView:
    """The view of a ShadowPod with this condition."""
    return _view(conditions=[condition])


def test_the_largest_card_of_a_shadow_pod() -> None:
    cards = [{"uuid": f"GPU-{mib}", "memoryMiB": mib} for mib in (24576, 81920)]
    assert _view(cards=cards).card_mib == 81920
    assert _view(cards=[{"uuid": "GPU-0"}]).card_mib == 0
    assert _view().card_mib == 0


@pytest.mark.parametrize(
    ("status", "because"), [("True", ""), ("False", "no such card"), ("Unknown", "no such card")]
)
def test_why_a_shadow_pods_devices_are_not_offered(status: str, because: str) -> None:
    condition = {
        "type": "Ready",
        "status": status,
        "reason": "CardFactsUnknown",
        "message": "no such card",
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }
    view = _view_with(condition)
    assert view.not_ready_because == because


def test_a_thousand_of_another_plugins_devices_do_not_make_a_node_unreadable() -> None:
    """The API server writes 1000 as 1k, and the node's cards are still there."""
    ready = {"type": "Ready", "status": "True"}
    capacity = {"nvidia.com/gpu": "8", "example.com/fuse": "1024", "nvidia.com/gpu.shared": "2k"}
    allocatable = {**capacity, "example.com/fuse": "1k"}
    status = {"conditions": [ready], "capacity": capacity, "allocatable": allocatable}
    cards = node_view({"metadata": {"name": "n"}, "spec": {}, "status": status}).cards
    assert cards["nvidia.com/gpu"] == CardsOnNode(8, 8)
    assert cards["example.com/fuse"] == CardsOnNode(1024, 1000)
    assert cards["nvidia.com/gpu.shared"] == CardsOnNode(2000, 2000)


@pytest.mark.parametrize("reason", ["Serving", "CardLost"])
def test_who_holds_devices_on_cards_that_are_gone(reason: str) -> None:
    """If all cards are lost, condition Ready says so, and all holders are meant."""
    holder = {"namespace": "team-a", "container": "main"}
    devices = [("GPU-1", "p"), ("GPU-1", "p"), ("GPU-1", None), ("GPU-2", "q")]
    body = {
        "metadata": {"namespace": "team-a", "name": "s", "uid": "u"},
        "spec": {"pool": "default", "quota": "gpus", "devices": 4, "cards": 2},
        "status": {
            "cards": [{"uuid": "GPU-1", "lost": True}, {"uuid": "GPU-2", "index": 1}],
            "devices": [
                {"id": f"team-a/s-{index}", "card": card, "health": "Unhealthy"}
                | ({"holder": holder | {"name": name}} if name else {})
                for index, (card, name) in enumerate(devices)
            ],
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if reason == "Serving" else "False",
                    "reason": reason,
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        },
    }
    view = shadow_view(body)
    assert view.holders == (("team-a", "p"), ("team-a", "p"), ("team-a", "q"))
    assert view.lost == (reason == "CardLost")
    wanted = (("GPU-1",), (("team-a", "p"),)) if reason == "Serving" else ((), ())
    assert (view.lost_cards, view.on_lost_cards) == wanted
