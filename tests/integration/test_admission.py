"""The chart's webhook and policies on a real API server: what becomes of what users send.

Only the webhook runs: the operator has no replicas, the node agent no nodes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster
from mizar_core.names import LABEL_NODE
from mizar_operator.default_pool import default_pool
from mizar_operator.readiness import ASKS_ALSO_THE_MUTATING
from support import escapes, int_or_string, objects
from support.admission import (
    OTHER,
    RELEASE,
    SYSTEM,
    TENANT,
    Agent,
    dry_run,
    install,
    refusal,
    released,
)
from support.kube import Kube, Object
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MINE = f"{TENANT}.mizar.share/gpu.2"
WEBHOOK = f"{RELEASE}-webhook"
NOBODY = {"apiVersion": "v1", "kind": "Namespace", "name": "nobody", "uid": f"{0:032x}"}
"""An owner that does not exist: the garbage collector deletes what it owned."""
REPLICAS = "app.kubernetes.io/component=webhook"
"""Selects the webhook's pods."""


@pytest.fixture(scope="module")
def kube(cluster: Cluster) -> Iterator[Kube]:
    with released(cluster) as kube:
        yield kube


def limits_of(spec: Object) -> Object:
    (container,) = spec["containers"]
    resources = container["resources"]
    # Only pods get requests by default, templates don't.
    assert resources.get("requests", resources["limits"]) == resources["limits"]
    return dict(resources["limits"])


def in_template(kind: str, api: str, key: str, **more: Any) -> Object:
    pod = objects.share_pod(TENANT, "x", key)["spec"]
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod}
    spec: Object = {"template": template, **more}
    if kind == "CronJob":
        spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
    head = {"apiVersion": api, "kind": kind, "metadata": {"name": "x", "namespace": TENANT}}
    return head | ({"template": template} if kind == "PodTemplate" else {"spec": spec})


@pytest.mark.parametrize("written", ["mizar.share.gpu.2", "mizar.share/gpu.2", MINE])
def test_a_pod_gets_its_tenants_resource(kube: Kube, written: str) -> None:
    stored = dry_run(kube, objects.share_pod(TENANT, "x", written))
    assert limits_of(stored["spec"]) == {MINE: "1"}
    assert stored["metadata"]["labels"] == {"mizar.share/share-pod": "true"}
    delay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
    assert stored["metadata"]["annotations"] == {delay: "8760h"}


NAMED, MIB = f"{RELEASE}-named", "example.com/gpumem"


@pytest.fixture
def named(kube: Kube) -> Iterator[Object]:
    """A pool whose profile has a name in NVIDIA's domain."""
    profiles = [{"devices": 10, "cards": 1, "alias": "nvidia.com/vgpu"}]
    sizes = [{"name": MIB, "devices": 10, "unitsPerDevice": 1600}]
    pool = objects.pool(NAMED, profiles=profiles, sizes=sizes, resourcePrefix="named.example")
    kube.apply(pool)
    yield pool
    kube.delete("gpupool", NAMED)


def test_a_pool_names_a_resource(kube: Kube, named: Object) -> None:
    stored = dry_run(kube, objects.share_pod(TENANT, "x", "nvidia.com/vgpu"))
    assert limits_of(stored["spec"]) == {f"{TENANT}.named.example/gpu.10": "1"}
    assert stored["metadata"]["labels"] == {"mizar.share/share-pod": "true"}
    deployment = in_template("Deployment", "apps/v1", "nvidia.com/vgpu", **SELECTOR)
    spec = dry_run(kube, deployment)["spec"]["template"]["spec"]
    assert limits_of(spec) == {"nvidia.com/vgpu": "1"}, "Argo CD would see a difference"


def test_a_pod_asks_for_mib(kube: Kube, named: Object) -> None:
    """As one for HAMi does; that its manifest is applied again changes nothing."""
    pod = objects.share_pod(OTHER, "x", MIB, 3000, nodeSelector={"mizar.share/nowhere": "true"})
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 1
    kube.apply(pod)
    try:
        kube.apply(pod)
        kube.run("label", "pod", "x", "a=b", f"--namespace={OTHER}")
        found = kube.get("pod", "x", OTHER)
        assert found and limits_of(found["spec"]) == {f"{OTHER}.named.example/gpu.10": "2"}
        assert found["metadata"]["annotations"]["mizar.share/same-card"] == "true"
    finally:
        kube.delete("pod", "x", OTHER)
    said = refusal(kube, objects.share_pod(TENANT, "x", MIB, 3000))
    assert f"pool '{NAMED}' has it, but no GPUQuota of the namespace names that pool" in said


def test_a_template_keeps_its_mib(kube: Kube, named: Object) -> None:
    deployment = in_template("Deployment", "apps/v1", MIB, **SELECTOR)
    limits = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits["nvidia.com/gpu"] = 1
    spec = dry_run(kube, deployment)["spec"]["template"]["spec"]
    assert limits_of(spec) == {MIB: "1", "nvidia.com/gpu": "1"}, "Argo CD would see a difference"


def test_a_name_that_no_pool_has_now(kube: Kube) -> None:
    pod = objects.share_pod(TENANT, "x", "nvidia.com/vgpu")
    sentence = "no profile of a GPUPool has this alias"
    # A pool of an earlier test may have had the name, and the webhook still has a copy for a
    # moment.
    wait_for("its refusal", lambda: sentence in refusal(kube, pod))


