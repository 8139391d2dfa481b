"""The chart's admission policies on a real API server: who may do what with pods that hold cards.

No program of Mizar runs here; its service accounts are impersonated.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Cluster
from mizar_core.models import GPUPool
from mizar_core.names import FIELD_MANAGER_OPERATOR
from mizar_core.planning.actions import CreateQuota
from mizar_core.planning.node_fit import Needs
from mizar_kube.errors import Forbidden
from mizar_kube.kinds import POD, Ref
from mizar_operator import manifests
from mizar_operator.evict_or_delete import SEVERAL_BUDGETS, disruption_target, has_disruption_target
from mizar_operator.manifests import PodSettings
from mizar_operator.webhook.issue_certificates import fresh
from property.plan.snapshots import pool, quota
from property.plan.snapshots import shadow as shadow_view
from support import objects
from support.admission import refusal
from support.kube import Kube, Object
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CHART = Path(__file__).resolve().parents[2] / "charts" / "mizar"
RELEASE = f"policies-{os.getpid()}"
SYSTEM, TENANT = f"{RELEASE}-system", f"{RELEASE}-a"
NAME = "shadow-2-abcde"
PAGE = (CHART.parents[1] / "docs/tenants.md").read_text()
LOCAL = CHART / "values-local.yaml"
PAUSE = str(yaml.safe_load(LOCAL.read_text())["pauseImage"])
VALUES = {
    "operator": {"replicas": 0},
    "nodeagent": {"nodeSelector": {"mizar.share/nowhere": "true"}},
    "uninstall": {"check": False},
}
OPERATOR = f"--as=system:serviceaccount:{SYSTEM}:{RELEASE}-operator"
WEBHOOK = f"--as=system:serviceaccount:{SYSTEM}:{RELEASE}-webhook"
EDITOR = "--as=editor"
DRAINER = "--as=drainer"
"""A user who may evict pods and update nodes, as autoscalers and administrators who drain nodes
may."""
NETWORK = "--as=network"
"""A user who may patch the status of pods, as pod networks may that leave notes there."""
SCHEDULER = "--as=system:kube-scheduler"
IN_USE = {"mizar.share/in-use": "true"}


@pytest.fixture(scope="module")
def kube(cluster: Cluster) -> Iterator[Kube]:
    """A cluster with the chart's policies, and a tenant with a few users."""
    kube = Kube(cluster)
    crds = f"--filename={CHART / 'crds'}"
    kube.run("apply", "--server-side", "--force-conflicts", crds)
    kube.run("wait", "--for=condition=Established", "--timeout=60s", crds)
    kube.apply(objects.namespace(TENANT))
    kube.wait_namespaces(TENANT)
    users(kube)
    install(cluster)
    try:
        wait_for("the policies", lambda: policies_are_on(kube))
        yield kube
    finally:
        cluster.helm("uninstall", RELEASE, f"--namespace={SYSTEM}", check=False)
        for user in ("drainer", "network", "kube-scheduler"):
            kube.delete("clusterrolebinding", f"{RELEASE}-{user}")
            kube.delete("clusterrole", f"{RELEASE}-{user}")
        kube.run("delete", "namespace", TENANT, SYSTEM, "--ignore-not-found", "--wait=false")


def install(cluster: Cluster, **policies: str) -> None:
    """The chart, or a change of its `policies`."""
    cluster.helm(
        *("upgrade", "--install", RELEASE, str(CHART), f"--namespace={SYSTEM}"),
        *("--create-namespace", "--skip-crds", "--values=-"),
        f"--values={LOCAL}",
        input=yaml.safe_dump({**VALUES, "policies": policies}),
    )


def users(kube: Kube) -> None:
    edit = ("--clusterrole=edit", "--user=editor")
    kube.run("create", "rolebinding", "editor", f"--namespace={TENANT}", *edit)
    for user, rights in {
        "drainer": [
            rule("nodes", "get", "update"),
            rule("pods", "get", "delete", "patch"),
            rule("pods/eviction", "create"),
            rule("shadowpods", "get", "patch", group="mizar.share"),
        ],
        # kubectl reads an object before it patches it.
        "network": [rule("pods", "get"), rule("pods/status", "get", "patch")],
        "system:kube-scheduler": [rule("pods/status", "get", "patch")],
    }.items():
        name = f"{RELEASE}-{user.rpartition(':')[2]}"
        head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
        kube.apply({**head, "kind": "ClusterRole", "rules": rights})
        kube.run("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={user}")


def rule(resource: str, *verbs: str, group: str = "") -> Object:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def policies_are_on(kube: Kube) -> bool:
    """Whether the last of the policies works: a policy does about a second after it was made."""
    body = json.dumps(shadowpod("not-yet"))
    said = kube.attempt("create", "--dry-run=server", "--filename=-", input=body)[1]
    pod = json.dumps(shadow_pod("not-yet"))
    also = kube.attempt("create", "--dry-run=server", "--filename=-", input=pod)[1]
    return "only Mizar's operator creates" in said and "only Mizar's operator creates" in also


def shadowpod(name: str = NAME) -> Object:
    return {
        "apiVersion": "mizar.share/v1alpha1",
        "kind": "ShadowPod",
        "metadata": {"name": name, "namespace": TENANT, "finalizers": ["mizar.share/drain"]},
        "spec": {"pool": "default", "quota": "gpus", "devices": 2, "cards": 1},
    }


def shadow_pod(name: str = NAME, uid: str = "uid") -> Object:
    """A shadow pod as the operator makes it, for a node that does not exist."""
    view = replace(shadow_view(name, namespace=TENANT), uid=uid)
    nowhere = Needs(frozenset({("mizar.share/nowhere", "true")}))
    pod_settings = PodSettings(PAUSE, grace_s=35)
    return manifests.pod(view, pool("default"), quota(TENANT), pod_settings, nowhere)


@pytest.fixture
def shadow(kube: Kube) -> Iterator[str]:
    """A shadow pod that the operator made and for which no scheduler finds a node."""
    create = ("create", OPERATOR, "--output=json", "--filename=-")
    made = json.loads(kube.run(*create, input=json.dumps(shadowpod())))
    kube.run(*create, input=json.dumps(shadow_pod(uid=made["metadata"]["uid"])))
    try:
        yield NAME
    finally:
        here = (NAME, f"--namespace={TENANT}", "--ignore-not-found")
        kube.run("delete", "pod", *here, OPERATOR, "--grace-period=0", "--force")
        kube.run("patch", "shadowpod", *here[:2], OPERATOR, *merge({"finalizers": None}))
        kube.run("delete", "shadowpod", *here)


def merge(meta: Object | None = None, **parts: Object) -> tuple[str, str]:
    body = parts | ({"metadata": meta} if meta else {})
    return "--type=merge", f"--patch={json.dumps(body)}"


def patch(kube: Kube, who: str, *how: str, kind: str = "pod") -> tuple[int, str]:
    who_is = (who,) if who else ()
    return kube.attempt("patch", kind, NAME, f"--namespace={TENANT}", *who_is, *how)


