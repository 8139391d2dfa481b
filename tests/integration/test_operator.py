"""The operator, as a process, on a real API server, scheduler and kubelet. The tests play the node
agent: they write the reports that an agent would write."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from cluster import Cluster
from mizar_core.names import ANNOTATION_CARVE, ANNOTATION_DRAIN, LABEL_SHARE_POD
from support import objects
from support.kube import Kube, Object, condition
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "mizar-operator-test"
PAUSE = "localhost/mizar/pause:dev"
IDLE_SECONDS = 2
ROUNDS = 'mizar_reconcile_duration_seconds_count{step="apply"}'
DELETIONS = 'mizar_actions_total{action="DeleteShadow",result="failed"}'


@dataclass
class OperatorProcess:
    """`mizar-operator` from this checkout, with the rights that the chart gives it."""

    kubeconfig: Path
    log: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, "-m", "mizar_operator.main", f"--kubeconfig={self.kubeconfig}"]
        argv += [f"--namespace={SYSTEM}", f"--pause-image={PAUSE}", f"--port={self.port}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        wait_for("the operator to lead", self.leads, 180, explain=self.log.read_text)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """End it; gives the seconds until it had ended."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(60)
        return time.monotonic() - began

    def leads(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return "mizar_leader 1.0" in self.page("/metrics")

    def page(self, path: str) -> str:
        try:
            url = f"http://127.0.0.1:{self.port}{path}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                return str(answer.read().decode())
        except OSError as error:
            raise AssertionError(str(error)) from error


@pytest.fixture(scope="module")
def kube(cluster: Cluster) -> Iterator[Kube]:
    """A cluster that knows the custom resources and a service account for the operator."""
    kube = Kube(cluster)
    kube.apply(ROOT / "crds", objects.namespace(SYSTEM))
    kube.run("wait", "--for=condition=Established", "--timeout=60s", f"--filename={ROOT / 'crds'}")
    rendered = cluster.helm(
        "template",
        "mizar",
        str(ROOT / "charts" / "mizar"),
        f"--namespace={SYSTEM}",
        "--kube-version=1.36.0",
        "--show-only=templates/operator/rbac.yaml",
    ).stdout
    kube.run("apply", "--filename=-", input=rendered)
    yield kube
    kube.run("delete", "--filename=-", "--ignore-not-found", input=rendered)
    kube.run("delete", "namespace", SYSTEM, "--wait=false")


@pytest.fixture(scope="module")
def operator(
    kube: Kube, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """The operator, running."""
    folder = tmp_path_factory.mktemp("operator")
    body = yaml.safe_load(cluster.kubeconfig.read_text())
    token = kube.run("create", "token", "mizar-operator", f"--namespace={SYSTEM}").strip()
    body["users"][0]["user"] = {"token": token}
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(body))
    kubeconfig.chmod(0o600)
    process = OperatorProcess(kubeconfig, folder / "operator.log", _free_port())
    process.start()
    yield process
    process.stop()
    print(process.log.read_text()[-8000:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@dataclass
class Tenant:
    """A namespace, a pool of its own, and the node agent's part."""

    kube: Kube
    name: str = field(default_factory=lambda: f"op-{uuid4().hex[:5]}")

    def quota(self, least: int, most: int) -> None:
        self.kube.apply(
            objects.namespace(self.name),
            objects.pool(self.name, idleTimeoutSeconds=IDLE_SECONDS),
            objects.quota(self.name, {"devices": 2, "min": least, "max": most}, pool=self.name),
        )
        self.kube.wait_namespaces(self.name)

    @property
    def resource(self) -> str:
        return f"{self.name}.mizar.share/gpu.2"

    def share(self, *names: str, resource: str = "", count: int = 1, **more: object) -> None:
        limits = {resource or self.resource: count}
        for name in names:
            container = {"name": "main", "image": PAUSE, "resources": {"limits": limits}}
            spec = {"containers": [container], "terminationGracePeriodSeconds": 1, **more}
            # As the webhook leaves it.
            labels = {LABEL_SHARE_POD: "true"}
            meta = {"name": name, "namespace": self.name, "labels": labels}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            self.kube.apply(pod)

    def shadows(self, count: int = 1, phase: str = "") -> list[Object]:
        """The ShadowPods, once there are that many in that phase."""

        def probe() -> list[Object] | None:
            found = self.kube.all("shadowpods", self.name)
            right = [one for one in found if phase in ("", one.get("status", {}).get("phase"))]
            assert len(found) == len(right) == count, [
                (one["metadata"]["name"], one.get("status", {}).get("phase")) for one in found
            ]
            return found or [{}]

        found = wait_for(f"{count} ShadowPods {phase}", probe)
        return found if count else []

    def pod_of(self, shadow: Object) -> Object | None:
        return self.kube.get("pod", shadow["metadata"]["name"], self.name)

    def agent(self, shadow: Object, stage: str = "Serving", holders: tuple[str, ...] = ()) -> None:
        """What the node agent would do about a running shadow pod."""
        name = shadow["metadata"]["name"]
        self.kube.wait_running(self.name, name)
        pod = self.pod_of(shadow)
        assert pod is not None
        node = pod["spec"]["nodeName"]
        carve = json.loads(pod["metadata"]["annotations"][ANNOTATION_CARVE])
        offered = carve["devices"] if stage == "Serving" else 0
        resources = {carve["resource"]: str(offered)}
        patch = {"status": {"capacity": resources, "allocatable": resources}}
        self.kube.run(
            "patch", "node", node, "--subresource=status", "--type=merge", f"-p={json.dumps(patch)}"
        )
        self.kube.run(
            "apply",
            "--server-side",
            "--subresource=status",
            "--field-manager=mizar-nodeagent",
            "--force-conflicts",
            "--filename=-",
            input=json.dumps(self._report(name, node, carve["devices"], stage, holders)),
        )

    def _report(
        self, name: str, node: str, devices: int, stage: str, holders: tuple[str, ...]
    ) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        health = "Healthy" if stage == "Serving" else "Unhealthy"
        listed = [
            {"id": f"{self.name}/{name}-{index}", "card": "GPU-1", "health": health}
            for index in range(devices)
        ]
        for device, holder in zip(listed, holders, strict=False):
            device["holder"] = {"namespace": self.name, "name": holder, "container": "main"}  # type: ignore[assignment]
        said = {
            "Ready": ("True" if stage == "Serving" else "False", stage),
            "PodInUsing": ("True" if holders else "False", "Held" if holders else "Idle"),
            "Healthy": ("True", "CardsWell"),
            "Draining": ("True", "Drained") if stage == "Drained" else ("False", "NotAsked"),
        }
        conditions = [
            {"type": type, "status": status, "reason": reason, "lastTransitionTime": now}
            for type, (status, reason) in said.items()
        ]
        status = {"node": node, "devices": listed, "conditions": conditions}
        return {
            "apiVersion": "mizar.share/v1alpha1",
            "kind": "ShadowPod",
            "metadata": {"name": name, "namespace": self.name},
            "status": status if holders else {**status, "idleSince": now},
        }

    def wait_drain(self, shadow: Object) -> None:
        def asked() -> bool:
            pod = self.pod_of(shadow)
            assert pod is not None
            return ANNOTATION_DRAIN in pod["metadata"]["annotations"]

        wait_for("the drain to be asked for", asked)

    def wait_event(self, about: str, reason: str) -> str:
        def probe() -> str | None:
            found = dict(self.kube.events(self.name, about))
            assert reason in found, str(found)
            return found[reason]

        return wait_for(f"an event {reason} on {about}", probe)

    def clear(self) -> None:
        """No agent will ever report that the devices are out of use, so the finalizers are removed
        by hand."""
        self.kube.run("delete", "namespace", self.name, "--wait=false", "--ignore-not-found")
        free = json.dumps({"metadata": {"finalizers": None}})
        for shadow in self.kube.all("shadowpods", self.name):
            name = shadow["metadata"]["name"]
            self.kube.attempt(
                "patch", "shadowpod", name, f"--namespace={self.name}", "--type=merge", f"-p={free}"
            )
        self.kube.wait_gone("namespace", "", self.name, timeout=240)
        self.kube.delete("gpupool", self.name)


@pytest.fixture
def tenant(kube: Kube, operator: OperatorProcess) -> Iterator[Tenant]:
    """A tenant of its own for each test."""
    made = Tenant(kube)
    try:
        yield made
    finally:
        made.clear()


def test_from_demand_to_reaping(tenant: Tenant) -> None:
    """A shadow pod is created for two pods at once, gets ready, is held, idle and drained; then its
    card is free again."""
    tenant.quota(0, 2)
    tenant.share("one", "two")
    (shadow,) = tenant.shadows()
    tenant.agent(shadow)
    tenant.kube.wait_running(tenant.name, "one", "two")
    tenant.agent(shadow, holders=("one", "two"))
    (shadow,) = tenant.shadows(1, "Ready")
    assert condition(shadow, "Scheduled")["status"] == "True"

    def counted() -> bool:
        quota = tenant.kube.get("gpuquota", "gpus", tenant.name)
        assert quota is not None
        assert (quota["status"]["inUse"], quota["status"]["ready"]) == (2, 0), quota["status"]
        return True

    wait_for("the quota to count them", counted)
    tenant.kube.run("delete", "pod", "one", "two", f"--namespace={tenant.name}")
    tenant.agent(shadow)
    tenant.wait_drain(shadow)
    tenant.agent(shadow, "Drained")
    tenant.shadows(0)
    tenant.kube.wait_gone("pod", tenant.name, shadow["metadata"]["name"])
    tenant.wait_event(shadow["metadata"]["name"], "ShadowReaped")


def test_a_pod_bound_in_the_middle_of_a_drain(tenant: Tenant, operator: OperatorProcess) -> None:
    """Invariant 3: the API server, asked live, knows of a user that no report names yet."""
    tenant.quota(0, 1)
    tenant.share("one")
    (shadow,) = tenant.shadows()
    tenant.agent(shadow)
    tenant.kube.wait_running(tenant.name, "one")
    name = shadow["metadata"]["name"]
    tenant.kube.delete("shadowpod", name, tenant.name, "--wait=false")
    tenant.wait_drain(shadow)
    before = figure(operator, DELETIONS)
    tenant.agent(shadow, "Drained")
    wait_for(
        "the operator to have come twice to delete it",
        lambda: figure(operator, DELETIONS) >= before + 2,
    )
    pod = tenant.pod_of(shadow)
    assert pod is not None
    assert "deletionTimestamp" not in pod["metadata"]
    tenant.agent(shadow, holders=("one",))

    def called_off() -> bool:
        pod = tenant.pod_of(shadow)
        assert pod is not None
        return ANNOTATION_DRAIN not in pod["metadata"]["annotations"]

    wait_for("the drain to be called off", called_off)


def figure(operator: OperatorProcess, name: str) -> float:
    """A metric of the operator, 0 as long as there is none of that name and labels."""
    lines = operator.page("/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def test_no_card_free(tenant: Tenant) -> None:
    """The ShadowPod, the quota and the waiting pod say so, until no pod waits any more."""
    tenant.quota(0, 2)
    tenant.share("whole", resource="nvidia.com/gpu", count=2)
    tenant.kube.wait_running(tenant.name, "whole")
    tenant.share("one")
    message = tenant.wait_event("one", "NoCardFree")
    assert "nvidia.com/gpu" in message

    def told() -> bool:
        (shadow,) = tenant.shadows(1, "Pending")
        assert condition(shadow, "Scheduled")["reason"] == "Unschedulable"
        quota = tenant.kube.get("gpuquota", "gpus", tenant.name)
        assert quota is not None
        assert condition(quota, "Satisfied")["reason"] == "NoCardFree"
        return True

    wait_for("ShadowPod and quota to say so", told)
    tenant.kube.run("delete", "pod", "one", f"--namespace={tenant.name}")
    tenant.shadows(0)


def test_quota_exceeded(tenant: Tenant) -> None:
    tenant.quota(0, 1)
    # Of pods created in the same second, the last by name comes last.
    tenant.share("a", "b", "c")
    assert "gpus" in tenant.wait_event("c", "QuotaExceeded")
    tenant.shadows(1)


def test_a_namespace_without_a_quota_gets_the_pools_default(tenant: Tenant) -> None:
    """As soon as a pod waits there; when it is deleted while one does, it comes again."""
    default = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": tenant.name}},
        "profiles": [{"devices": 2, "max": 1}],
    }
    tenant.kube.apply(
        objects.namespace(tenant.name),
        objects.pool(tenant.name, idleTimeoutSeconds=IDLE_SECONDS, defaultQuota=default),
    )
    tenant.kube.wait_namespaces(tenant.name)
    tenant.share("one")
    (shadow,) = tenant.shadows()
    quota = tenant.kube.get("gpuquota", tenant.name, tenant.name)
    assert quota is not None
    assert quota["metadata"]["labels"]["mizar.share/default-quota"] == tenant.name
    assert shadow["spec"]["quota"] == tenant.name
    tenant.agent(shadow)
    tenant.kube.wait_running(tenant.name, "one")
    tenant.share("two", "wide")
    assert tenant.name in tenant.wait_event("wide", "QuotaExceeded")
    tenant.kube.delete("gpuquota", tenant.name, tenant.name, "--wait=false")
    before = quota["metadata"]["uid"]

    def again() -> bool:
        made = tenant.kube.get("gpuquota", tenant.name, tenant.name)
        return made is not None and made["metadata"]["uid"] != before

    wait_for("the quota to be made again", again)


def test_killed_in_the_middle(tenant: Tenant, operator: OperatorProcess) -> None:
    """Invariant 5: what pods asked for while no operator led is made once."""
    tenant.quota(1, 2)
    operator.stop(signal.SIGKILL)
    tenant.share("one", "two", "three")
    operator.start()
    tenant.shadows(2)
    before = figure(operator, ROUNDS)
    tenant.kube.run("annotate", "gpuquota", "gpus", "look=again", f"--namespace={tenant.name}")
    wait_for("another round", lambda: figure(operator, ROUNDS) > before)
    tenant.shadows(2)


def test_deleting_drains_first(tenant: Tenant) -> None:
    """A ShadowPod that a user deletes, and those of a deleted quota."""
    tenant.quota(1, 1)
    (shadow,) = tenant.shadows()
    tenant.agent(shadow)
    name = shadow["metadata"]["name"]
    tenant.kube.delete("shadowpod", name, tenant.name, "--wait=false")
    tenant.wait_drain(shadow)
    tenant.agent(shadow, "Drained")
    tenant.kube.wait_gone("shadowpod", tenant.name, name)
    (replacement,) = tenant.shadows()
    assert replacement["metadata"]["name"] != name
    tenant.agent(replacement)
    tenant.kube.delete("gpuquota", "gpus", tenant.name, "--wait=false")
    tenant.wait_drain(replacement)
    tenant.agent(replacement, "Drained")
    tenant.shadows(0)


def test_eviction_is_a_loss(tenant: Tenant) -> None:
    tenant.quota(1, 2)
    # It has a phase once the operator has seen its pod, whose deletion is a loss from then on.
    (shadow,) = tenant.shadows(1, "Pending")
    name = shadow["metadata"]["name"]
    tenant.kube.delete("pod", name, tenant.name)
    tenant.kube.wait_gone("shadowpod", tenant.name, name)
    tenant.wait_event(name, "ShadowLost")
    (replacement,) = tenant.shadows()
    assert replacement["metadata"]["name"] != name


def adding(tenant: Tenant, name: str, path: str, value: str) -> list[Object]:
    """What changes all pods with whole cards of the tenant's namespace, as policies do that
    administrators have. `value`: what is added at the path, in CEL."""
    meta = {"name": f"{tenant.name}-{name}"}
    api = "admissionregistration.k8s.io/v1"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": tenant.name}}
    patch = f'[JSONPatch{{op: "add", path: "{path}", value: {value}}}]'
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "namespaceSelector": here,
            "resourceRules": [{**pods, "operations": ["CREATE"]}],
        },
        "matchConditions": [
            {
                "name": "cards",
                "expression": "object.spec.containers.exists(c, has(c.resources.limits) && "
                "'nvidia.com/gpu' in c.resources.limits)",
            }
        ],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    return [
        {"apiVersion": api, "kind": "MutatingAdmissionPolicy", "metadata": meta, "spec": policy},
        {
            "apiVersion": api,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": meta,
            "spec": {"policyName": meta["name"]},
        },
    ]


@pytest.fixture
def elsewhere(tenant: Tenant) -> Iterator[None]:
    """Pods with whole cards of the tenant get a node selector that no node has, as by a namespace's
    default."""
    found = adding(tenant, "selector", "/spec/nodeSelector", "{'team': 'elsewhere'}")
    tenant.kube.apply(objects.namespace(tenant.name), *found)
    tenant.kube.wait_namespaces(tenant.name)
    pod = objects.whole_card_pod(tenant.name, "probe")
    try:
        wait_for("the policy to be on", lambda: "elsewhere" in dry_run(tenant.kube, pod))
        yield
    finally:
        for one in found:
            tenant.kube.delete(one["kind"].lower(), one["metadata"]["name"])


def dry_run(kube: Kube, pod: Object) -> str:
    body = json.dumps(pod)
    return kube.run("create", "--dry-run=server", "--output=json", "--filename=-", input=body)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("least", [0, 1])
def test_what_admission_adds_to_shadow_pods_is_no_reason_to_make_them_anew(
    tenant: Tenant, least: int
) -> None:
    """Neither for a pod that waits nor to keep one warm: the next one would get it as well."""
    tenant.quota(least, 1)
    if not least:
        tenant.share("one")
        assert "elsewhere" not in tenant.wait_event("one", "NoNodeFits")
    (shadow,) = tenant.shadows(1, "Pending")
    name = shadow["metadata"]["name"]
    wait_for("the scheduler to refuse it", lambda: _is_refused(tenant, name))
    # From then on, what the planner does about it depends on what it sees, and never on time:
    # `_due` in core/mizar_core/planning/plan.py has no moment for a pod without a node.
    tenant.kube.wait_planned_again("gpuquota", "gpus", tenant.name)
    (same,) = tenant.shadows(1, "Pending")
    assert same["metadata"]["name"] == name


def _is_refused(tenant: Tenant, shadow: str) -> bool:
    found = tenant.kube.get("shadowpod", shadow, tenant.name)
    assert found is not None, f"shadow pod {shadow} was made anew"
    return bool(condition(found, "Scheduled")["reason"] == "Unschedulable")


@pytest.fixture
def home(tenant: Tenant) -> Iterator[str]:
    """A claim of the tenant's whose volume only a node of the zone west can have, which is none."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["west"]}]}]
    size, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": tenant.name},
        "spec": {
            "capacity": size,
            "accessModes": modes,
            "claimRef": {"namespace": tenant.name, "name": "home"},
            "hostPath": {"path": "/tmp"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "home", "namespace": tenant.name},
        "spec": {
            "accessModes": modes,
            "resources": {"requests": size},
            "storageClassName": "",
            "volumeName": tenant.name,
        },
    }
    tenant.quota(0, 1)
    tenant.kube.apply(volume, claim)
    yield "home"
    tenant.kube.delete("persistentvolume", tenant.name, None, "--wait=false")


def test_a_shadow_pod_goes_where_the_pods_volume_is(tenant: Tenant, home: str) -> None:
    volume = {"name": "home", "persistentVolumeClaim": {"claimName": home}}
    tenant.share("one", volumes=[volume])
    (shadow,) = tenant.shadows(1, "Pending")
    pod = tenant.pod_of(shadow)
    assert pod is not None
    wanted = pod["spec"]["affinity"]["nodeAffinity"]
    (term,) = wanted["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": "zone", "operator": "In", "values": ["west"]} in term["matchExpressions"]
    assert "node affinity" in tenant.wait_event("one", "NoNodeFits")


def test_probes_and_metrics(tenant: Tenant, operator: OperatorProcess) -> None:
    tenant.quota(1, 1)
    tenant.shadows()
    wait_for(
        "it to be well", lambda: operator.page("/healthz") == operator.page("/readyz") == "ok\n"
    )
    labels = f'namespace="{tenant.name}",profile="2",quota="gpus"'
    wait_for(
        "the quota's figures",
        lambda: f"mizar_quota_shadow_pods{{{labels}}} 1.0" in operator.page("/metrics"),
    )


def test_sigterm_ends_it_promptly(operator: OperatorProcess, kube: Kube) -> None:
    assert operator.stop() < 15  # seconds; every wait of its own ends sooner
    assert operator.process is not None
    assert operator.process.returncode == 0
    lease = kube.get("lease", "mizar-operator", SYSTEM)
    assert lease is not None
    log = operator.log.read_text()
    # It does not wait long for an API server that is slow to answer, and says so.
    assert not lease["spec"].get("holderIdentity") or "the lease was not released" in log
    assert "Traceback" not in log, log
    assert "is forbidden: User" not in log, log
    operator.start()