def test_names_that_a_pool_may_not_give(kube: Kube, named: Object) -> None:
    def pool(alias: str) -> Object:
        return objects.pool(f"{RELEASE}-x", profiles=[{"devices": 2, "cards": 1, "alias": alias}])

    assert "Mizar was installed without the name" in refusal(kube, pool("example.com/x"))
    assert f"pool '{NAMED}' already uses the name" in refusal(kube, pool("nvidia.com/vgpu"))
    for alias in ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb"):
        assert "is NVIDIA's own name for whole cards" in refusal(kube, pool(alias))


class TestQuotaNames:
    """ResourceQuotas count shares by the names that pods have after admission."""

    def said(self, kube: Kube, *names: str) -> str:
        """What the creator of a ResourceQuota of these resources is told; nobody refuses it."""
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "shares", "namespace": TENANT},
            "spec": {"hard": {f"requests.{name}": "1" for name in names}},
        }
        create = ("create", "--dry-run=server", "--filename=-")
        status, said = kube.attempt(*create, input=json.dumps(quota))
        assert status == 0, said
        return said

    def test_a_user_whose_resource_quota_counts_by_the_plain_name_is_warned(
        self, kube: Kube
    ) -> None:
        said = self.said(kube, "mizar.share/gpu.2", MINE)
        assert "requests.mizar.share/gpu.2 limits nothing, since no pod of the namespace" in said
        assert f"write requests.{TENANT}.mizar.share/gpu.N, with the N of a profile" in said

    def test_by_an_alias_too(self, kube: Kube, named: Object) -> None:
        wait_for(
            "the warning",
            lambda: "requests.nvidia.com/vgpu limits nothing" in self.said(kube, "nvidia.com/vgpu"),
        )
        assert f"requests.{MIB} limits nothing" in self.said(kube, MIB)

    def test_in_a_shared_pool_the_plain_name_is_right(self, kube: Kube) -> None:
        name = f"{RELEASE}-for-all"
        kube.apply(objects.pool(name, tenancy="Shared", resourcePrefix="all.example"))
        try:
            wrong = f"{TENANT}.all.example/gpu.2"
            right = "write requests.all.example/gpu.N"
            wait_for("the warning", lambda: right in self.said(kube, wrong))
            assert "Warning" not in self.said(kube, "all.example/gpu.2")
        finally:
            kube.delete("gpupool", name)

    def test_and_nobody_else_is(self, kube: Kube) -> None:
        assert "Warning" not in self.said(kube, MINE, "nvidia.com/gpu", "example.com/gpu.2")


def test_labels_of_ones_own_stay(kube: Kube) -> None:
    pod = objects.share_pod(TENANT, "x")
    pod["metadata"]["labels"] = {"app": "x", "mizar.share/share-pod": "no"}
    assert dry_run(kube, pod)["metadata"]["labels"] == {"app": "x", "mizar.share/share-pod": "true"}


@pytest.mark.parametrize("kind", objects.of_each_kind(OTHER, "x", {}))
def test_a_user_who_forgets_the_containers_gets_the_error_of_kubernetes_itself(
    kube: Kube, kind: str
) -> None:
    """The webhook is asked before Kubernetes checks the object."""
    body = objects.of_each_kind(OTHER, "x", {"initContainers": []})[kind]
    said = refusal(kube, body, "--validate=false")
    assert "spec.containers: Required value" in said
    assert "expression" not in said


def test_other_pods_get_no_label(kube: Kube) -> None:
    assert "labels" not in dry_run(kube, objects.plain_pod(TENANT, "x"))["metadata"]
    assert "labels" not in dry_run(kube, objects.whole_card_pod(TENANT, "x"))["metadata"]


SELECTOR = {"selector": {"matchLabels": {"app": "x"}}}


@pytest.mark.parametrize(
    ("kind", "api", "more"),
    [
        ("Deployment", "apps/v1", SELECTOR),
        ("StatefulSet", "apps/v1", SELECTOR | {"serviceName": "x"}),
        ("DaemonSet", "apps/v1", SELECTOR),
        ("ReplicaSet", "apps/v1", SELECTOR),
        ("ReplicationController", "v1", {"selector": {"app": "x"}}),
        ("Job", "batch/v1", {}),
        ("CronJob", "batch/v1", {}),
        ("PodTemplate", "v1", {}),
    ],
)
def test_templates_may_be_written_with_dots(kube: Kube, kind: str, api: str, more: Object) -> None:
    obj = in_template(kind, api, "mizar.share.gpu.2", **more)
    if kind in ("Job", "CronJob"):
        template = obj["spec"].get("template") or obj["spec"]["jobTemplate"]["spec"]["template"]
        template["spec"]["restartPolicy"] = "Never"
    stored = dry_run(kube, obj)
    template = stored.get("template") or stored["spec"].get("template")
    template = template or stored["spec"]["jobTemplate"]["spec"]["template"]
    assert limits_of(template["spec"]) == {"mizar.share/gpu.2": "1"}