def use(kube: Kube, *, on: bool = True) -> None:
    """Mark the shadow pod as in use, as the operator does."""
    labels = IN_USE if on else dict.fromkeys(IN_USE)
    assert patch(kube, OPERATOR, *merge({"labels": labels}))[0] == 0


def json_patch(op: str, path: str, value: object) -> tuple[str, str]:
    return "--type=json", f"--patch={json.dumps([{'op': op, 'path': path, 'value': value}])}"


IMAGE = json_patch("replace", "/spec/containers/0/image", "evil:1")


def test_everyone_may_read_pools_and_nobody_may_change_them(kube: Kube) -> None:
    """They say what a share is, and belong to no namespace in which a role could allow it."""
    for user in (EDITOR, "--as=somebody"):
        assert kube.attempt("get", "gpupools", user)[0] == 0
        for verb in ("create", "update", "patch", "delete"):
            assert kube.attempt("auth", "can-i", verb, "gpupools", user)[0] != 0
    assert kube.attempt("auth", "can-i", "list", "gpuquotas", "--as=somebody")[0] != 0


SHADOW_CLASS = f"{RELEASE}-shadow-pods"


def classed(name: str) -> str:
    """A pod of a user, for a whole card, that names the PriorityClass of shadow pods."""
    return json.dumps(objects.whole_card_pod(TENANT, name, priorityClassName=SHADOW_CLASS))


@pytest.mark.parametrize("who", [EDITOR, ""])
def test_nobody_gives_a_pod_the_priority_of_shadow_pods(kube: Kube, who: str) -> None:
    create = ("create", "--dry-run=server", "--filename=-", *([who] if who else []))
    status, said = kube.attempt(*create, input=classed("first"))
    assert status != 0
    assert f"only Mizar's operator gives pods the PriorityClass {SHADOW_CLASS}" in said
    other = json.dumps(objects.whole_card_pod(TENANT, "second"))
    assert kube.attempt(*create, input=other)[0] == 0


def _apart(selector: Object, **where: Any) -> Object:
    """A pod without any card whose required anti-affinity is to pods with that selector."""
    term = {"topologyKey": "kubernetes.io/os", "labelSelector": selector, **where}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return objects.plain_pod(TENANT, "apart", affinity={"podAntiAffinity": required})


def _expression(key: str, operator: str, *values: str) -> Object:
    line = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    return {"matchExpressions": [line]}


EVERYWHERE: Object = {"namespaceSelector": {}}
OURS = "mizar.share/shadow-pod"
KEEPS_AWAY: dict[str, tuple[Object, Object]] = {
    "by our label": (_expression(OURS, "Exists"), EVERYWHERE),
    "by its value": ({"matchLabels": {OURS: "true"}}, EVERYWHERE),
    **{
        f"by the label {key}": (_expression(key, "Exists"), EVERYWHERE)
        for key in shadow_pod()["metadata"]["labels"]
    },
    "all pods": ({}, EVERYWHERE),
    "by a value of its own": ({"matchLabels": {"sidecar.istio.io/inject": "false"}}, EVERYWHERE),
    "by several": (_expression("sidecar.istio.io/inject", "In", "x", "false"), EVERYWHERE),
    "all pods but some": (_expression("app", "NotIn", "mine"), EVERYWHERE),
    "by namespace": (_expression(OURS, "Exists"), {"namespaces": [TENANT, "team-b"]}),
}
KEEPS_NONE_AWAY: dict[str, tuple[Object, Object]] = {
    "its own namespace": ({}, {}),
    "its own namespace by name": ({}, {"namespaces": [TENANT]}),
    "another label": ({"matchLabels": {"app": "x"}}, EVERYWHERE),
    "a key of its own": (_expression("job-key", "Exists"), EVERYWHERE),
    "all but ours": (_expression(OURS, "DoesNotExist"), EVERYWHERE),
    "all but ours by value": (_expression(OURS, "NotIn", "true"), EVERYWHERE),
    "another value": ({"matchLabels": {"sidecar.istio.io/inject": "true"}}, EVERYWHERE),
    "other values": (_expression("sidecar.istio.io/inject", "In", "true", "x"), EVERYWHERE),
    "share pods": (_expression("mizar.share/share-pod", "Exists"), EVERYWHERE),
}


@pytest.mark.parametrize("how", KEEPS_AWAY)
def test_no_pod_keeps_shadow_pods_of_other_namespaces_away(kube: Kube, how: str) -> None:
    """The scheduler keeps to the anti-affinity of any pod, in both directions."""
    selector, where = KEEPS_AWAY[how]
    pod = json.dumps(_apart(selector, **where))
    create = ("create", "--dry-run=server", "--filename=-")
    status, said = kube.attempt(*create, EDITOR, input=pod)
    assert status != 0 and "may not match Mizar's shadow pods" in said
    assert kube.attempt(*create, input=pod)[0] == 0, "who administers nodes may"


@pytest.mark.parametrize("how", KEEPS_NONE_AWAY)
def test_other_anti_affinity_is_its_owners(kube: Kube, how: str) -> None:
    selector, where = KEEPS_NONE_AWAY[how]
    pod = json.dumps(_apart(selector, **where))
    status, said = kube.attempt("create", "--dry-run=server", "--filename=-", EDITOR, input=pod)
    assert status == 0, said


@pytest.mark.parametrize(
    ("parts", "refused"),
    [
        ({"nodeName": "n1", "priorityClassName": "system-node-critical"}, True),
        ({"nodeName": "n1"}, False),
        ({"priorityClassName": "system-node-critical"}, False),
    ],
)
def test_no_tenant_makes_a_kubelet_end_pods(kube: Kube, parts: Object, refused: bool) -> None:
    """A kubelet makes room for a critical pod without asking anybody."""
    pod = json.dumps(objects.plain_pod(TENANT, "critical", **parts))
    create = ("create", "--dry-run=server", "--filename=-")
    status, said = kube.attempt(*create, EDITOR, input=pod)
    assert (status != 0) == refused, said
    assert not refused or "may not set nodeName" in said
    assert kube.attempt(*create, input=pod)[0] == 0


def test_a_quota_may_allow_shadow_pods_and_no_whole_cards(kube: Kube) -> None:
    """By the PriorityClass, as docs/tenants.md says."""
    (block,) = (one for one in PAGE.split("```") if "scopeSelector" in one)
    block = block.removeprefix("yaml").replace("mizar-shadow-pods", SHADOW_CLASS)
    spec = yaml.safe_load(block)["spec"]
    meta = {"name": "no-whole-cards", "namespace": TENANT}
    kube.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec})
    create = ("create", "--dry-run=server", "--filename=-")
    whole = json.dumps(objects.whole_card_pod(TENANT, "whole"))
    try:
        wait_for(
            "the quota to be counted",
            lambda: (kube.get("resourcequota", "no-whole-cards", TENANT) or {})["status"],
        )
        status, said = kube.attempt(*create, EDITOR, input=whole)
        assert status != 0 and "exceeded quota: no-whole-cards" in said
        made = shadow_pod("allowed")
        made["spec"]["priorityClassName"] = SHADOW_CLASS
        assert kube.attempt(*create, OPERATOR, input=json.dumps(made))[0] == 0
    finally:
        kube.delete("resourcequota", "no-whole-cards", TENANT)


