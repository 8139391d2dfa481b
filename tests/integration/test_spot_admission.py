"""Spot pods on a real API server: what admission does to them, who opens their gate and when, and
what node agents may write about pods.

Webhook and operator run. No node agent does, and its part is played by hand: no card is lendable
unless a test says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster
from mizar_core.model_base import format_time
from support import escapes, objects
from support.admission import OTHER, RELEASE, SYSTEM, TENANT, Agent, dry_run, refusal, released
from support.kube import Kube, Object
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CLASS = f"{RELEASE}-spot-pods"
GATE = {"name": "mizar.share/spot"}
OPERATOR = f"--as=system:serviceaccount:{SYSTEM}:{RELEASE}-operator"
NOWHERE = {"nodeSelector": {"mizar.share/nowhere": "true"}}
LENDS = json.dumps({"spec": {"spot": {"enabled": True}}})
FORCE = ("--grace-period=0", "--force")


@pytest.fixture(scope="module")
def kube(cluster: Cluster) -> Iterator[Kube]:
    with released(cluster, operator=True) as kube:
        lends = {"pool": RELEASE, "spot": {"max": 2}}
        kube.apply(objects.quota(TENANT, {"devices": 2, "max": 1}, **lends))
        yield kube


@pytest.fixture
def spot(kube: Kube) -> Iterator[Object]:
    """A spot pod that waits for its turn."""
    kube.apply(objects.spot_pod(TENANT, "spot", **NOWHERE))
    found = kube.get("pod", "spot", TENANT)
    assert found is not None
    try:
        yield found
    finally:
        kube.delete("pod", "spot", TENANT, *FORCE)


def test_a_spot_pod_waits_for_its_turn(kube: Kube) -> None:
    """It has the priority of its class, which the API server computes anew."""
    pod = dry_run(kube, objects.spot_pod(TENANT, "x"))
    assert pod["metadata"]["labels"] == {"mizar.share/spot-pod": "true"}
    spec = pod["spec"]
    assert spec["schedulingGates"] == [GATE]
    assert (spec["priorityClassName"], spec["priority"]) == (CLASS, -1000)
    assert spec["preemptionPolicy"] == "Never"


def test_what_the_pod_says_itself_stays(kube: Kube) -> None:
    own: Object = {
        "priorityClassName": f"{RELEASE}-patient",
        "schedulingGates": [{"name": "example.com/mine"}],
    }
    priority_class(kube, own["priorityClassName"], preemptionPolicy="Never")
    pod = objects.spot_pod(TENANT, "x", **own)
    ask = ("create", "--dry-run=server", "--filename=-")
    # The API server's admission hears of the class a little later than it is created.
    wait_for("the class", lambda: kube.attempt(*ask, input=json.dumps(pod))[0] == 0)
    spec = dry_run(kube, pod)["spec"]
    kube.delete("priorityclass", own["priorityClassName"])
    assert spec["schedulingGates"] == [{"name": "example.com/mine"}, GATE]
    assert (spec["priorityClassName"], spec["priority"]) == (own["priorityClassName"], 5)


def priority_class(kube: Kube, name: str, **fields: Any) -> None:
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 5}
    kube.apply({**head, "metadata": {"name": name}, **fields})


def test_a_spot_pod_preempts_nobody_by_a_class_of_its_own(kube: Kube) -> None:
    pod = objects.spot_pod(TENANT, "x", priorityClassName="system-cluster-critical")
    assert (
        "a pod that borrows cards must not preempt others, but its PriorityClass"
        " system-cluster-critical allows that: use one whose preemptionPolicy is Never,"
        f" such as {CLASS}"
    ) in refusal(kube, pod)


def test_a_job_makes_spot_pods(kube: Kube) -> None:
    """Its pods have a controller; its template is left as it is."""
    pod = objects.spot_pod(TENANT, "x", **NOWHERE, restartPolicy="Never")["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}
    kube.apply(job | {"metadata": {"name": "job", "namespace": TENANT}})
    (made,) = wait_for("the pod", lambda: kube.all("pods", TENANT, "job-name=job"))
    assert made["spec"]["schedulingGates"] == [GATE]
    assert made["spec"]["priority"] == -1000
    kube.delete("job", "job", TENANT)


def beside(resource: str) -> Object:
    other = objects.spot_pod(TENANT, "x")["spec"]["containers"][0]
    other |= {"name": "two", "resources": {"limits": {resource: 1}}}
    pod = objects.spot_pod(TENANT, "x")
    pod["spec"]["containers"].append(other)
    return pod


def lonely() -> Object:
    pod = objects.spot_pod(TENANT, "x")
    del pod["metadata"]["annotations"]
    return pod


REFUSED: dict[str, tuple[Object, str]] = {
    "whole cards beside": (beside("nvidia.com/gpu"), "neither whole cards nor shares: use another"),
    "an instance beside": (
        beside("nvidia.com/mig-1g.5gb"),
        "neither whole cards nor shares: use another",
    ),
    "a time slice beside": (
        beside("nvidia.com/gpu.shared"),
        "neither whole cards nor shares: use another",
    ),
    "shares beside": (beside("mizar.share/gpu.2"), "neither whole cards nor shares: use another"),
    "nothing replaces it": (lonely(), 'set the annotation mizar.share/may-be-lost: "true"'),
    "too many": (
        objects.spot_pod(TENANT, "x", 3),
        "asks for 3 cards, and spot.max of the GPUQuotas",
    ),
    "no quota": (objects.spot_pod(OTHER, "x"), "may not borrow cards: it needs spot.max above 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_to_do(kube: Kube, case: str) -> None:
    pod, sentence = REFUSED[case]
    assert sentence in refusal(kube, pod)


@pytest.mark.parametrize("name", ["mizar.spot.gpu", "mizar.spot/gpus"])
def test_a_name_that_means_a_spot_card_and_is_none(kube: Kube, name: str) -> None:
    pod = objects.spot_pod(TENANT, "x")
    pod["spec"]["containers"][0]["resources"] = {"limits": {name: 1}}
    assert f"{name}: there is no such resource: write mizar.spot/gpu" in refusal(kube, pod)


def test_a_template_may_come_before_its_quota(kube: Kube) -> None:
    pod = objects.spot_pod(OTHER, "x", restartPolicy="Never")["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}
    body = json.dumps(job | {"metadata": {"name": "early", "namespace": OTHER}})
    said = kube.attempt("create", "--dry-run=server", "--filename=-", input=body)
    assert said[0] == 0
    assert "Warning: mizar.spot/gpu: namespace" in said[1]


def test_a_quota_and_a_spot_pod_in_one_go(kube: Kube) -> None:
    """The pod comes milliseconds after the quota that it needs."""
    quota = objects.quota(OTHER, pool=RELEASE, spot={"max": 1})
    kube.apply(quota, objects.spot_pod(OTHER, "quick", **NOWHERE))
    kube.delete("pod", "quick", OTHER, *FORCE)
    kube.delete("gpuquota", "gpus", OTHER)


def note(key: str, value: str) -> Object:
    pod = objects.plain_pod(TENANT, "x")
    pod["metadata"]["annotations"] = {f"mizar.share/{key}": value}
    return pod


@pytest.mark.parametrize("key", ["low-power", "may-be-lost", "spot-notice", "spot-grace"])
def test_a_note_that_means_nothing_is_refused(kube: Kube, key: str) -> None:
    """This holds for every pod: owners of cards have such annotations too."""
    said = refusal(kube, note(key, "yes"))
    assert f"annotation mizar.share/{key}: write " in said
    dry_run(kube, note(key, "true" if key in ("low-power", "may-be-lost") else "5"))


class TestGate:
    """Only the operator decides whose turn it is."""

    OPEN = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])

    def test_only_the_operator_opens_it(self, kube: Kube, spot: Object) -> None:
        ask = ("patch", "pod", "spot", f"--namespace={TENANT}", "--type=json")
        status, said = kube.attempt(*ask, f"--patch={self.OPEN}")
        assert status != 0
        assert "only Mizar's operator may remove the scheduling gate mizar.share/spot" in said
        kube.run(*ask, f"--patch={self.OPEN}", OPERATOR)
        found = kube.get("pod", "spot", TENANT)
        assert found is not None
        assert "schedulingGates" not in found["spec"]

    def test_others_change_the_rest(self, kube: Kube, spot: Object) -> None:
        kube.run("label", "pod", "spot", f"--namespace={TENANT}", "app=x")

    @pytest.mark.parametrize("value", [None, "false"])
    def test_the_label_stays(self, kube: Kube, spot: Object, value: str | None) -> None:
        patch = json.dumps({"metadata": {"labels": {"mizar.share/spot-pod": value}}})
        status, said = kube.attempt(
            "patch", "pod", "spot", f"--namespace={TENANT}", f"--patch={patch}"
        )
        assert status != 0
        assert "mizar.share/spot-pod cannot be added, changed or removed" in said

    def test_the_operator_does_nothing_else_to_it(self, kube: Kube, spot: Object) -> None:
        ask = ("patch", "pod", "spot", f"--namespace={TENANT}", OPERATOR, "--type=json")
        for more in (
            {"op": "replace", "path": "/spec/containers/0/image", "value": "evil:1"},
            {"op": "add", "path": "/metadata/labels/a", "value": "b"},
            {"op": "add", "path": "/spec/nodeSelector/a", "value": "b"},
        ):
            status, said = kube.attempt(*ask, f"--patch={json.dumps([more])}")
            assert status != 0, said
            assert (
                "opens its gates of spot pods and share pods, and changes nothing else of them"
                in said
            )

    def test_where_the_webhook_does_not_look_there_is_no_way_around(self, kube: Kube) -> None:
        pod = objects.spot_pod("kube-system", "x")
        assert "the pod requests mizar.spot/gpu, but Mizar's webhook" in refusal(kube, pod)
        pod["metadata"]["labels"] = {"mizar.share/spot-pod": "true"}
        assert "did not process it" in refusal(kube, pod)
        pod["spec"]["schedulingGates"] = [GATE]
        said = refusal(kube, pod)
        assert "must not preempt others, but its PriorityClass allows that: use one" in said
        pod["spec"]["priorityClassName"] = CLASS
        dry_run(kube, pod)

    def test_a_pod_that_names_its_node_does_not_get_past_it(self, kube: Kube) -> None:
        said = refusal(kube, objects.spot_pod(TENANT, "x", nodeName="somewhere"))
        assert "cannot be set until all schedulingGates have been cleared" in said

    def test_the_operator_ends_spot_pods(self, kube: Kube, spot: Object) -> None:
        kube.run("delete", "pod", "spot", f"--namespace={TENANT}", "--dry-run=server", OPERATOR)


@pytest.mark.parametrize("case", escapes.ESCAPES)
def test_what_escapes_a_share_escapes_no_borrowed_card(kube: Kube, case: str) -> None:
    changes, sentence = escapes.ESCAPES[case]
    pod = escapes.escaping(TENANT, changes)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"mizar.spot/gpu": 1}}
    notes = pod["metadata"].setdefault("annotations", {})
    notes["mizar.share/may-be-lost"] = "true"
    assert sentence in refusal(kube, pod)


class TestAgent:
    """What node agents may write about the pods of their own node."""

    @pytest.fixture
    def borrower(self, kube: Kube) -> Iterator[Object]:
        """A spot pod that is on the node as far as the API server knows."""
        node = kube.all("nodes")[0]["metadata"]["name"]
        pod = objects.spot_pod(TENANT, "borrower", **NOWHERE)
        kube.apply(pod)
        where = ("patch", "pod", "borrower", f"--namespace={TENANT}", "--type=json", OPERATOR)
        kube.run(*where, f"--patch={TestGate.OPEN}")
        self.bind(kube, "borrower", node)
        found = kube.get("pod", "borrower", TENANT)
        assert found is not None
        try:
            yield found
        finally:
            kube.delete("pod", "borrower", TENANT, *FORCE)

    def bind(self, kube: Kube, pod: str, node: str) -> None:
        body: Any = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}}
        body |= {"target": {"kind": "Node", "name": node}}
        path = f"/api/v1/namespaces/{TENANT}/pods/{pod}/binding"
        kube.run("create", "--raw", path, "--filename=-", input=json.dumps(body))

    def test_conditions_of_ours_and_no_others(
        self,
        kube: Kube,
        cluster: Cluster,
        tmp_path: Path,
        borrower: Object,
        request: pytest.FixtureRequest,
    ) -> None:
        node = borrower["spec"]["nodeName"]
        agent = Agent(kube, cluster, node, tmp_path)
        kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "elsewhere"}})
        request.addfinalizer(lambda: kube.delete("node", "elsewhere"))
        stranger = Agent(kube, cluster, "elsewhere", tmp_path)

        def condition(kind: str, reason: str, status: str = "True") -> Object:
            return {"conditions": [{"type": kind, "status": status, "reason": reason}]}

        back = condition("DisruptionTarget", "OwnerBack")
        assert (
            "of pods on its own node, elsewhere, only" in stranger.apply_status(borrower, back)[1]
        )
        for status, sentence in (
            (condition("DisruptionTarget", "PreemptionByScheduler"), "for the reasons for which"),
            (condition("DisruptionTarget", "QuotaReclaim"), "for the reasons for which"),
            (condition("Ready", "Ready"), "mizar.share/isolation-enforced and DisruptionTarget"),
            ({"message": "gone"}, "mizar.share/isolation-enforced and DisruptionTarget"),
            (condition("mizar.share/card-access", "NRI"), "of its own pod"),
        ):
            assert sentence in agent.apply_status(borrower, status)[1]
        assert agent.apply_status(borrower, condition("mizar.share/active", "Asleep", "False")) == (
            0,
            "",
        )
        borrows = condition("mizar.share/borrows", "CardBorrowed")
        assert agent.apply_status(borrower, borrows) == (0, "")
        assert agent.apply_status(borrower, back) == (0, "")

    def test_an_agent_may_not_mark_a_pod_that_borrows_no_card_as_disrupted(
        self, kube: Kube, cluster: Cluster, tmp_path: Path
    ) -> None:
        kube.apply(objects.plain_pod(TENANT, "owner", **NOWHERE))
        node = kube.all("nodes")[0]["metadata"]["name"]
        self.bind(kube, "owner", node)
        owner = kube.get("pod", "owner", TENANT)
        assert owner is not None
        agent = Agent(kube, cluster, node, tmp_path)
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "OwnerBack"}
        said = agent.apply_status(owner, {"conditions": [condition]})[1]
        assert "disrupts spot pods only" in said
        kube.delete("pod", "owner", TENANT, *FORCE)

    def test_the_rules_of_lending_are_read_by_agents_and_written_by_the_operator(
        self, kube: Kube
    ) -> None:
        here = (f"--namespace={SYSTEM}", "configmap/mizar-spot")
        agent = f"--as=system:serviceaccount:{SYSTEM}:{RELEASE}-nodeagent"
        for who, verb, may in (
            (agent, "get", "yes"),
            (agent, "watch", "yes"),
            (agent, "patch", "no"),
            (OPERATOR, "patch", "yes"),
        ):
            assert kube.attempt("auth", "can-i", verb, *here, who)[1].strip().endswith(may)


PAUSE = "localhost/mizar/pause:dev"


def pausing(name: str, **spec: Any) -> Object:
    """A spot pod that runs on the cluster's node, where nothing knows of its card."""
    pod = objects.spot_pod(TENANT, name, **spec)
    container = {"name": "main", "image": PAUSE, "imagePullPolicy": "Never"}
    resources = pod["spec"]["containers"][0]["resources"]
    pod["spec"]["containers"] = [container | {"resources": resources}]
    return pod