def test_the_pods_of_a_deployment_get_their_tenants_resource(kube: Kube) -> None:
    kube.apply(in_template("Deployment", "apps/v1", "mizar.share.gpu.2", **SELECTOR))
    pods = wait_for("the pod", lambda: kube.all("pods", TENANT, "app=x"))
    assert limits_of(pods[0]["spec"]) == {MINE: "1"}
    # The same manifest again, then a changed one.
    kube.apply(in_template("Deployment", "apps/v1", "mizar.share.gpu.2", **SELECTOR))
    kube.apply(in_template("Deployment", "apps/v1", "mizar.share.gpu.4", **SELECTOR))
    stored = kube.get("deployment", "x", TENANT)
    assert stored is not None
    assert limits_of(stored["spec"]["template"]["spec"]) == {"mizar.share/gpu.4": "1"}
    kube.delete("deployment", "x", TENANT)


def test_a_pod_may_be_applied_again(kube: Kube) -> None:
    for written in ("mizar.share.gpu.2", "mizar.share/gpu.2"):
        pod = objects.share_pod(TENANT, "again", written)
        kube.apply(pod)
        kube.apply(pod)
        kube.run("label", "pod", "again", f"--namespace={TENANT}", "seen=yes", "--overwrite")
        kube.delete("pod", "again", TENANT, "--grace-period=0", "--force")


REFUSED = {
    "a foreign tenant's": (
        {f"{OTHER}.mizar.share/gpu.2": 1},
        None,
        f"it belongs to namespace '{OTHER}': ask for mizar.share/gpu.2",
    ),
    "no profile": (
        {"mizar.share/gpu": 1},
        None,
        "mizar.share/gpu: it names no profile: ask for one of mizar.share/gpu.2,",
    ),
    "no profile, dotted": (
        {"mizar.share.gpu": 1},
        None,
        "mizar.share.gpu: it names no profile: ask for one of mizar.share/gpu.2,",
    ),
    "a word for a profile": (
        {"mizar.share/gpu.x": 1},
        None,
        "mizar.share/gpu.x: it names no profile: ask for one of mizar.share/gpu.2,",
    ),
    "a nought before the profile": (
        {"mizar.share/gpu.02": 1},
        None,
        "mizar.share/gpu.02: it names no profile: write mizar.share/gpu.2",
    ),
    "a nought before the profile, dotted": (
        {"mizar.share.gpu.02": 1},
        None,
        "mizar.share.gpu.02: it names no profile: write mizar.share/gpu.2",
    ),
    "another word": (
        {"mizar.share/half": 1},
        None,
        "mizar.share/half: it names no profile: ask for one of mizar.share/gpu.2,",
    ),
    "an unknown profile": (
        {"mizar.share/gpu.3": 1},
        None,
        f"pool '{RELEASE}' has no profile of 3 devices: ask for one of mizar.share/gpu.2,",
    ),
    "requests unlike limits": (
        {"mizar.share/gpu.2": 2},
        {"mizar.share/gpu.2": 1},
        "requests 1 and limits 2 differ: give only limits",
    ),
    "more than 64 bits": (
        {"mizar.share/gpu.2": "1e30"},
        None,
        "mizar.share/gpu.2: 1e30 is more than any cluster has: ask for at most 1000000",
    ),
    "a fraction": (
        {"mizar.share/gpu.2": 0.5},
        None,
        "mizar.share/gpu.2: 500m is a fraction: ask for 1 or another whole number; the number in",
    ),
    "requests alone": ({}, {"mizar.share/gpu.2": 1}, "it is only in requests: put it into limits"),
    "two spellings": (
        {"mizar.share/gpu.2": 1, "mizar.share.gpu.2": 1},
        None,
        "mizar.share.gpu.2 and mizar.share/gpu.2 are the same: keep one of them",
    ),
    "two profiles": (
        {"mizar.share/gpu.2": 1, "mizar.share/gpu.4": 1},
        None,
        "it can have devices of one of them only",
    ),
    "whole cards beside": (
        {"mizar.share/gpu.2": 1, "nvidia.com/gpu": 1},
        None,
        "whole cards or shares; use two containers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_to_do(kube: Kube, case: str) -> None:
    limits, requests, sentence = REFUSED[case]
    pod = objects.plain_pod(TENANT, "x")
    resources = {"limits": limits} | ({"requests": requests} if requests else {})
    pod["spec"]["containers"][0]["resources"] = resources
    said = refusal(kube, pod)
    assert sentence in said
    assert "pods.mizar.share" in said


@pytest.mark.parametrize("key", ["mizar.share/gpu", "mizar.share.gpu.02", "mizar.share.gpu"])
def test_templates_are_refused_in_the_same_words(kube: Kube, key: str) -> None:
    said = refusal(kube, in_template("Deployment", "apps/v1", key, **SELECTOR))
    assert "it names no profile" in said
    assert "templates.mizar.share" in said


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"memoryScaling": 1.5}, 'spec.memoryScaling: write 1.5 in quotes, "1.5"'),
        ({"coreScaling": True}, "spec.coreScaling: true is not a number: write one in quotes"),
        (
            {"profiles": [{"devices": 2, "cards": 1, "memory": 8.5}]},
            'spec.profiles[0].memory: write 8.5 in quotes, "8.5"',
        ),
        (
            {"spot": {"reserve": True}},
            "spec.spot.reserve: true is not a number: write one in quotes",
        ),
    ],
)
def test_a_number_without_quotes_gets_a_sentence(kube: Kube, spec: Object, sentence: str) -> None:
    pool = objects.pool(f"{RELEASE}-numbers", resourcePrefix="numbers.example.com", **spec)
    said = refusal(kube, pool)
    assert sentence in said
    assert "in body must be of type" not in said
    status, said = kube.attempt(
        *("apply", "--server-side", "--dry-run=server", "--filename=-"), input=json.dumps(pool)
    )
    assert status != 0
    assert sentence in said


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"nodeSelector": {"gpu": True}}, 'spec.nodeSelector.gpu: write true in quotes, "true"'),
        ({"cardModels": [4090]}, 'spec.cardModels[0]: write 4090 in quotes, "4090"'),
        (
            {"tolerations": [{"key": "gpu", "value": True}]},
            'spec.tolerations[0].value: write true in quotes, "true"',
        ),
        (
            {
                "defaultQuota": {
                    "namespaceSelector": {"matchLabels": {"gpu": True}},
                    "profiles": [{"devices": 2, "max": 1}],
                }
            },
            "spec.defaultQuota.namespaceSelector.matchLabels.gpu: write true in quotes",
        ),
    ],
)
def test_a_text_without_quotes_gets_a_sentence(kube: Kube, spec: Object, sentence: str) -> None:
    """With server-side apply, the API server compares types before any webhook, and says
    "expected string"."""
    pool = objects.pool(f"{RELEASE}-numbers", resourcePrefix="numbers.example.com", **spec)
    said = refusal(kube, pool)
    assert sentence in said
    assert "in body must be of type" not in said