@pytest.mark.parametrize("preempts", [True, False])
def test_the_chart_warns_of_a_class_by_which_shadow_pods_preempt(
    cluster: Cluster, kube: Kube, preempts: bool
) -> None:
    name = f"{RELEASE}-batch"
    policy = "PreemptLowerPriority" if preempts else "Never"
    kube.run(
        *("create", "priorityclass", name, "--value=1000", f"--preemption-policy={policy}"),
    )
    values = VALUES | {"shadowPods": {"priorityClass": {"create": False, "name": name}}}
    try:
        said = cluster.helm(
            *("upgrade", RELEASE, str(CHART), f"--namespace={SYSTEM}", "--dry-run=server"),
            *("--skip-crds", "--values=-", f"--values={LOCAL}"),
            input=yaml.safe_dump(values),
        ).stdout
    finally:
        kube.delete("priorityclass", name)
    assert (f"WARNING: PriorityClass {name} (shadowPods.priorityClass) lets" in said) == preempts


SPEC = {
    "image": IMAGE,
    "deadline": json_patch("add", "/spec/activeDeadlineSeconds", 1),
    "toleration": json_patch("add", "/spec/tolerations/-", {"key": "team", "operator": "Exists"}),
}


@pytest.mark.parametrize("what", SPEC)
@pytest.mark.parametrize("who", [EDITOR, DRAINER, ""])
def test_nobody_changes_what_a_shadow_pod_runs(
    kube: Kube, shadow: str, who: str, what: str
) -> None:
    status, said = patch(kube, who, *SPEC[what])
    assert status != 0, said
    assert "the spec of a shadow pod cannot be changed: change the GPUPool instead" in said


META = {
    "owners": (
        {"ownerReferences": None},
        "the owner of a shadow pod cannot be changed: delete its ShadowPod",
    ),
    "finalizers": (
        {"finalizers": ["example.com/mine"]},
        "the finalizers of a shadow pod cannot be changed",
    ),
    "carve": ({"annotations": {"mizar.share/carve": "{}"}}, "only Mizar's operator changes"),
    "in use": ({"labels": IN_USE}, "only Mizar's operator changes"),
    "identity": ({"labels": {"mizar.share/shadow-pod": None}}, "only Mizar's operator changes"),
    "autoscaler": (
        {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}},
        "only Mizar's operator changes",
    ),
}


@pytest.mark.parametrize("what", META)
@pytest.mark.parametrize("who", [EDITOR, DRAINER, ""])
def test_nobody_changes_what_a_shadow_pod_is(kube: Kube, shadow: str, who: str, what: str) -> None:
    meta, sentence = META[what]
    status, said = patch(kube, who, *merge(meta))
    assert status != 0, said
    assert sentence in said


def test_notes_of_others_are_for_who_runs_the_cluster(kube: Kube, shadow: str) -> None:
    note = merge({"annotations": {"example.com/address": "10.0.0.1"}})
    label = merge({"labels": {"example.com/a": "b"}})
    for field, change in (("annotations", note), ("labels", label)):
        status, said = patch(kube, EDITOR, *change)
        assert status != 0
        assert f"{field} of a shadow pod cannot be changed: set them on the pods" in said
    assert patch(kube, NETWORK, "--subresource=status", *note) == (0, f"pod/{NAME} patched\n")
    assert patch(kube, DRAINER, *merge({"annotations": {"example.com/b": "c"}}))[0] == 0
    # The status is no way around the policy.
    carve = merge({"annotations": {"mizar.share/carve": "{}"}})
    assert "only Mizar's operator" in patch(kube, NETWORK, "--subresource=status", *carve)[1]


def test_a_shadow_pods_status_is_kubernetes_own(kube: Kube, shadow: str) -> None:
    ended = merge(status={"phase": "Failed"})
    status, said = patch(kube, NETWORK, "--subresource=status", *ended)
    assert status != 0
    assert "only the kubelet and Kubernetes' controllers may write" in said
    nominated = merge(status={"nominatedNodeName": "n"})
    assert patch(kube, SCHEDULER, "--subresource=status", *nominated)[0] == 0


def test_nobody_puts_a_container_into_a_shadow_pod(kube: Kube, shadow: str) -> None:
    body = {"spec": {"ephemeralContainers": [{"name": "x", "image": "evil:1"}]}}
    how = ("--subresource=ephemeralcontainers", "--type=strategic", f"--patch={json.dumps(body)}")
    cpu = {"limits": {"cpu": "20m"}, "requests": {"cpu": "20m"}}
    bigger = {"spec": {"containers": [{"name": "main", "resources": cpu}]}}
    resize = ("--subresource=resize", "--type=strategic", f"--patch={json.dumps(bigger)}")
    for ask in (how, resize):
        status, said = patch(kube, "", *ask)
        assert status != 0, said
        assert "the spec of a shadow pod cannot be changed" in said


def connect(kube: Kube, how: str, pod: str, who: str = EDITOR) -> str:
    """The answer to a connection to a pod, which has no node in any case."""
    here, who_is = f"--namespace={TENANT}", (who,) if who else ()
    if how == "proxy":
        path = f"/api/v1/namespaces/{TENANT}/pods/{pod}/proxy/"
        return kube.attempt("get", "--raw", path, *who_is)[1]
    path = f"/api/v1/namespaces/{TENANT}/pods/{pod}/{how}?command=sh&container=main&stdout=true"
    if how == "portforward":
        path = f"/api/v1/namespaces/{TENANT}/pods/{pod}/portforward?ports=80"
    return kube.attempt("create", "--raw", path, "--filename=-", *who_is, here, input="")[1]


@pytest.mark.parametrize("how", ["exec", "attach", "portforward", "proxy"])
def test_nobody_gets_into_a_shadow_pod(kube: Kube, shadow: str, how: str) -> None:
    kube.apply(objects.plain_pod(TENANT, "plain", nodeSelector={"mizar.share/nowhere": "true"}))
    for who in (EDITOR, ""):
        named = [shadow, f"{shadow}:80", f"https:{shadow}:80"] if how == "proxy" else [shadow]
        for name in named:
            assert "use a pod that shares its cards" in connect(kube, how, name, who)
        said = connect(kube, how, "plain", who)
        assert "does not have a host assigned" in said or "address not allowed" in said
    kube.delete("pod", "plain", TENANT, "--grace-period=0", "--force")