class TestTurns:
    """The operator with the real scheduler, as far as a pod gets without a card."""

    @pytest.fixture
    def node(self, kube: Kube) -> Iterator[str]:
        """A node that offers one card to borrow, as its agent would say."""
        name = str(kube.all("nodes")[0]["metadata"]["name"])
        self.offer(kube, name, "1")
        kube.run("patch", "gpupool", RELEASE, "--type=merge", f"--patch={LENDS}")
        try:
            yield name
        finally:
            self.offer(kube, name, None)
            kube.run("delete", "pods", f"--namespace={TENANT}", "--all", *FORCE)

    def offer(self, kube: Kube, node: str, cards: str | None) -> None:
        count = {"mizar.spot/gpu": cards}
        patch = json.dumps({"status": {"capacity": count, "allocatable": count}})
        how = ("--subresource=status", "--type=merge")
        kube.run("patch", "node", node, *how, f"--patch={patch}")

    def borrowed(self, kube: Kube) -> Object:
        quota = kube.get("gpuquota", "gpus", TENANT)
        assert quota is not None
        return dict((quota.get("status") or {}).get("spot") or {})

    def test_pods_take_turns_and_give_back(self, kube: Kube, node: str) -> None:
        kube.apply(pausing("first"))
        kube.wait_running(TENANT, "first")
        kube.apply(pausing("second"))
        waits = wait_for(
            "an event that says why it waits",
            lambda: [m for r, m in kube.events(TENANT, "second") if r == "SpotWaiting"],
        )
        assert waits == ["waits for its turn: no card of a sleeping owner is free; it is next"]
        wait_for("the figures", lambda: self.borrowed(kube).get("waiting") == 1)
        assert self.borrowed(kube)["inUse"] == 1
        wait_for("the pool's figure", lambda: self.lent(kube) == 1)

        # The node agent has ended the pod, and says so. Without a time the disruption controller
        # would take the condition for an old one, and withdraw it.
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "OwnerBack"}
        condition["lastTransitionTime"] = format_time(datetime.now(UTC))
        patch = json.dumps({"status": {"conditions": [condition]}})
        here = (f"--namespace={TENANT}", "--subresource=status", "--type=strategic")
        kube.run("patch", "pod", "first", *here, f"--patch={patch}")
        kube.wait_gone("pod", TENANT, "first")
        kube.wait_running(TENANT, "second")

        # A smaller quota takes the card back.
        small = json.dumps({"spec": {"spot": {"max": 0}}})
        quota = ("patch", "gpuquota", "gpus", f"--namespace={TENANT}", "--type=merge")
        kube.run(*quota, f"--patch={small}")
        kube.wait_gone("pod", TENANT, "second")
        wait_for("its event", lambda: "SpotEvicted" in dict(kube.events(TENANT, "second")))
        kube.run(*quota, f"--patch={small.replace('0', '2')}")
        wait_for("nothing is borrowed", lambda: self.borrowed(kube).get("inUse") == 0)
        wait_for("the pool's figure", lambda: self.lent(kube) == 0)
        assert self.borrowed(kube)["recentCardSeconds"] >= 0

    def lent(self, kube: Kube) -> int:
        pool = kube.get("gpupool", RELEASE)
        assert pool is not None
        return int(((pool.get("status") or {}).get("cards") or {}).get("lent", -1))

    def test_a_pool_says_what_is_lent_and_agents_learn_the_rules(
        self, kube: Kube, node: str
    ) -> None:
        shown = kube.run("get", "gpupool", RELEASE).splitlines()
        assert "LENT" in shown[0]
        found = wait_for("the rules", lambda: self.rules(kube))
        assert found[0]["pool"] == RELEASE

        def told() -> bool:
            pool = kube.get("gpupool", RELEASE)
            assert pool is not None
            kinds = {one["type"]: one["status"] for one in pool["status"]["conditions"]}
            assert "Ready" in kinds, "both writers of the status have their part"
            return kinds["Lending"] == "True"

        wait_for("the pool to say that it lends", told)

    def rules(self, kube: Kube) -> list[Object]:
        found = kube.get("configmap", "mizar-spot", SYSTEM)
        text = ((found or {}).get("data") or {}).get("rules.json", '{"rules":[]}')
        return list(json.loads(text)["rules"])
