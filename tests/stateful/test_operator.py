"""The operator in a cluster where everything happens at once, too late, or not at all.

After each step: a device has one holder, of its own tenant (invariants 1 and 2); no pod loses a
card because the operator gave it away (3); no quota is exceeded; planning again plans nothing (6).
In the end everything settles from whatever state it is in, crashes included (5).
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mizar_core.names import BUDGET_NAME, LABEL_IN_USE, LABEL_SHADOW_POD
from mizar_core.planning import plan
from mizar_kube.errors import Conflict, KubeError, Unavailable
from mizar_kube.kinds import BUDGET, GPU_QUOTA, NODE, POD, SHADOW_POD, Object
from stateful.harness import KINDS, Harness
from stateful.memory_api import Crash, Write
from stateful.model import Model
from support.effort import effort
from support.projection import apply_plan

NAMESPACES = ("team-a", "team-b")
SIZES = (2, 4)
NODES = ("n1", "n2")
PRIORITIES = (0, 100)
"""Pods with the second one get a scheduling gate."""

limits = st.tuples(st.integers(0, 1), st.integers(0, 2)).map(
    lambda pair: {"min": min(pair), "max": max(pair)}
)
faults = st.none() | st.tuples(st.sampled_from(["conflict", "away", "crash"]), st.integers(0, 6))

OFTEN = {
    "create ShadowPod",
    "create Pod",
    "create PodDisruptionBudget",
    "patch ShadowPod",
    "patch Pod",
    "delete ShadowPod",
    "delete Pod",
    "a write fails",
    "a device is held",
    "a device is held whose shadow pod was evicted",
    "a gate is opened",
}
"""What must occur among REACHING runs of the machine, before they settle."""
REACHING = 16
"""Runs, which with `make check` are almost all that there are."""


class Cluster(RuleBasedStateMachine):
    """See the module. `reached`: what happened in any of the runs before they settle."""

    reached: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.settles = False
        self.model = Model()
        self.down: set[str] = set()
        self.shares = 0

    @initialize(a=limits, b=limits)
    def start(self, a: dict[str, int], b: dict[str, int]) -> None:
        for node in NODES:
            self.model.add_node(node, by_dra=node == NODES[-1])
        self.model.add_class()
        self.model.add_pool(idleTimeoutSeconds=60)
        for namespace, one in zip(NAMESPACES, (a, b), strict=True):
            self.model.add_quota(namespace, [{"devices": size, **one} for size in SIZES])
        self.operator = Harness(self.model)

    def note(self, what: str) -> None:
        """Note that something has happened that the machine is for."""
        if not self.settles:
            event(what)
            self.reached[what] += 1

    # People.

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        size=st.sampled_from(SIZES),
        count=st.integers(1, 4),
        priority=st.sampled_from(PRIORITIES),
    )
    def create_share(self, namespace: str, size: int, count: int, priority: int) -> None:
        self.shares += 1
        resource, name = f"{namespace}.mizar.share/gpu.{size}", f"p{self.shares}"
        self.model.add_share(namespace, name, resource, min(count, size), priority=priority)

    @precondition(lambda self: self._share_pods())
    @rule(at=st.integers(0, 100), ends=st.booleans())
    def end_share(self, at: int, ends: bool) -> None:
        pods = self._share_pods()
        pod = pods[at % len(pods)]
        if ends and pod["status"]["phase"] == "Running":
            pod["status"]["phase"] = "Succeeded"
            self.model.api.touch(pod)
        else:
            self.model.api.start_delete(pod)

    @rule(namespace=st.sampled_from(NAMESPACES), one=limits, cards=st.none() | st.integers(1, 3))
    def change_quota(self, namespace: str, one: dict[str, int], cards: int | None) -> None:
        spec = {} if cards is None else {"maxCards": cards}
        self.model.add_quota(namespace, [{"devices": size, **one} for size in SIZES], **spec)

    @rule(namespace=st.sampled_from(NAMESPACES))
    def delete_quota(self, namespace: str) -> None:
        quota = self.model.api.find(GPU_QUOTA, "quota", namespace)
        if quota is not None:
            self.model.api.start_delete(quota)

    @precondition(lambda self: self._shadows())
    @rule(at=st.integers(0, 100))
    def delete_shadow(self, at: int) -> None:
        shadows = self._shadows()
        self.model.api.start_delete(shadows[at % len(shadows)])

    @precondition(lambda self: self._shadows())
    @rule(at=st.integers(0, 100))
    def evict(self, at: int) -> None:
        meta = self._shadows()[at % len(self._shadows())]["metadata"]
        pod = self.model.api.find(POD, meta["name"], meta["namespace"])
        if pod is not None:
            self.model.lost.add((meta["namespace"], meta["name"]))
            self.model.api.start_delete(pod)

    # Machines.

    @rule()
    def schedule(self) -> None:
        self.model.schedule()

    @rule(node=st.sampled_from(NODES))
    def kubelet(self, node: str) -> None:
        self.model.kubelet(node)

    @rule(node=st.sampled_from(NODES))
    def agent(self, node: str) -> None:
        if node not in self.down:
            self.model.agent(node)

    @rule(node=st.sampled_from(NODES))
    def agent_goes_down_or_comes_back(self, node: str) -> None:
        self.down ^= {node}

    @rule()
    def control(self) -> None:
        self.model.control()

    @rule()
    def lose_a_node(self) -> None:
        self.model.lose_node("n2")

    @rule(seconds=st.sampled_from([1, 20, 61]))
    def tick(self, seconds: int) -> None:
        self.model.tick(seconds)

    @rule()
    def all_machines(self) -> None:
        self._machines()

    # For a while nothing hinders the pods: by chance alone, hardly any device would ever be held.

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        size=st.sampled_from(SIZES),
        priority=st.sampled_from(PRIORITIES),
        rounds=st.integers(2, 5),
    )
    def somebody_runs(self, namespace: str, size: int, priority: int, rounds: int) -> None:
        self.change_quota(namespace, {"min": 0, "max": 2}, None)
        self.create_share(namespace, size, 1, priority)
        self._let_all_work(rounds)

    @rule(rounds=st.integers(2, 6))
    def everybody_ends(self, rounds: int) -> None:
        for pod in self._share_pods():
            self.model.api.start_delete(pod)
        self._let_all_work(1)
        self.model.tick(61)
        self._let_all_work(rounds)

    def _let_all_work(self, rounds: int) -> None:
        for _ in range(rounds):
            self._machines()
            self.reconcile(None)
            self.model.tick(1)

    # The operator.

    @rule(kinds=st.sets(st.sampled_from(KINDS)), fault=faults)
    def reconcile_on_stale_caches(self, kinds: set[object], fault: tuple[str, int] | None) -> None:
        self.operator.sync([kind for kind in KINDS if kind in kinds])
        self._reconcile(fault)

    @rule(fault=faults)
    def reconcile(self, fault: tuple[str, int] | None) -> None:
        self.operator.sync(KINDS)
        self._reconcile(fault)
        self.operator.sync(KINDS)
        self._planning_again_plans_nothing()

    def _reconcile(self, fault: tuple[str, int] | None) -> None:
        closed = self._gated()
        self.model.api.before_write = Watchful(self, fault)
        self.operator.reconcile()
        self.model.api.before_write = lambda write: None
        if closed > self._gated():
            self.note("a gate is opened")

    def _planning_again_plans_nothing(self) -> None:
        try:
            snapshot = self.operator.snapshot()
        except KubeError:
            return
        planned = plan(snapshot, self.model.time)
        again = plan(apply_plan(snapshot, planned), self.model.time)
        assert not again.actions, f"first {planned.actions}\nagain {again.actions}"

    # What must hold.

    @invariant()
    def every_holder_is_of_its_devices_tenant(self) -> None:
        owners = {pod["metadata"]["uid"]: pod for pod in self.model.api.all(POD)}
        for state in self.model.nodes.values():
            for device, uid in state.held.items():
                if uid in owners:
                    assert owners[uid]["metadata"]["namespace"] == device[0]

    @invariant()
    def every_held_device_has_its_card(self) -> None:
        for name, state in self.model.nodes.items():
            for device in state.held:
                key = device[0], device[1]
                self.note("a device is held")
                if key in self.model.lost:
                    self.note("a device is held whose shadow pod was evicted")
                    continue
                carved = state.carved.get(key)
                assert carved is not None, f"{device} is held on {name} and not carved"
                assert carved.uid in state.cards.values(), f"the card of {device} was given away"

    def teardown(self) -> None:
        if not hasattr(self, "operator"):
            return
        self.settles = True
        self.down.clear()
        self._settle()
        self._nobody_waits_in_vain()
        self._who_is_in_use_is_marked()
        self.model.tick(61)
        self._settle()
        self._no_gate_stays_closed()
        for pod in self._share_pods():
            self.model.api.start_delete(pod)
        self._settle()
        self.model.tick(61)
        self._settle()
        self._only_the_minimum_is_left()
        self._who_is_in_use_is_marked()

    def _settle(self) -> None:
        """Let all parts work until nothing happens any more."""
        quiet = 0
        for _ in range(60):
            self._machines()
            self.operator.sync(KINDS)
            told = len(self.operator.events.told)
            before = self._picture()
            self._reconcile(None)
            self.model.tick(6)
            quiet = quiet + 1 if before == self._picture() else 0
            if quiet >= 4 and told == len(self.operator.events.told):
                return
        raise AssertionError(f"never quiet: {self._picture()}")

    def _picture(self) -> object:
        """The objects' contents, without versions and times."""
        return sorted(
            (
                obj["kind"],
                obj["metadata"].get("namespace", ""),
                obj["metadata"]["name"],
                str(obj["spec"].get("nodeName")),
                str(obj["status"].get("phase")),
                "deletionTimestamp" in obj["metadata"],
                str(obj["metadata"].get("annotations", {}).keys()),
            )
            for obj in self.model.api.objects.values()
        )

    def _machines(self) -> None:
        self.model.control()
        self.model.schedule()
        for node in NODES:
            self.model.kubelet(node)
            if node not in self.down:
                self.model.agent(node)

    def _nobody_waits_in_vain(self) -> None:
        """Share pods still wait only because of the quota, or because no card is free."""
        have = Counter(
            (shadow["metadata"]["namespace"], shadow["spec"]["devices"])
            for shadow in self._shadows()
        )
        cards = Counter(shadow["metadata"]["namespace"] for shadow in self._shadows())
        for pod in self._share_pods():
            if pod["spec"].get("nodeName"):
                continue
            namespace = pod["metadata"]["namespace"]
            (resource,) = pod["spec"]["containers"][0]["resources"]["limits"]
            size = int(resource.rpartition(".")[2])
            quota = self.model.api.find(GPU_QUOTA, "quota", namespace)
            if quota is None:
                continue
            most = next(one["max"] for one in quota["spec"]["profiles"] if one["devices"] == size)
            exhausted = have[namespace, size] >= most
            capped = cards[namespace] >= quota["spec"].get("maxCards", 100)
            assert exhausted or capped or self._stuck(namespace, size), resource

    def _gated(self) -> int:
        return sum("schedulingGates" in pod["spec"] for pod in self._share_pods())

    def _no_gate_stays_closed(self) -> None:
        """Not longer than a minute, whatever is on its way."""
        assert not self._gated(), self._picture()

    def _who_is_in_use_is_marked(self) -> None:
        """So that nothing evicts it; a namespace without shadow pods has no budget."""
        for shadow in self._shadows():
            pod, key = self._pod_of(shadow), shadow["metadata"]
            if pod is None or "deletionTimestamp" in pod["metadata"] or self._is_on_lost_node(pod):
                continue
            held = bool(self.model.holders(key["namespace"], key["name"]))
            marked = pod["metadata"]["labels"].get(LABEL_IN_USE) == "true"
            assert marked == held, f"{key['name']} is held: {held}"
            assert not held or self._demanded(key["namespace"]) > 0
        tenants = {one["metadata"]["namespace"] for one in self._shadows()}
        assert {one["metadata"]["namespace"] for one in self.model.api.all(BUDGET)} <= tenants

    def _is_on_lost_node(self, pod: Object) -> bool:
        """Whether the pod is on a node that is gone, and was not collected yet: what held its
        devices is gone with the node's kubelet."""
        node = pod["spec"].get("nodeName")
        return node is not None and self.model.api.find(NODE, node) is None

    def _demanded(self, namespace: str) -> int:
        """How many pods the namespace's budget demands."""
        budget = self.model.api.find(BUDGET, BUDGET_NAME, namespace)
        return int(budget["spec"]["minAvailable"]) if budget else 0

    def _stuck(self, namespace: str, size: int) -> bool:
        """Whether a shadow pod of theirs waits for cards."""
        pods = [
            self._pod_of(shadow)
            for shadow in self._shadows()
            if (shadow["metadata"]["namespace"], shadow["spec"]["devices"]) == (namespace, size)
        ]
        return any(pod is not None and not pod["spec"].get("nodeName") for pod in pods)

    def _only_the_minimum_is_left(self) -> None:
        have = Counter(
            (shadow["metadata"]["namespace"], shadow["spec"]["devices"])
            for shadow in self._shadows()
        )
        for quota in self.model.api.all(GPU_QUOTA):
            if "maxCards" in quota["spec"]:
                continue
            for one in quota["spec"]["profiles"]:
                key = quota["metadata"]["namespace"], one["devices"]
                assert have.pop(key, 0) == one["min"], f"{key} {one} {self._picture()}"
        bounded = {
            quota["metadata"]["namespace"]
            for quota in self.model.api.all(GPU_QUOTA)
            if "maxCards" in quota["spec"]
        }
        left = [key for key, count in have.items() if count and key[0] not in bounded]
        assert not left, f"{left} {self._picture()} {self.operator.snapshot()}"

    def _share_pods(self) -> list[Object]:
        return [
            pod
            for pod in self.model.api.all(POD)
            if LABEL_SHADOW_POD not in pod["metadata"].get("labels", {})
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def _shadows(self) -> list[Object]:
        return list(self.model.api.all(SHADOW_POD))

    def _pod_of(self, shadow: Object) -> Object | None:
        meta = shadow["metadata"]
        return self.model.api.find(POD, meta["name"], meta["namespace"])


class Watchful:
    """Looks at every write of the operator before it takes effect, and lets one fail."""

    def __init__(self, cluster: Cluster, fault: tuple[str, int] | None) -> None:
        self._cluster = cluster
        self._fault = fault
        self._count = 0
        self._dead = False

    def __call__(self, write: Write) -> None:
        verb, ref, obj = write
        self._fail(str(ref))
        self._cluster.note(f"{verb} {ref.kind.name}")
        if verb == "create" and ref.kind == SHADOW_POD:
            self._check_quota(obj)
        if verb == "delete" and ref.kind == POD:
            self._check_nobody_uses(obj)
        if verb == "patch" and ref.kind == SHADOW_POD:
            self._check_nobody_uses(obj)

    def _fail(self, what: str) -> None:
        if self._dead:
            raise Crash
        if self._fault is None or self._count < self._fault[1]:
            self._count += 1
            return
        kind, self._fault = self._fault[0], None
        self._cluster.note("a write fails")
        if kind == "crash":
            self._dead = True
            raise Crash
        raise Conflict(what) if kind == "conflict" else Unavailable(what)

    def _check_quota(self, shadow: Object) -> None:
        model, namespace = self._cluster.model, shadow["metadata"]["namespace"]
        known = self._cluster.operator.caches.quotas.get("quota", namespace)
        live = model.api.find(GPU_QUOTA, "quota", namespace)
        devices = shadow["spec"]["devices"]
        allowed = (
            [one.max for one in known.spec.profiles if one.devices == devices] if known else []
        )
        if live is not None:
            profiles = live["spec"]["profiles"]
            allowed += [one["max"] for one in profiles if one["devices"] == devices]
        same = [
            one
            for one in self._cluster._shadows()
            if one["metadata"]["namespace"] == namespace and one["spec"]["devices"] == devices
        ]
        assert len(same) < max(allowed), f"one too many of profile {devices} in {namespace}"

    def _check_nobody_uses(self, obj: Object) -> None:
        """Invariant 3, as the kubelets know it."""
        meta, model = obj["metadata"], self._cluster.model
        key = meta["namespace"], meta["name"]
        if key in model.lost:
            return
        assert not model.holders(*key), f"{key} goes while {model.holders(*key)} use it"
        for state in model.nodes.values():
            carved = state.carved.get(key)
            assert carved is None or not carved.healthy, f"{key} goes while it is advertised"


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    effort(7, quick=1, stateful_step_count=30), suppress_health_check=list(HealthCheck)
)


def test_the_runs_reach_what_the_operator_decides() -> None:
    """The runs are the same each time, so that only a change of the code makes a difference."""
    Cluster.reached.clear()
    same = settings(TestCluster.settings, max_examples=REACHING, derandomize=True, database=None)
    run_state_machine_as_test(Cluster, settings=same)  # type: ignore[no-untyped-call]
    assert not OFTEN - Cluster.reached.keys(), Cluster.reached