def evict(kube: Kube, who: str, pod: str, namespace: str = TENANT) -> str:
    meta = {"name": pod, "namespace": namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    body = body | {"deleteOptions": {"dryRun": ["All"]}}
    ask = ("create", "--raw", path, "--filename=-", who)
    return kube.attempt(*ask, input=json.dumps(body))[1]


def test_only_who_administers_nodes_evicts_a_shadow_pod(kube: Kube, shadow: str) -> None:
    kube.apply(objects.plain_pod(TENANT, "plain", nodeSelector={"mizar.share/nowhere": "true"}))
    assert "evict or delete those pods, and Mizar deletes it" in evict(kube, EDITOR, shadow)
    assert '"status":"Success"' in evict(kube, EDITOR, "plain").replace(" ", "")
    assert '"status":"Success"' in evict(kube, DRAINER, shadow).replace(" ", "")
    kube.delete("pod", "plain", TENANT, "--grace-period=0", "--force")


def test_only_who_administers_nodes_deletes_a_shadow_pod(kube: Kube, shadow: str) -> None:
    """Otherwise another pod would have its cards while share pods still use them."""
    delete = ("delete", "pod", NAME, f"--namespace={TENANT}", "--dry-run=server")
    status, said = kube.attempt(*delete, EDITOR)
    assert status != 0
    assert "delete those pods, and Mizar deletes it after the idle timeout" in said
    collector = "--as=system:serviceaccount:kube-system:generic-garbage-collector"
    assert (
        "can be deleted only after Mizar's operator has drained it"
        in kube.attempt(*delete, collector)[1]
    )
    namespaces = "system:serviceaccount:kube-system:namespace-controller"
    group = "--as-group=system:serviceaccounts:kube-system"
    for who in ((DRAINER,), (OPERATOR,), (f"--as={namespaces}", group)):
        kube.run(*delete, *who)


def delete_all(kube: Kube, path: str, who: str = EDITOR) -> str:
    """The answer to a request that deletes all objects of a kind in the tenant's namespace."""
    everything = path.format(f"namespaces/{TENANT}")
    return kube.attempt("delete", "--raw", everything, who)[1]


def test_a_request_to_delete_all_pods_of_a_namespace_deletes_no_shadow_pod(
    kube: Kube, shadow: str
) -> None:
    """Such a request does not name the pods."""
    said = delete_all(kube, "/api/v1/{}/pods")
    assert "delete those pods, and Mizar deletes it after the idle timeout" in said
    found = kube.get("pod", shadow, TENANT)
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]


def test_the_scheduler_preempts_no_shadow_pod_in_use(kube: Kube, shadow: str) -> None:
    delete = ("delete", "pod", NAME, f"--namespace={TENANT}", "--dry-run=server", SCHEDULER)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    mark = merge(status={"conditions": [condition]})
    use(kube)
    for said in (
        kube.attempt(*delete)[1],
        patch(kube, SCHEDULER, "--subresource=status", *mark)[1],
    ):
        assert "it cannot be preempted until they end" in said
    use(kube, on=False)
    assert patch(kube, SCHEDULER, "--subresource=status", *mark)[0] == 0
    kube.run(*delete)