@pytest.mark.parametrize("field", int_or_string.fields("gpupools"))
def test_no_number_that_wants_quotes_is_forgotten(kube: Kube, field: str) -> None:
    spec = {"resourcePrefix": "numbers.example.com", **int_or_string.with_value(field, 1.5)}
    said = refusal(kube, objects.pool(f"{RELEASE}-numbers", **spec))
    assert f'{field}: write 1.5 in quotes, "1.5"' in said


def test_numbers_that_need_no_quotes_pass(kube: Kube) -> None:
    fine = {"coreScaling": 2, "memoryScaling": "1", "profiles": [{"devices": 2, "cards": 1}]}
    fine["spot"] = {"reserve": 2**30}
    dry_run(kube, objects.pool(f"{RELEASE}-n", resourcePrefix="numbers.example.com", **fine))


def test_a_shared_pool_beside_one_that_keeps_tenants_apart(kube: Kube) -> None:
    said = refusal(kube, objects.pool(f"{RELEASE}-shared", tenancy="Shared"))
    assert f"would be mixed up with 'mizar.share' of pool '{RELEASE}'" in said


@pytest.mark.parametrize(
    ("isolation", "pool", "sentence"),
    [
        ({"backend": "MPS"}, RELEASE, "backend MPS is not built yet: set it to Auto or Shim"),
        ({"memory": "Hard"}, f"{RELEASE}-over", "memoryScaling above 1 allocates more memory"),
    ],
)
def test_isolation_that_cannot_be_had(
    kube: Kube, isolation: Object, pool: str, sentence: str
) -> None:
    over = {"memoryScaling": "1.5", "isolation": {"memory": "Oversubscribe"}}
    kube.apply(objects.pool(f"{RELEASE}-over", resourcePrefix="over.example.com", **over))
    quota = objects.quota(OTHER, {"devices": 2, "max": 1}, pool=pool, isolation=isolation)
    said = refusal(kube, quota)
    kube.delete("gpupool", f"{RELEASE}-over")
    assert sentence in said


def test_a_quota_that_its_pool_cannot_give(kube: Kube) -> None:
    quota = objects.quota(OTHER, {"devices": 3, "max": 1}, pool=RELEASE)
    assert "has no profile of 3 devices: choose among 2, 4, 8, 16" in refusal(kube, quota)


def test_a_profile_that_a_quota_uses_stays(kube: Kube) -> None:
    patch = json.dumps({"spec": {"profiles": [{"devices": 4, "cards": 2}]}})
    status, said = kube.attempt("patch", "gpupool", RELEASE, "--type=merge", f"--patch={patch}")
    assert status != 0
    assert f"GPUQuota {TENANT}/gpus would not fit any more" in said


def test_a_pool_and_a_pod_in_one_go(kube: Kube) -> None:
    """The pod comes milliseconds after the pool that it needs."""
    prefix = "quick.example.com"
    name = f"{RELEASE}-quick"
    pod = objects.share_pod(TENANT, "quick", f"{prefix}.gpu.2")
    kube.apply(objects.pool(name, resourcePrefix=prefix), pod)
    stored = kube.get("pod", "quick", TENANT)
    assert stored is not None
    assert limits_of(stored["spec"]) == {f"{TENANT}.{prefix}/gpu.2": "1"}
    kube.delete("pod", "quick", TENANT, "--grace-period=0", "--force")
    kube.delete("gpupool", name)