@pytest.mark.parametrize("where", ["pods/{}/binding", "bindings"])
def test_only_the_scheduler_gives_a_shadow_pod_its_node(
    kube: Kube, shadow: str, where: str
) -> None:
    binder = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
    meta = {"name": "binder", "namespace": TENANT}
    rights = [rule("bindings", "create"), rule("pods/binding", "create")]
    kube.apply({**binder, "metadata": meta, "rules": rights})
    kube.run(
        *("create", "rolebinding", "binder", f"--namespace={TENANT}", "--role=binder"),
        *("--user=editor", "--dry-run=client", "--output=yaml"),
    )
    bound = {"kind": "Role", "name": "binder", "apiGroup": "rbac.authorization.k8s.io"}
    user = {"kind": "User", "name": "editor", "apiGroup": "rbac.authorization.k8s.io"}
    kube.apply(
        {**binder, "kind": "RoleBinding", "metadata": meta, "roleRef": bound, "subjects": [user]}
    )
    target = {"kind": "Node", "name": "somewhere"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": NAME}, "target": target}
    path = f"/api/v1/namespaces/{TENANT}/{where.format(NAME)}"
    ask = ("create", "--raw", path, "--filename=-", EDITOR)
    sentence = "only the scheduler may bind a shadow pod to a node"
    # Until the API server has read the Role, it only says that this is forbidden.
    wait_for("its refusal", lambda: sentence in kube.attempt(*ask, input=json.dumps(body))[1])


CLAIM = f"{NAME}-extended-resources-x7k4q"
NOTE = {"resource.kubernetes.io/extended-resource-claim": "true"}


@pytest.fixture
def claims(kube: Kube) -> None:
    """The API server has ResourceClaims, which it has since Kubernetes 1.34."""
    found = kube.attempt("get", "--raw", "/apis/resource.k8s.io/v1")[1]
    if "resourceclaims" not in found:
        pytest.skip("the API server does not serve resource.k8s.io/v1")


@pytest.mark.parametrize(
    ("claim", "refused"), [(CLAIM, True), ("train-extended-resources-x7k4q", False)]
)
def test_nobody_uses_the_claim_of_a_shadow_pod(
    kube: Kube, claims: None, claim: str, refused: bool
) -> None:
    """It has the whole cards that others share."""
    wanted = [{"name": "mine", "resourceClaimName": claim}]
    pod = json.dumps(objects.plain_pod(TENANT, "taker", resourceClaims=wanted))
    code, said = kube.attempt("create", EDITOR, "--dry-run=server", "--filename=-", input=pod)
    assert ("a shadow pod's ResourceClaim has whole cards" in said, code != 0) == (refused, refused)


def resource_claim(
    name: str = "mine",
    owner: str = NAME,
    note: bool = True,
    uid: str = "uid",
    kind: str = "Pod",
) -> str:
    """A claim as the scheduler makes it for a pod of this name."""
    reference = {"apiVersion": "v1", "kind": kind, "name": owner, "uid": uid, "controller": True}
    meta = {"name": name, "namespace": TENANT, "ownerReferences": [reference]}
    request = {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    return json.dumps(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {**meta, "annotations": NOTE if note else {}},
            "spec": {"devices": {"requests": [request]}},
        }
    )


@pytest.mark.parametrize(
    ("claim", "refused"),
    [
        (resource_claim(), True),
        (resource_claim(kind="ConfigMap"), True),
        (resource_claim(owner="train"), False),
        (resource_claim(note=False), False),
    ],
    ids=[
        "a shadow pod's",
        "of another kind of owner",
        "another pod's",
        "not of an extended resource",
    ],
)
def test_nobody_makes_the_claim_of_a_shadow_pod(
    kube: Kube, claims: None, claim: str, refused: bool
) -> None:
    create = ("create", "--dry-run=server", "--filename=-")
    code, said = kube.attempt(*create, EDITOR, input=claim)
    sentence = "only the scheduler makes and changes the ResourceClaim of a shadow pod"
    assert (sentence in said, code != 0) == (refused, refused)


def test_nobody_changes_or_deletes_the_claim_of_a_shadow_pod(
    kube: Kube, claims: None, shadow: str
) -> None:
    # Kubernetes would delete a claim whose owner does not exist.
    uid = kube.run(
        "get", "pod", shadow, f"--namespace={TENANT}", "--output=jsonpath={.metadata.uid}"
    )
    kube.run("create", "--filename=-", input=resource_claim(CLAIM, uid=uid))
    claim = ("resourceclaim", CLAIM, f"--namespace={TENANT}")
    try:
        without_owner = merge({"annotations": None, "ownerReferences": None})
        for how in (("patch", *claim, *without_owner), ("delete", *claim)):
            code, said = kube.attempt(*how, EDITOR, "--dry-run=server")
            assert code != 0
            assert "only the scheduler makes and changes the ResourceClaim of a shadow" in said
    finally:
        kube.run("delete", *claim)


class TestShadowPodObjects:
    """The ShadowPods themselves."""

    def test_only_the_operator_makes_them(self, kube: Kube) -> None:
        ask = ("create", "--dry-run=server", "--filename=-")
        status, said = kube.attempt(*ask, input=json.dumps(shadowpod("mine")))
        assert status != 0
        assert "only Mizar's operator creates ShadowPods; raise min or max" in said

    @pytest.mark.parametrize(
        "meta",
        [
            {"labels": {"a": "b"}},
            {"annotations": {"mizar.share/sequence": "7"}},
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]},
        ],
    )
    def test_only_the_operator_changes_them(self, kube: Kube, shadow: str, meta: Object) -> None:
        status, said = patch(kube, "", *merge(meta), kind="shadowpod")
        assert status != 0
        assert "only Mizar's operator changes a ShadowPod" in said

    def test_a_quota_may_leave_them_to_its_successor(self, kube: Kube, shadow: str) -> None:
        """With `kubectl delete gpuquota --cascade=orphan`, the garbage collector takes them from
        the quota; until it can, the quota is neither gone nor replaceable."""
        collector = "--as=system:serviceaccount:kube-system:generic-garbage-collector"
        quota = {"apiVersion": "mizar.share/v1alpha1", "kind": "GPUQuota", "name": "gpus"}
        owned = merge({"ownerReferences": [{**quota, "uid": "b"}]})
        assert patch(kube, OPERATOR, *owned, kind="shadowpod")[0] == 0
        orphaned = merge({"ownerReferences": None})
        for who in ("", EDITOR):
            assert patch(kube, who, *orphaned, kind="shadowpod")[0] != 0
        status, said = patch(kube, collector, *orphaned, kind="shadowpod")
        assert status == 0, said
        status, said = patch(kube, collector, *merge({"labels": {"a": "b"}}), kind="shadowpod")
        assert status != 0
        assert "only Mizar's operator changes a ShadowPod" in said

    def test_only_the_agents_say_who_holds_devices(self, kube: Kube, shadow: str) -> None:
        idle = merge(status={"node": "elsewhere"})
        status, said = patch(kube, "", "--subresource=status", *idle, kind="shadowpod")
        assert status != 0
        assert "only Mizar's operator and node agents write a ShadowPod's status" in said

    def test_the_finalizer_is_the_administrators_last_resort(self, kube: Kube, shadow: str) -> None:
        writer = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
        meta = {"name": "writer", "namespace": TENANT}
        rights = [rule("shadowpods", "get", "patch", group="mizar.share")]
        kube.apply({**writer, "metadata": meta, "rules": rights})
        bound = {"kind": "Role", "name": "writer", "apiGroup": "rbac.authorization.k8s.io"}
        user = {"kind": "User", "name": "editor", "apiGroup": "rbac.authorization.k8s.io"}
        kube.apply(
            {
                **writer,
                "kind": "RoleBinding",
                "metadata": meta,
                "roleRef": bound,
                "subjects": [user],
            }
        )
        none = merge({"finalizers": None})
        sentence = "finalizer protects cards that pods may be using"
        # Until the API server has read the Role, it only says that this is forbidden.
        wait_for("refusal", lambda: sentence in patch(kube, EDITOR, *none, kind="shadowpod")[1])
        assert patch(kube, DRAINER, *none, kind="shadowpod")[0] == 0


def main(pod: Object) -> Object:
    (container,) = pod["spec"]["containers"]
    return dict(container)


Change = Callable[[Object], object]
BEYOND: dict[str, tuple[Change, str]] = {
    "no shadow pod": (
        lambda pod: pod["metadata"]["labels"].pop("mizar.share/shadow-pod"),
        "deals with pods that hold cards only",
    ),
    "no owner": (
        lambda pod: pod["metadata"].pop("ownerReferences"),
        "belongs to the ShadowPod of its name",
    ),
    "another's owner": (
        lambda pod: pod["metadata"]["ownerReferences"][0].update(name="another"),
        "belongs to the ShadowPod of its name",
    ),
    "another image": (
        lambda pod: pod["spec"]["containers"][0].update(image="evil:1"),
        f"a shadow pod's image must be {PAUSE}: if a webhook changes it to evil:1, set the chart's",
    ),
    "another container": (
        lambda pod: pod["spec"]["containers"].append(main(pod) | {"name": "side"}),
        "must have exactly one container, main: if a webhook injects another",
    ),
    "an init container": (
        lambda pod: pod["spec"].update(initContainers=[{"name": "init", "image": PAUSE}]),
        "must have exactly one container, main",
    ),
    "a command": (
        lambda pod: pod["spec"]["containers"][0].update(command=["sh"]),
        "must only pause, without command",
    ),
    "a hook": (
        lambda pod: pod["spec"]["containers"][0].update(
            lifecycle={"preStop": {"exec": {"command": ["sh"]}}}
        ),
        "must only pause, without command",
    ),
    "a secret": (
        lambda pod: pod["spec"]["containers"][0].update(
            env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]
        ),
        "must only pause, without command",
    ),
    "a volume": (
        lambda pod: pod["spec"].update(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
        "must have no volumes and no service account token: if a webhook adds one",
    ),
    "a token": (
        lambda pod: pod["spec"].pop("automountServiceAccountToken"),
        "must have no volumes and no service account token",
    ),
    "the node's network": (
        lambda pod: pod["spec"].update(hostNetwork=True),
        "must not have privileges, capabilities, host namespaces",
    ),
    "the node's processes": (
        lambda pod: pod["spec"].update(hostPID=True),
        "must not have privileges, capabilities, host namespaces",
    ),
    "privileges": (
        lambda pod: pod["spec"]["containers"][0].update(securityContext={"privileged": True}),
        "must not have privileges, capabilities, host namespaces",
    ),
    "a capability": (
        lambda pod: pod["spec"]["containers"][0]["securityContext"].update(
            capabilities={"add": ["SYS_ADMIN"]}
        ),
        "must not have privileges, capabilities, host namespaces",
    ),
    "a node": (lambda pod: pod["spec"].update(nodeName="n"), "host namespaces or nodeName"),
    "a gate": (
        lambda pod: pod["spec"].update(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
        "but a webhook added kueue.x-k8s.io/admission: exempt pods with",
    ),
    "another scheduler": (
        lambda pod: pod["spec"].update(schedulerName="hami-scheduler"),
        "a webhook set schedulerName hami-scheduler: exempt pods with",
    ),
}


class TestOperator:
    """The operator's right to make and delete pods in any namespace is limited to pods that hold
    cards."""

    ASK = ("create", OPERATOR, "--dry-run=server", "--filename=-")

    @pytest.mark.parametrize("what", BEYOND)
    def test_it_makes_no_other_pods(self, kube: Kube, what: str) -> None:
        change, sentence = BEYOND[what]
        pod = shadow_pod("shadow-2-other")
        kube.run(*self.ASK, input=json.dumps(pod))
        change(pod)
        status, said = kube.attempt(*self.ASK, input=json.dumps(pod))
        assert status != 0, said
        assert sentence in said

    def test_it_ends_share_pods_and_changes_none(self, kube: Kube) -> None:
        """It ends them by eviction, and by deletion where budgets never permit an eviction."""
        pod = objects.plain_pod(TENANT, "share", nodeSelector={"mizar.share/nowhere": "true"})
        pod["metadata"]["labels"] = {"mizar.share/share-pod": "true"}
        kube.apply(pod)
        here = ("share", f"--namespace={TENANT}", OPERATOR)
        assert '"status":"Success"' in evict(kube, OPERATOR, "share").replace(" ", "")
        status, said = kube.attempt("patch", "pod", *here, *merge({"labels": {"a": "b"}}))
        assert status != 0, said
        kube.run("delete", "pod", *here, "--grace-period=0", "--force")

    def test_a_pod_of_several_budgets_is_never_evicted(self, kube: Kube) -> None:
        """The API server says so in the words that the operator knows, of a pod that runs."""
        pod = objects.plain_pod(TENANT, "twice", nodeSelector={"mizar.share/nowhere": "true"})
        pod["metadata"]["labels"] = {"mizar.share/share-pod": "true", "app": "twice"}
        kube.apply(pod)
        running = merge(status={"phase": "Running"})
        kube.run("patch", "pod", "twice", f"--namespace={TENANT}", "--subresource=status", *running)
        for name in ("one", "two"):
            spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "twice"}}}
            meta = {"name": name, "namespace": TENANT}
            budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta}
            kube.apply(budget | {"spec": spec})
        try:
            assert SEVERAL_BUDGETS in evict(kube, OPERATOR, "twice")
        finally:
            kube.run("delete", "pdb", "one", "two", f"--namespace={TENANT}")
            kube.delete("pod", "twice", TENANT, "--grace-period=0", "--force")

    @pytest.mark.parametrize("label", ["share-pod", "spot-pod"])
    def test_it_says_why_a_pod_is_deleted_and_writes_nothing_else_of_its_status(
        self, kube: Kube, label: str
    ) -> None:
        def write(name: str, **parts: Any) -> tuple[int, str]:
            pod = kube.get("pod", name, TENANT)
            assert pod is not None
            refusal = Forbidden("no eviction here", status=403)
            ref = Ref(POD, name, TENANT)
            body = disruption_target(ref, pod["metadata"]["uid"], refusal, datetime.now(UTC))
            body["metadata"] |= parts.pop("metadata", {})
            (condition,) = body["status"]["conditions"]
            condition |= parts.pop("condition", {})
            body["status"] |= parts
            manager = f"--field-manager={FIELD_MANAGER_OPERATOR}"
            how = ("--server-side", "--force-conflicts", "--subresource=status", manager)
            ask = ("apply", *how, "--filename=-", OPERATOR)
            return kube.attempt(*ask, input=json.dumps(body))

        nowhere = {"mizar.share/nowhere": "true"}
        pod = objects.plain_pod(TENANT, "marked", nodeSelector=nowhere)
        pod["metadata"]["labels"] = {f"mizar.share/{label}": "true"}
        for one in (pod, objects.plain_pod(TENANT, "plain", nodeSelector=nowhere)):
            kube.apply(one)
        try:
            assert "of share pods and spot pods only" in write("plain")[1]
            status = "sets a pod's condition DisruptionTarget, and changes nothing else"
            for parts, sentence in (
                ({"metadata": {"labels": {"a": "b"}}}, "changes no metadata of a pod"),
                ({"metadata": {"annotations": {"a": "b"}}}, "changes no metadata of a pod"),
                ({"phase": "Failed"}, status),
                ({"condition": {"type": "Ready"}}, status),
                ({"condition": {"status": "False"}}, status),
                ({"condition": {"reason": "OwnerBack"}}, status),
            ):
                code, said = write("marked", **parts)
                assert code != 0 and sentence in said, (parts, said)
            code, said = write("marked")
            assert code == 0, said
            found = kube.get("pod", "marked", TENANT)
            assert found is not None and has_disruption_target(found)
            assert status in write("marked", conditions=[])[1], "it takes the condition back"
        finally:
            for name in ("marked", "plain"):
                kube.delete("pod", name, TENANT, "--grace-period=0", "--force")

    @pytest.mark.parametrize("namespace", ["kube-system", SYSTEM])
    def test_it_evicts_nothing_that_the_cluster_or_mizar_rests_on(
        self, kube: Kube, namespace: str
    ) -> None:
        nowhere = {"mizar.share/nowhere": "true"}
        name = f"plain-{RELEASE}"
        kube.apply(objects.plain_pod(namespace, name, nodeSelector=nowhere))
        said = evict(kube, OPERATOR, name, namespace)
        assert f"Mizar's operator evicts no pods in namespace {namespace}" in said
        assert '"status":"Success"' in evict(kube, DRAINER, name, namespace).replace(" ", "")
        kube.delete("pod", name, namespace, "--grace-period=0", "--force")

    def test_it_makes_no_quotas_but_a_pools_default(self, kube: Kube) -> None:
        pool = objects.pool(defaultQuota={"profiles": [{"devices": 2, "max": 1}]})
        action = CreateQuota((TENANT, "default"), "default")
        made = manifests.default_quota(action, GPUPool.from_dict(pool))
        sentence = "makes the default quota of a pool, named like the pool, and no other"
        assert sentence not in kube.attempt(*self.ASK, input=json.dumps(made))[1]
        for change in (
            {"metadata": {**made["metadata"], "name": "another"}},
            {"metadata": {**made["metadata"], "labels": {}}},
            {"spec": {**made["spec"], "pool": "another"}},
            {"spec": {**made["spec"], "spot": {"max": 1}}},
        ):
            status, said = kube.attempt(*self.ASK, input=json.dumps(made | change))
            assert status != 0, said
            assert sentence in said
        status, said = kube.attempt(*self.ASK[:1], EDITOR, *self.ASK[2:], input=json.dumps(made))
        assert status != 0 and "forbidden" in said, said

    def test_it_opens_its_gate_of_share_pods_and_no_other(self, kube: Kube) -> None:
        other = {"name": "example.com/other"}
        gates = [{"name": "mizar.share/preemption"}, other]
        pod = objects.plain_pod(TENANT, "gated", schedulingGates=gates)
        pod["metadata"]["labels"] = {"mizar.share/share-pod": "true"}
        kube.apply(pod)
        ask = ("patch", "pod", "gated", f"--namespace={TENANT}", OPERATOR)
        for how in (
            json_patch("remove", "/spec/schedulingGates", None),
            json_patch("replace", "/spec/containers/0/image", "evil:1"),
        ):
            status, said = kube.attempt(*ask, *how)
            assert status != 0, said
            assert "opens its gates of spot pods and share pods, and changes nothing else" in said
        kube.run(*ask, *json_patch("remove", "/spec/schedulingGates/0", None))
        found = kube.get("pod", "gated", TENANT)
        assert found is not None and found["spec"]["schedulingGates"] == [other]
        kube.delete("pod", "gated", TENANT, "--grace-period=0", "--force")

    def test_it_changes_and_deletes_no_others(self, kube: Kube, shadow: str) -> None:
        kube.apply(objects.plain_pod(TENANT, "plain", nodeSelector={"mizar.share/nowhere": "true"}))
        here = ("plain", f"--namespace={TENANT}", OPERATOR)
        for ask in (
            ("delete", "pod", *here),
            ("patch", "pod", *here, *merge({"labels": {"a": "b"}})),
        ):
            status, said = kube.attempt(*ask)
            assert status != 0, said
            assert "plain lacks the label mizar.share/shadow-pod" in said
        for how in (
            merge({"labels": {"mizar.share/shadow-pod": None}}),
            merge({"ownerReferences": None}),
            IMAGE,
        ):
            status, said = patch(kube, OPERATOR, *how)
            assert status != 0, said
            assert "marks shadow pods, and changes nothing else" in said
        kube.delete("pod", "plain", TENANT, "--grace-period=0", "--force")