class TestPolicies:
    """What the API server checks by itself."""

    def test_tenancy_holds_where_the_webhook_does_not_look(self, kube: Kube) -> None:
        key = f"{TENANT}.mizar.share/gpu.2"
        said = refusal(kube, objects.share_pod("kube-system", "x", key))
        assert "a pod gets devices of its own namespace only" in said

    def test_a_user_who_asks_by_the_plain_name_is_told_that_the_webhook_did_not_process_the_pod(
        self, kube: Kube
    ) -> None:
        """Not to ask for what the pod asks for already."""
        said = refusal(kube, objects.share_pod("kube-system", "x", "mizar.share/gpu.2"))
        assert (
            "Mizar's webhook, which turns mizar.share/gpu.N into kube-system.mizar.share/gpu.N, did"
            " not process the pod: check that mizar-webhook is running and covers this namespace"
        ) in said

    def test_names_that_are_none_are_refused_where_the_webhook_does_not_look(
        self, kube: Kube
    ) -> None:
        for key in ("mizar.share/gpu", "kube-system.mizar.share/gpu.x", "mizar.share/GPU-2"):
            said = refusal(kube, objects.share_pod("kube-system", "x", key))
            assert f"pool {RELEASE} has no resource of that name: ask for mizar.share/gpu.N" in said

    def test_a_share_pod_without_its_label_is_no_pod_that_mizar_sees(self, kube: Kube) -> None:
        pod = objects.share_pod("kube-system", "x", "kube-system.mizar.share/gpu.2")
        assert "Mizar's webhook, which labels such pods, did not process it" in refusal(kube, pod)
        pod["metadata"]["labels"] = {"mizar.share/share-pod": "true"}
        dry_run(kube, pod)

    @pytest.fixture
    def agents(
        self, kube: Kube, cluster: Cluster, tmp_path: Path
    ) -> Iterator[tuple[str, Agent, Agent]]:
        """The cluster's node, the agent of that node, and the agent of node `elsewhere`."""
        node = kube.all("nodes")[0]["metadata"]["name"]
        kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "elsewhere"}})
        agent, stranger = (Agent(kube, cluster, name, tmp_path) for name in (node, "elsewhere"))
        try:
            yield node, agent, stranger
        finally:
            kube.delete("node", "elsewhere")

    def test_a_node_agent_writes_its_own_nodes_shares_only(
        self, agents: tuple[str, Agent, Agent]
    ) -> None:
        node, agent, stranger = agents
        share = {"status": {"capacity": {MINE: "2"}, "allocatable": {MINE: "2"}}}
        assert agent.patch(node, share) == (0, "")
        remove = {"status": {"capacity": {MINE: None}, "allocatable": {MINE: None}}}
        assert agent.patch(node, remove)[0] == 0
        assert "of its own node, elsewhere, only" in stranger.patch(node, share)[1]
        named = {"metadata": {"labels": {LABEL_NODE: node}}}
        assert agent.patch(node, named) == (0, "")
        assert "of its own node, elsewhere, only" in stranger.patch(node, named)[1]
        for patch, sentence in (
            ({"metadata": {"labels": {LABEL_NODE: "elsewhere"}}}, "labels or annotations"),
            ({"metadata": {"labels": {LABEL_NODE: None}}}, "labels or annotations"),
            ({"status": {"capacity": {"cpu": "99"}}}, "numbers of Mizar's resources only"),
            ({"status": {"capacity": {"nvidia.com/gpu": "9"}}}, "numbers of Mizar's resources"),
            ({"status": {"allocatable": {"cpu": None}}}, "numbers of Mizar's resources only"),
            ({"status": {"nodeInfo": {"osImage": "x"}}}, "capacity and allocatable only"),
            ({"metadata": {"labels": {"a": "b"}}}, "labels or annotations"),
            ({"metadata": {"finalizers": ["example.com/a"]}}, "owners or finalizers"),
            ({"metadata": {"ownerReferences": [NOBODY]}}, "owners or finalizers"),
        ):
            status, said = agent.patch(node, patch)
            assert status != 0, said
            assert sentence in said

    def test_a_node_agent_writes_hamis_annotations_where_it_is_told_to(
        self, kube: Kube, cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        node = kube.all("nodes")[0]["metadata"]["name"]
        agent = Agent(kube, cluster, node, tmp_path)

        def annotate(key: str, value: str | None = "x") -> tuple[int, str]:
            return agent.patch(node, {"metadata": {"annotations": {key: value}}})

        register, handshake = "hami.io/node-nvidia-register", "hami.io/node-handshake"
        assert "labels or annotations" in annotate(register)[1]
        request.addfinalizer(lambda: install(cluster))
        install(cluster, hamiAnnotations="JSON")
        wait_for("the policy to permit it", lambda: annotate(register) == (0, ""))
        assert annotate(handshake) == (0, "")
        found = kube.get("node", node)
        assert found is not None and found["metadata"]["annotations"][register] == "x"
        for key in ("hami.io/other", "example.com/a"):
            assert "labels or annotations" in annotate(key)[1]
        for key in found["metadata"]["annotations"].keys() - {register, handshake}:
            assert "labels or annotations" in annotate(key, None)[1]
        label = {"metadata": {"labels": {register: "x"}}}
        assert "labels or annotations" in agent.patch(node, label)[1]
        install(cluster)
        # Another value each time: an update that changes nothing is permitted.
        values = map(str, count())
        wait_for("the policy to forbid it", lambda: annotate(register, next(values))[0] != 0)
        assert annotate(register, None) == annotate(handshake, None) == (0, "")

    def test_and_on_share_pods_of_its_node(
        self,
        kube: Kube,
        cluster: Cluster,
        agents: tuple[str, Agent, Agent],
        request: pytest.FixtureRequest,
    ) -> None:
        node, agent, stranger = agents
        shares, plain = objects.share_pod(TENANT, "shares"), objects.share_pod(TENANT, "plain")
        plain["spec"]["containers"][0]["resources"] = {}
        for pod in (shares, plain):
            # No node of this cluster has the resource, so the pod is bound as the scheduler would
            # do it.
            pod["spec"]["schedulerName"] = "nobody"
            kube.apply(pod)
            name = pod["metadata"]["name"]
            body: Object = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
            body |= {"target": {"kind": "Node", "name": node}}
            path = f"/api/v1/namespaces/{TENANT}/pods/{name}/binding"
            kube.run("create", "--raw", path, "--filename=-", input=json.dumps(body))
            request.addfinalizer(
                lambda name=name: kube.delete("pod", name, TENANT, "--grace-period=0", "--force")
            )

        def annotate(pod: Object, key: str, who: Agent = agent, **more: Any) -> tuple[int, str]:
            meta = {"annotations": {key: "x"}, **more}
            return who.patch_pod(pod, {"metadata": meta})

        devices, at = "hami.io/vgpu-devices-allocated", "hami.io/vgpu-node"
        assert "labels or annotations" in annotate(shares, devices)[1]
        request.addfinalizer(lambda: install(cluster))
        install(cluster, hamiAnnotations="JSON")
        wait_for("the policy to permit it", lambda: annotate(shares, devices) == (0, ""))
        assert annotate(shares, at) == (0, "")
        found = kube.get("pod", "shares", TENANT)
        assert found is not None
        assert {found["metadata"]["annotations"][key] for key in (devices, at)} == {"x"}
        assert annotate(shares, devices, uid="another")[0] != 0
        assert "of pods on its own node, elsewhere, only" in annotate(shares, at, stranger)[1]
        for pod, key in (
            (plain, devices),
            (shares, "hami.io/other"),
            (shares, "hami.io/node-nvidia-register"),
        ):
            assert "labels or annotations" in annotate(pod, key)[1]
        label = {"metadata": {"labels": {devices: "x"}}}
        assert "labels or annotations" in agent.patch_pod(shares, label)[1]
        held = {"metadata": {"finalizers": ["example.com/a"]}}
        assert "owners or finalizers" in agent.patch_pod(plain, held)[1]

    def test_a_node_agent_writes_shadow_pods_of_its_own_node_only(
        self, kube: Kube, cluster: Cluster, tmp_path: Path
    ) -> None:
        node = kube.all("nodes")[0]["metadata"]["name"]
        agent = Agent(kube, cluster, node, tmp_path)
        shadow = {
            "apiVersion": "mizar.share/v1alpha1",
            "kind": "ShadowPod",
            "metadata": {"name": "shadow-2-abcde", "namespace": TENANT},
        }
        spec = {"pool": RELEASE, "quota": "gpus", "devices": 2, "cards": 1}
        operator = f"--as=system:serviceaccount:{SYSTEM}:{RELEASE}-operator"
        made = json.dumps({**shadow, "spec": spec})
        kube.run("create", operator, "--filename=-", input=made)
        assert agent.write({**shadow, "status": {"node": node}})[0] == 0
        status, said = agent.write({**shadow, "status": {"node": "elsewhere"}})
        assert status != 0
        assert f"of shadow pods on its own node, {node}, only" in said
        kube.delete("shadowpod", "shadow-2-abcde", TENANT)


def warned(kube: Kube, pod: Object, kind: str) -> str:
    """What kubectl prints when an object of this kind, whose pods are like this one, is made."""
    made = json.dumps(escapes.templated(pod, kind))
    status, said = kube.attempt("create", "--filename=-", "--dry-run=server", input=made)
    assert status == 0, said
    return said


class TestEscapes:
    """Fields of a pod by which a container would get past the limits of its share."""

    @pytest.mark.parametrize("case", escapes.ESCAPES)
    def test_is_refused_with_a_sentence(self, kube: Kube, case: str) -> None:
        changes, sentence = escapes.ESCAPES[case]
        said = refusal(kube, escapes.escaping(TENANT, changes))
        assert sentence in said
        assert f"{RELEASE}-share-pods" in said
        assert "policies.sharePodsMay of Mizar can allow" in said

    @pytest.mark.parametrize("case", escapes.NO_ESCAPE)
    def test_and_nothing_else_is(self, kube: Kube, case: str) -> None:
        dry_run(kube, escapes.escaping(TENANT, escapes.NO_ESCAPE[case]))

    @pytest.mark.parametrize("case", escapes.ESCAPES)
    def test_pods_without_a_share_may(self, kube: Kube, case: str) -> None:
        pod = escapes.escaping(TENANT, escapes.ESCAPES[case][0])
        pod["spec"]["containers"][0]["resources"] = {}
        dry_run(kube, pod)

    @pytest.mark.parametrize("case", escapes.ONE_OF_EACH)
    def test_a_user_who_creates_a_deployment_of_pods_with_such_a_field_is_warned(
        self, kube: Kube, case: str
    ) -> None:
        changes, sentence = escapes.ESCAPES[case]
        said = warned(kube, escapes.escaping(TENANT, changes), "Deployment")
        assert "Warning: " in said and "the API server will refuse its pods: " in said
        assert sentence in said

    @pytest.mark.parametrize("case", ["nothing", "no card beside", "mounts beside", "logs"])
    def test_and_nobody_else_is(self, kube: Kube, case: str) -> None:
        pod = escapes.escaping(TENANT, escapes.NO_ESCAPE[case])
        assert "Warning" not in warned(kube, pod, "Deployment")

    @pytest.mark.parametrize("kind", escapes.KINDS)
    def test_in_every_kind_of_template(self, kube: Kube, kind: str) -> None:
        changes = [
            escapes.ESCAPES[case][0] for case in ("all cards before", "host /sys", "hostPID", "CDI")
        ]
        all_at_once = {key: value for change in changes for key, value in change.items()}
        all_at_once["spec"] = {"hostPID": True, **escapes.host("/sys")["spec"]}
        pod = escapes.escaping(TENANT, all_at_once)
        said = warned(kube, pod, kind)
        for sentence in ("container before sets NVIDIA_VISIBLE", "hostPath /sys", "hostPID", "cdi"):
            assert sentence in said, sentence
        for one in pod["spec"]["containers"]:
            one["resources"] = {}
        assert "Warning" not in warned(kube, pod, kind)

    def test_of_a_template_whose_init_container_alone_asks(self, kube: Kube) -> None:
        pod = escapes.escaping(TENANT, escapes.ESCAPES["hostPID"][0])
        (init,), main = pod["spec"]["initContainers"], pod["spec"]["containers"][0]
        init["resources"], main["resources"] = main["resources"], {}
        assert "may not have hostPID" in warned(kube, pod, "Deployment")

    @pytest.mark.parametrize("resource", ["mizar.spot/gpu", "nvidia.com/vgpu"])
    def test_of_a_template_that_borrows_or_asks_by_an_alias(
        self, kube: Kube, resource: str
    ) -> None:
        pod = escapes.escaping(TENANT, escapes.ESCAPES["hostPID"][0])
        pod["spec"]["containers"][0]["resources"] = {"limits": {resource: 1}}
        assert "may not have hostPID" in warned(kube, pod, "Deployment")

    def test_a_template_that_is_there_can_be_scaled_without_a_warning(self, kube: Kube) -> None:
        pod = escapes.escaping(TENANT, escapes.ESCAPES["hostPID"][0])
        kube.apply(escapes.templated(pod, "Deployment"))
        here = ("deployment/escapes", f"--namespace={TENANT}", "--type=merge")
        try:
            status, said = kube.attempt("patch", *here, '--patch={"spec":{"paused":true}}')
            assert (status, "Warning" in said) == (0, False), said
            changed = {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}
            status, said = kube.attempt("patch", *here, f"--patch={json.dumps(changed)}")
            assert (status, "may not have hostPID" in said) == (0, True), said
        finally:
            kube.delete("deployment", "escapes", TENANT)

    def test_an_annotation_that_comes_later_gets_no_further(self, kube: Kube) -> None:
        kube.apply(objects.share_pod(TENANT, "annotated"))
        annotate = ("annotate", "pod", "annotated", f"--namespace={TENANT}")
        status, said = kube.attempt(*annotate, "cdi.k8s.io/x=nvidia.com/gpu=all")
        assert status != 0
        assert "an annotation cdi.k8s.io/... can expose cards beyond the share" in said
        kube.run(*annotate, "example.com/x=y")
        kube.delete("pod", "annotated", TENANT, "--grace-period=0", "--force")

    def test_a_container_for_debugging_gets_no_further(self, kube: Kube) -> None:
        null = {"name": "null", "hostPath": {"path": "/dev/null"}}
        kube.apply(objects.share_pod(TENANT, "debugged", volumes=[null]))
        debug = {"name": "debug", "image": objects.SAMPLE_IMAGE}
        every = {"name": "null", "mountPath": "/var/run/nvidia-container-devices/all"}
        for more, sentence in (
            ({"env": [escapes.CUDA]}, f"container debug {escapes.VISIBLE}"),
            ({"volumeMounts": [every]}, "container debug mounts a volume over"),
            (escapes.context(privileged=True), f"container debug {escapes.PRIVILEGED}"),
            (escapes.context(capabilities={"add": ["SYS_ADMIN"]}), escapes.PRIVILEGED),
            ({}, ""),
        ):
            patch = json.dumps({"spec": {"ephemeralContainers": [{**debug, **more}]}})
            status, said = kube.attempt(
                *("patch", "pod", "debugged", f"--namespace={TENANT}"),
                *("--subresource=ephemeralcontainers", f"--patch={patch}"),
            )
            assert (status != 0) == bool(sentence), said
            assert sentence in said
        kube.delete("pod", "debugged", TENANT, "--grace-period=0", "--force")


def test_trust_that_is_lost_comes_back_at_once(kube: Kube) -> None:
    def bundle() -> str:
        found = kube.get("mutatingwebhookconfiguration", WEBHOOK)
        assert found is not None
        return str(found["webhooks"][0]["clientConfig"].get("caBundle", ""))

    right = bundle()
    assert b"BEGIN CERTIFICATE" in base64.b64decode(right)
    patch = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    kind = ("mutatingwebhookconfiguration", WEBHOOK)
    kube.run("patch", *kind, "--type=json", f"--patch={json.dumps(patch)}")
    # Sooner than by the look that the webhook takes once a minute, mostly.
    wait_for("the trust to come back", lambda: bundle() == right, timeout=45)


def test_a_lost_secret_is_made_anew_and_trusted(kube: Kube) -> None:
    def data() -> Object:
        found = kube.get("secret", WEBHOOK, SYSTEM)
        return dict((found or {}).get("data") or {})

    before = data()
    patch = json.dumps([{"op": "remove", "path": "/data"}])
    kube.run("patch", "secret", WEBHOOK, f"--namespace={SYSTEM}", "--type=json", f"--patch={patch}")
    wait_for("a new certificate", lambda: data().get("tls.crt", "") not in ("", before["tls.crt"]))
    wait_for("the webhook to be trusted again", lambda: translates(kube))


def test_a_deleted_secret_is_created_anew_and_trusted(kube: Kube) -> None:
    """Deleting the Secret forces a rotation. Replicas that start afterwards serve with the new one
    as well."""
    before = authorities(kube)
    kube.delete("secret", WEBHOOK, SYSTEM)
    wait_for("other authorities", lambda: authorities(kube) not in (None, before))
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        wait_for(f"the {kind} to trust them", lambda kind=kind: trusts(kube, kind))  # type: ignore[misc]
    wait_for("the webhook to be trusted again", lambda: translates(kube))
    kube.run("rollout", "restart", "deployment", WEBHOOK, f"--namespace={SYSTEM}")
    done = ("rollout", "status", "deployment", WEBHOOK, f"--namespace={SYSTEM}", "--timeout=240s")
    kube.run(*done)
    wait_for("the former replica to end", lambda: len(kube.all("pods", SYSTEM, REPLICAS)) == 1)
    wait_for("the new replicas to be asked", lambda: translates(kube))


def authorities(kube: Kube) -> str | None:
    """The authorities in the webhook's Secret, in base64; None while there are none."""
    found = kube.get("secret", WEBHOOK, SYSTEM)
    return ((found or {}).get("data") or {}).get("ca.crt")


def trusts(kube: Kube, kind: str) -> bool:
    """Whether all webhooks of the configuration trust the authorities in the Secret, and no
    others."""
    found = kube.get(kind, WEBHOOK)
    assert found is not None
    bundles = {one["clientConfig"].get("caBundle") for one in found["webhooks"]}
    return bundles == {authorities(kube)}


def translates(kube: Kube) -> bool:
    pod = json.dumps(objects.share_pod(TENANT, "x", "mizar.share.gpu.2"))
    return kube.attempt("create", "--dry-run=server", "--filename=-", input=pod)[0] == 0


def test_an_upgrade_keeps_the_certificate(kube: Kube, cluster: Cluster) -> None:
    before = kube.get("secret", WEBHOOK, SYSTEM)
    install(cluster)
    after = kube.get("secret", WEBHOOK, SYSTEM)
    assert before is not None
    assert after is not None
    assert before["data"] == after["data"]
    assert translates(kube)


def test_without_the_webhook_only_share_pods_wait(kube: Kube) -> None:
    scale = ("scale", "deployment", WEBHOOK, f"--namespace={SYSTEM}")
    kube.run(*scale, "--replicas=0")
    wait_for("the webhook to end", lambda: not kube.all("pods", SYSTEM, REPLICAS))
    said = refusal(kube, objects.share_pod(TENANT, "x"))
    assert 'failed calling webhook "pods.mizar.share"' in said
    dry_run(kube, objects.plain_pod(TENANT, "x"))
    dry_run(kube, objects.whole_card_pod(TENANT, "x"))
    kube.run(*scale, "--replicas=1")
    wait_for("share pods to be accepted again", lambda: translates(kube))


def test_dry_runs_of_pools_go_through_either_configuration(kube: Kube) -> None:
    """By these the operator sees whether the webhook is reached: readiness.py."""
    for kind, spec, name in (
        ("mutatingwebhookconfiguration", ASKS_ALSO_THE_MUTATING, "numbers"),
        ("validatingwebhookconfiguration", {}, "quotas"),
    ):
        pool = default_pool(dict(spec))
        assert "failed calling webhook" not in answer(kube, pool)
        with led_astray(kube, kind):
            wait_for(
                "another service to be asked",
                lambda pool=pool, name=name: (  # type: ignore[misc]
                    f'failed calling webhook "{name}.mizar.share"' in answer(kube, pool)
                ),
            )
        wait_for(
            "the webhook to be asked again",
            lambda pool=pool: "failed calling webhook" not in answer(kube, pool),  # type: ignore[misc]
        )


def answer(kube: Kube, pool: Object) -> str:
    """What a dry run that creates the pool says."""
    return kube.attempt("create", "--dry-run=server", "--filename=-", input=json.dumps(pool))[1]


@contextmanager
def led_astray(kube: Kube, kind: str) -> Iterator[None]:
    """Inside, the configuration's webhooks name a service that does not exist."""
    found = kube.get(kind, WEBHOOK)
    assert found is not None

    def lead(service: str) -> None:
        where = "/clientConfig/service/name"
        places = (f"/webhooks/{at}{where}" for at in range(len(found["webhooks"])))
        patch = json.dumps([{"op": "replace", "path": one, "value": service} for one in places])
        kube.run("patch", kind, WEBHOOK, "--type=json", f"--patch={patch}")

    lead("nobody")
    try:
        yield
    finally:
        lead(found["webhooks"][0]["clientConfig"]["service"]["name"])