BUDGETS = "/apis/policy/v1/{}/poddisruptionbudgets"


def test_the_budget_of_shadow_pods_in_use_is_the_operators(kube: Kube) -> None:
    body = json.dumps(manifests.budget(TENANT, 1))
    create = ("create", "--filename=-", "--dry-run=server")
    weak = json.dumps(manifests.budget(TENANT, 1) | {"spec": {"maxUnavailable": 1, "selector": {}}})
    sentence = "this PodDisruptionBudget is Mizar's: it protects shadow pods in use"
    assert sentence in kube.attempt(*create, EDITOR, input=weak)[1]
    kube.run("create", "--filename=-", OPERATOR, input=body)
    here = ("pdb", "mizar-shadow-pods-in-use", f"--namespace={TENANT}")
    assert sentence in kube.attempt("delete", *here, EDITOR)[1]
    loose = ("--type=merge", '--patch={"spec":{"minAvailable":0}}')
    assert sentence in kube.attempt("patch", *here, EDITOR, *loose)[1]
    assert sentence in delete_all(kube, BUDGETS)
    found = kube.get("pdb", "mizar-shadow-pods-in-use", TENANT)
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]
    kube.run("delete", *here, OPERATOR)


def test_the_operator_sees_no_budgets_but_its_own(kube: Kube) -> None:
    every = ("get", "pdb", "--all-namespaces", OPERATOR)
    own = "--field-selector=metadata.name=mizar-shadow-pods-in-use"
    assert kube.attempt(*every, own)[0] == 0
    watched = kube.attempt(*every, own, "--watch-only", "--request-timeout=1s")[1]
    assert "forbidden" not in watched, watched
    assert "forbidden" in kube.attempt(*every)[1]


def test_other_budgets_are_their_owners(kube: Kube) -> None:
    """Also a budget whose name the API server makes."""
    meta = {"generateName": "mizar-shadow-pods-in-use-", "namespace": TENANT}
    mine = json.dumps(manifests.budget(TENANT, 1) | {"metadata": meta})
    kube.run("create", "--filename=-", EDITOR, input=mine)
    delete_all(kube, BUDGETS)
    assert kube.all("pdb", TENANT) == []


def test_kubernetes_deletes_a_budget_with_its_namespace(kube: Kube) -> None:
    kube.run("create", "--filename=-", OPERATOR, input=json.dumps(manifests.budget(TENANT, 1)))
    controller = "--as=system:serviceaccount:kube-system:namespace-controller"
    group = "--as-group=system:serviceaccounts:kube-system"
    kube.run("delete", "--raw", BUDGETS.format(f"namespaces/{TENANT}"), controller, group)
    assert kube.all("pdb", TENANT) == []


def test_a_share_pod_keeps_its_label(kube: Kube) -> None:
    labels = {"mizar.share/share-pod": "true", "app": "x"}
    pod = objects.plain_pod(TENANT, "share", nodeSelector={"mizar.share/nowhere": "true"})
    pod["metadata"]["labels"] = labels
    kube.apply(pod)
    here = ("patch", "pod", "share", f"--namespace={TENANT}", EDITOR)
    for value in (None, "false"):
        status, said = kube.attempt(*here, *merge({"labels": {"mizar.share/share-pod": value}}))
        assert status != 0
        assert "mizar.share/share-pod cannot be removed or changed while the pod exists" in said
    kube.run(*here, *merge({"labels": {"app": "y"}}))
    kube.delete("pod", "share", TENANT, "--grace-period=0", "--force")


@pytest.mark.parametrize(
    ("key", "wrong", "right", "sentence"),
    [
        ("same-card", "yes", "false", 'write "true" or "false", in quotes'),
        ("without-limits", "mian, main", " main,init", "the pod has no container mian, only main"),
    ],
)
def test_an_annotation_with_a_mistake_is_refused(
    kube: Kube, key: str, wrong: str, right: str, sentence: str
) -> None:
    """It would have no effect. A change of a pod is checked as well; of a pod that shares nothing,
    nothing is."""
    pod = objects.plain_pod(TENANT, "noted", nodeSelector={"mizar.share/nowhere": "true"})
    init = pod["spec"]["containers"][0] | {"name": "init"}
    pod["spec"]["initContainers"] = [init]
    pod["metadata"]["annotations"] = {f"mizar.share/{key}": wrong}
    kube.apply(pod)
    kube.delete("pod", "noted", TENANT, "--grace-period=0", "--force")
    pod["metadata"]["labels"] = {"mizar.share/share-pod": "true"}
    said = f"annotation mizar.share/{key}: {sentence}"
    assert said in refusal(kube, pod)
    pod["metadata"]["annotations"] = {f"mizar.share/{key}": right}
    kube.apply(pod)
    note = ("annotate", "--overwrite", "pod", "noted", f"--namespace={TENANT}", "other=x", EDITOR)
    status, answer = kube.attempt(*note, f"mizar.share/{key}={wrong}")
    assert status != 0 and said in answer
    kube.run(*note)
    kube.delete("pod", "noted", TENANT, "--grace-period=0", "--force")


def test_the_webhook_makes_no_secret_but_its_own(kube: Kube) -> None:
    """Other Secrets would belong to other programs, or Kubernetes would fill them with another
    account's token."""
    account = {"kubernetes.io/service-account.name": f"{RELEASE}-operator"}
    token = {"type": "kubernetes.io/service-account-token"}

    def ask(name: str, notes: Object | None = None, **more: str) -> str:
        meta = {"name": name, "namespace": SYSTEM, "annotations": notes or {}}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, **more}
        create = ("create", "--dry-run=server", "--filename=-", WEBHOOK)
        return kube.attempt(*create, input=json.dumps(body))[1]

    sentence = f"Mizar's webhook makes the Secret {RELEASE}-webhook of type Opaque, and no other"
    assert sentence in ask("another")
    assert sentence in ask(f"{RELEASE}-webhook", account, **token)
    assert "already exists" in ask(f"{RELEASE}-webhook")


@pytest.mark.parametrize("kind", ["mutating", "validating"])
def test_the_webhook_changes_whom_its_configurations_trust_and_nothing_else(
    kube: Kube, kind: str
) -> None:
    """Otherwise the API server would send it any request, to change as it likes."""
    name = f"{kind}webhookconfiguration"
    here = ("patch", name, f"{RELEASE}-webhook", WEBHOOK, "--type=json", "--dry-run=server")

    def ask(path: str, value: Any, op: str = "add") -> str:
        patch = json.dumps([{"op": op, "path": path, "value": value}])
        return kube.attempt(*here, f"--patch={patch}")[1]

    first = "/webhooks/0"
    trusted = base64.b64encode(fresh("x", datetime.now(UTC)).ca_pem).decode()
    assert "patched" in ask(f"{first}/clientConfig/caBundle", trusted)
    url = {"url": "https://example.com/x", "caBundle": trusted}
    everything = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"]}
    found = kube.get(name, f"{RELEASE}-webhook")
    assert found is not None
    another = found["webhooks"][0] | {"name": "another.mizar.share"}
    for path, value in (
        (f"{first}/clientConfig", url),
        (f"{first}/clientConfig/service/namespace", TENANT),
        (f"{first}/rules/-", everything | {"resources": ["*/*"]}),
        (f"{first}/failurePolicy", "Ignore"),
        (f"{first}/matchConditions", []),
        ("/webhooks/-", another),
        ("/webhooks", []),
    ):
        assert "whom the API server trusts, and nothing else" in ask(path, value), path
    for field, value in (("finalizers", ["example.com/a"]), ("annotations", {"a": "b"})):
        assert "changes nothing in the metadata" in ask(f"/metadata/{field}", value)


def templates(spec: Object) -> dict[str, Object]:
    """A pod, and a template of pods, in each kind that has one."""
    return objects.of_each_kind(TENANT, "foreign", spec)


def asking(*names: str, init: bool = False) -> Object:
    """The spec of a pod, one of whose containers asks for these resources and a whole card."""
    plain = objects.plain_pod(TENANT, "x")["spec"]["containers"][0]
    limits = dict.fromkeys(("nvidia.com/gpu", *names), 1)
    asks = {**plain, "name": "asks", "resources": {"limits": limits}}
    return {"containers": [plain], "initContainers": [asks]} if init else {"containers": [asks]}


class TestForeignShares:
    """Resources of HAMi and Volcano, which nobody offers where Mizar alone shares cards."""

    ASK = ("create", "--filename=-", EDITOR)
    SENTENCE = "would stay Pending: request only mizar.share/gpu.N"

    def ask(self, kube: Kube, obj: Object) -> tuple[int, str]:
        return kube.attempt(*self.ASK, "--dry-run=server", input=json.dumps(obj))

    @pytest.mark.parametrize("kind", templates({}))
    def test_a_user_who_asks_for_a_resource_of_hami_is_warned(self, kube: Kube, kind: str) -> None:
        for spec in (asking("nvidia.com/gpumem"), asking("nvidia.com/gpumem", init=True)):
            status, said = self.ask(kube, templates(spec)[kind])
            assert status == 0, said
            assert "Mizar does not offer nvidia.com/gpumem, and" in said
            assert self.SENTENCE in said
        status, said = self.ask(kube, templates(asking())[kind])
        assert (status, "Warning" in said) == (0, False), said

    def test_all_of_them_are_known(self, kube: Kube) -> None:
        known = (
            *("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"),
            *("nvidia.com/priority", "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"),
            *("volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"),
        )
        said = self.ask(kube, templates(asking(*known))["Pod"])[1]
        assert f"Mizar does not offer {', '.join(known)}, and" in said

    def test_kubernetes_gives_ephemeral_containers_none(self, kube: Kube) -> None:
        """So the policy needs not look at them."""
        kube.apply(objects.plain_pod(TENANT, "plain", nodeSelector={"mizar.share/nowhere": "true"}))
        one = {"name": "x", "image": PAUSE, "resources": {"limits": {"nvidia.com/gpumem": 1}}}
        body = json.dumps({"spec": {"ephemeralContainers": [one]}})
        how = ("--subresource=ephemeralcontainers", "--type=strategic", f"--patch={body}")
        status, said = kube.attempt("patch", "pod", "plain", f"--namespace={TENANT}", *how)
        assert (status != 0, "ephemeral" in said) == (True, True), said
        kube.delete("pod", "plain", TENANT, "--grace-period=0", "--force")

    def test_they_are_refused_where_the_values_say_so(self, cluster: Cluster, kube: Kube) -> None:
        """But what was there before can be changed in all else."""
        there = templates(asking("volcano.sh/vgpu-memory"))
        kube.run(*self.ASK, input=json.dumps(there["Deployment"]))
        here = ("deployment/foreign", f"--namespace={TENANT}", EDITOR)
        try:
            install(cluster, foreignShares="Deny")
            for obj in there.values():
                wait_for("refusal", lambda obj=obj: self.is_refused(kube, obj))  # type: ignore[misc]
            kube.run("annotate", *here, "example.com/a=b")
            image = json_patch("replace", "/spec/template/spec/containers/0/image", "other:1")
            status, said = kube.attempt("patch", *here, *image)
            assert status != 0, said
            assert self.SENTENCE in said
            install(cluster, foreignShares="Allow")
            wait_for(
                "silence",
                lambda: self.ask(kube, there["Job"])[1].count("Mizar does not offer") == 0,
            )
        finally:
            kube.delete("deployment", "foreign", TENANT)
            install(cluster)

    def is_refused(self, kube: Kube, obj: Object) -> bool:
        name = {**obj, "metadata": {**obj["metadata"], "name": "another"}}
        status, said = self.ask(kube, name)
        return status != 0 and self.SENTENCE in said
