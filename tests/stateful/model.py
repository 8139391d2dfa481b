"""A model of the cluster around the operator: scheduler, kubelets, node agents and Kubernetes'
controllers, each a function that takes one step. They work on the objects of MemoryApi; the state
that only a node has (which pod really holds which card and device) is here."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from mizar_core.model_base import format_time
from mizar_core.names import (
    ANNOTATION_CARVE,
    ANNOTATION_DRAIN,
    DRA_DRIVER,
    LABEL_SHADOW_POD,
    LABEL_SHARE_POD,
    LABEL_SPOT_POD,
    PHYSICAL_RESOURCE,
    PREEMPTION_GATE,
    SPOT_GATE,
    SPOT_RESOURCE,
)
from mizar_core.planning.node_fit import Needs, fits
from mizar_core.pod_requests import devices_requested
from mizar_core.spot_rules import CONFIG_MAP
from mizar_kube.kinds import (
    DEVICE_CLASS,
    GPU_POOL,
    GPU_QUOTA,
    NODE,
    POD,
    RESOURCE_SLICE,
    SHADOW_POD,
    Object,
)
from mizar_operator.node_needs import needs_of
from mizar_operator.node_view import node_view
from stateful.memory_api import MemoryApi

START = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
CARDS_PER_NODE = 2
GPU = {"type": {"string": "gpu"}, "productName": {"string": "Tesla T4"}}
"""The attributes of a DRA driver's card."""
PODS_COLLECTED_AFTER = timedelta(seconds=60)
"""How long a node has been gone when Kubernetes deletes its pods: it waits for 40 s, and it looks
every 20 s."""

Device = tuple[str, str, int]
"""(namespace, shadow pod, index)."""


@dataclass
class Carved:
    """A shadow pod's devices as the node agent offers them. `stage`: Serving, Lowered, Blocked,
    Drained or InUse."""

    uid: str
    resource: str
    devices: tuple[Device, ...]
    stage: str = "Serving"
    idle_since: datetime | None = None

    @property
    def healthy(self) -> bool:
        return self.stage in ("Serving", "Lowered", "InUse")


@dataclass
class NodeState:
    """The state of a node. `cards`: by number, the UID of the pod that holds it; `held`: by device,
    the UID of the pod that holds it. `by_dra`: whether a DRA driver allocates the cards."""

    cards: dict[int, str] = field(default_factory=dict)
    held: dict[Device, str] = field(default_factory=dict)
    carved: dict[tuple[str, str], Carved] = field(default_factory=dict)
    by_dra: bool = False


class Model:
    """The cluster. `violations` collects broken invariants."""

    def __init__(self, api: MemoryApi | None = None) -> None:
        self.api = api or MemoryApi()
        self.time = START
        self.nodes: dict[str, NodeState] = {}
        self.lost: set[tuple[str, str]] = set()
        self._missing: dict[str, datetime] = {}
        self.tick(0)

    def tick(self, seconds: float) -> None:
        """Let time go by."""
        self.time += timedelta(seconds=seconds)
        self.api.now = format_time(self.time)

    # Objects that users make.

    def add_node(self, name: str, by_dra: bool = False) -> None:
        """A node with cards, of a device plugin or of a DRA driver."""
        self.nodes[name] = NodeState(by_dra=by_dra)
        resources = {} if by_dra else {PHYSICAL_RESOURCE: str(CARDS_PER_NODE)}
        self.api.put(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "spec": {},
                "status": {
                    "capacity": dict(resources),
                    "allocatable": dict(resources),
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )

        self._publish(name)

    def _publish(self, node: str) -> None:
        """A DRA driver publishes its node's cards."""
        if self.nodes[node].by_dra:
            cards = [{"name": f"gpu-{one}", "attributes": GPU} for one in range(CARDS_PER_NODE)]
            pool = {"name": node, "generation": 1}
            spec = {"driver": DRA_DRIVER, "nodeName": node, "pool": pool, "devices": cards}
            self.api.put(_of_dra("ResourceSlice", node, spec))

    def add_class(self) -> None:
        """The DeviceClass by which pods request a DRA driver's cards."""
        spec = {"extendedResourceName": PHYSICAL_RESOURCE}
        if self.api.find(DEVICE_CLASS, DRA_DRIVER) is None:
            self.api.put(_of_dra("DeviceClass", DRA_DRIVER, spec))

    def delete_class(self) -> None:
        """As when the driver's chart is uninstalled."""
        if (found := self.api.find(DEVICE_CLASS, DRA_DRIVER)) is not None:
            self.api.start_delete(found)

    def add_rules(self) -> None:
        """The chart's ConfigMap for the lending rules."""
        meta = {"name": CONFIG_MAP, "namespace": "mizar-system"}
        self.api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}})

    def add_pool(self, name: str = "pool", **spec: object) -> None:
        """A pool."""
        profiles = [{"devices": 2, "cards": 1}, {"devices": 4, "cards": 1}]
        self._put("GPUPool", {"name": name}, {"profiles": profiles, **spec})

    def add_quota(
        self,
        namespace: str,
        profiles: list[dict[str, int]],
        name: str = "quota",
        **spec: object,
    ) -> None:
        """A namespace's quota, or a change of it."""
        spec = {"pool": "pool", "profiles": profiles, **spec}
        known = self.api.find(GPU_QUOTA, name, namespace)
        if known is None:
            self._put("GPUQuota", {"name": name, "namespace": namespace}, spec)
        else:
            known["spec"] = spec
            known["metadata"]["generation"] += 1
            self.api.touch(known)

    def _put(self, kind: str, meta: Object, spec: Object) -> None:
        version = "mizar.share/v1alpha1"
        self.api.put({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})

    def add_share(self, namespace: str, name: str, resource: str, count: int, **spec: Any) -> None:
        """A share pod as it is after admission; with a priority above 0, it has a gate."""
        self.add_share_of(namespace, name, {resource: count}, **spec)

    def add_share_of(self, namespace: str, name: str, asked: dict[str, int], **spec: Any) -> None:
        """A share pod with a container for each resource."""
        if spec.get("priority", 0) > 0:
            spec |= {"schedulingGates": [{"name": PREEMPTION_GATE}]}
        labels = {"labels": {LABEL_SHARE_POD: "true"}}
        self._add_pod(namespace, name, asked, labels, **spec)

    def add_spot(self, namespace: str, name: str, cards: int = 1, **spec: Any) -> None:
        """A spot pod as it is after admission."""
        labels, gate = {"labels": {LABEL_SPOT_POD: "true"}}, {"name": SPOT_GATE}
        asked = {SPOT_RESOURCE: cards}
        self._add_pod(namespace, name, asked, labels, schedulingGates=[gate], **spec)

    def lend(self, node: str, cards: int) -> None:
        """The node agent finds that `cards` cards can be lent. It ends the newest borrowers of any
        other cards, and says so."""
        obj = self.api.find(NODE, node)
        if obj is None:
            return
        for figure in ("capacity", "allocatable"):
            obj["status"][figure][SPOT_RESOURCE] = str(cards)
        self.api.touch(obj)
        borrowers = [one for one in self.pods_on(node) if is_spot(one) and not _ended(one)]
        borrowed = itertools.accumulate(_asked(one)[SPOT_RESOURCE] for one in borrowers)
        for pod in [one for one, sum in zip(borrowers, borrowed, strict=True) if sum > cards]:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "OwnerBack"}
            known = pod["status"].get("conditions") or []
            if condition not in known:
                pod["status"]["conditions"] = [*known, condition]
                self.api.touch(pod)

    def add_whole(self, namespace: str, name: str, cards: int) -> None:
        """A pod that asks for whole cards."""
        self._add_pod(namespace, name, {PHYSICAL_RESOURCE: cards}, {})

    def add_plain(self, namespace: str, name: str) -> None:
        """A pod that asks for no cards."""
        self._add_pod(namespace, name, {"cpu": 1}, {})

    def _add_pod(
        self, namespace: str, name: str, asked: dict[str, int], more: Object, **spec: Any
    ) -> None:
        names = (f"main-{number}" if number else "main" for number in itertools.count())
        containers = [_container(*one) for one in zip(names, asked.items(), strict=False)]
        gated = [self._not_scheduled("SchedulingGated", {})] if "schedulingGates" in spec else []
        self.api.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, **more},
                "spec": {"containers": containers, **spec},
                "status": {"phase": "Pending", "conditions": gated},
            }
        )

    # Kubernetes.

    def _not_scheduled(self, reason: str, known: Object, message: str = "") -> Object:
        """The pod's condition PodScheduled. It keeps the time of the `known` one, whatever that
        one's reason is: its status has not changed."""
        since = known.get("lastTransitionTime", self.api.now)
        condition = {"type": "PodScheduled", "status": "False", "reason": reason}
        return condition | {"message": message, "lastTransitionTime": since}

    def schedule(self) -> None:
        """Bind every pod that fits somewhere; say of the others that they don't."""
        for pod in list(self.api.all(POD)):
            if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
                continue
            if pod["spec"].get("schedulingGates") or not is_served(pod):
                continue
            asked, needs = _asked(pod), needs_of(pod)
            for name in sorted(self.nodes):
                if self.api.find(NODE, name) is not None and self._fits(name, asked, needs):
                    self._bind(pod, name)
                    break
            else:
                self._refuse(pod)

    def _fits(self, node: str, asked: dict[str, int], needs: Needs) -> bool:
        obj = self.api.find(NODE, node)
        assert obj is not None
        if not self._admits(node, needs):
            return False
        used: Counter[str] = Counter()
        for pod in self.api.all(POD):
            if pod["spec"].get("nodeName") == node and not _ended(pod):
                used.update(_asked(pod))
        offered = dict(obj["status"]["allocatable"])
        if self.api.find(RESOURCE_SLICE, node) and self.api.find(DEVICE_CLASS, DRA_DRIVER):
            offered[PHYSICAL_RESOURCE] = CARDS_PER_NODE
        return all(used[key] + n <= int(offered.get(key, 0)) for key, n in asked.items())

    def _admits(self, node: str, needs: Needs) -> bool:
        obj = self.api.find(NODE, node)
        view = node_view(obj) if obj is not None else None
        return view is not None and view.available and fits(needs, view)

    def _bind(self, pod: Object, node: str) -> None:
        pod["spec"]["nodeName"] = node
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.api.now}
        ]
        self.api.touch(pod)

    def _refuse(self, pod: Object) -> None:
        needs, why = needs_of(pod), "node(s) didn't match Pod's node affinity/selector"
        if found := [state for name, state in self.nodes.items() if self._admits(name, needs)]:
            why = f"Insufficient {SPOT_RESOURCE if is_spot(pod) else PHYSICAL_RESOURCE}"
            if PHYSICAL_RESOURCE in _asked(pod) and all(one.by_dra for one in found):
                why = "cannot allocate all claims. still not schedulable"
        known = next(iter(pod["status"].get("conditions") or ()), {})
        if known.get("reason") != "Unschedulable":
            message = f"0/2 nodes are available: 2 {why}"
            pod["status"]["conditions"] = [self._not_scheduled("Unschedulable", known, message)]
            self.api.touch(pod)

    def kubelet(self, node: str) -> None:
        """Start what is bound, end what is deleted."""
        state = self.nodes[node]
        for pod in list(self.pods_on(node)):
            uid = pod["metadata"]["uid"]
            if "deletionTimestamp" in pod["metadata"]:
                self._free(state, uid)
                self.api.remove(pod)
            elif pod["status"].get("phase") == "Pending":
                started = self._start(state, pod)
                pod["status"]["phase"] = "Running" if started else "Failed"
                self.api.touch(pod)
        alive = {pod["metadata"]["uid"] for pod in self.pods_on(node) if not _ended(pod)}
        for uid in {*state.cards.values(), *state.held.values()} - alive:
            self._free(state, uid)

    def _start(self, state: NodeState, pod: Object) -> bool:
        uid = pod["metadata"]["uid"]
        if is_spot(pod):
            return True
        wanted = _asked(pod).get(PHYSICAL_RESOURCE)
        if wanted is not None:
            free = [card for card in range(CARDS_PER_NODE) if card not in state.cards]
            if len(free) < wanted:
                return False
            state.cards |= dict.fromkeys(free[:wanted], uid)
            return True
        return all(self._allocate(state, uid, key, n) for key, n in _asked(pod).items())

    def _allocate(self, state: NodeState, uid: str, resource: str, count: int) -> bool:
        free = [
            device
            for carved in state.carved.values()
            if carved.resource == resource and carved.healthy
            for device in carved.devices
            if device not in state.held
        ]
        if len(free) < count:
            return False
        # As good as random, and the same in each run.
        state.held |= dict.fromkeys(sorted(free, key=lambda one: (-one[2], one))[:count], uid)
        return True

    def _free(self, state: NodeState, uid: str) -> None:
        state.cards = {card: holder for card, holder in state.cards.items() if holder != uid}
        state.held = {device: holder for device, holder in state.held.items() if holder != uid}

    def lose_node(self, node: str) -> None:
        """The machine is gone for good; its Node object too."""
        self.unregister(node)
        for pod in self.pods_on(node):
            if _is_shadow(pod):
                self.lost.add((pod["metadata"]["namespace"], pod["metadata"]["name"]))
        self.nodes[node] = NodeState()

    def unregister(self, node: str) -> Object | None:
        """Delete the Node object, but not the machine, and return it: its kubelet can register the
        node again by `register`."""
        obj = self.api.find(NODE, node)
        if obj is not None:
            self.api.remove(obj)
            if (cards := self.api.find(RESOURCE_SLICE, node)) is not None:
                self.api.remove(cards)
            self._missing[node] = self.time
        return obj

    def register(self, node: Object) -> None:
        """A kubelet creates its Node object."""
        meta = {key: node["metadata"][key] for key in ("name", "labels")}
        self.api.put({**node, "metadata": meta})
        self._publish(meta["name"])

    def control(self) -> None:
        """Garbage collection: of owners that are gone, and of pods on nodes that have been gone for
        a while."""
        for pod in list(self.api.all(POD)):
            if (node := pod["spec"].get("nodeName")) and self._is_gone(node):
                self.api.remove(pod)
        self.api.collect_garbage()

    def _is_gone(self, node: str) -> bool:
        """Whether the node's pods are deleted, since the node was not registered again."""
        missing = self.api.find(NODE, node) is None
        return missing and self.time - self._missing[node] >= PODS_COLLECTED_AFTER

    # The node agent.

    def agent(self, node: str) -> None:
        """One look around: carve, drain a step further, report."""
        state, obj = self.nodes[node], self.api.find(NODE, node)
        if obj is None:
            return
        pods = {_key(pod): pod for pod in self.pods_on(node) if _is_shadow(pod)}
        for key, pod in pods.items():
            if pod["metadata"]["uid"] in state.cards.values() and key not in state.carved:
                self._carve(state, key, pod)
        for key in list(state.carved):
            self._step(state, key, pods.get(key), node)
        offered: Counter[str] = Counter()
        for carved in state.carved.values():
            offered[carved.resource] += len(carved.devices) * (carved.stage in ("Serving", "InUse"))
        known = {one for one in obj["status"]["allocatable"] if "gpu." in one}
        for resource in sorted(known | {*offered}):
            obj["status"]["allocatable"][resource] = str(offered[resource])
        self.api.touch(obj)
        for key in sorted({*pods, *state.carved}):
            self._report(state, key, node)

    def _carve(self, state: NodeState, key: tuple[str, str], pod: Object) -> None:
        carve = json.loads(pod["metadata"]["annotations"][ANNOTATION_CARVE])
        devices = tuple((*key, index) for index in range(carve["devices"]))
        uid = pod["metadata"]["uid"]
        state.carved[key] = Carved(uid, carve["resource"], devices, idle_since=self.time)

    def _step(self, state: NodeState, key: tuple[str, str], pod: Object | None, node: str) -> None:
        carved = state.carved[key]
        if pod is None or pod["metadata"]["uid"] != carved.uid or _ended(pod):
            if any(device in state.held for device in carved.devices):
                carved.stage = "Leaving"
            elif carved.stage == "Gone":
                del state.carved[key]
            else:
                # The last report says that no pod holds it.
                carved.stage = "Gone"
            return
        held = any(device in state.held for device in carved.devices)
        if held:
            carved.idle_since = None
        elif carved.idle_since is None:
            carved.idle_since = self.time
        asked = ANNOTATION_DRAIN in (pod["metadata"].get("annotations") or {})
        carved.stage = self._next_stage(state, carved, asked, held, node)

    def _next_stage(
        self, state: NodeState, carved: Carved, asked: bool, held: bool, node: str
    ) -> str:
        if not asked:
            return "Serving"
        if held:
            return "InUse"
        if carved.stage in ("Serving", "InUse"):
            return "Lowered"
        if carved.stage == "Lowered":
            waits = any(
                carved.resource in _asked(pod)
                and not _ended(pod)
                and pod["metadata"]["uid"] not in state.held.values()
                for pod in self.pods_on(node)
            )
            return "Lowered" if waits else "Blocked"
        return "Drained"

    def _report(self, state: NodeState, key: tuple[str, str], node: str) -> None:
        shadow, carved = self.api.find(SHADOW_POD, key[1], key[0]), state.carved.get(key)
        if shadow is None or carved is None:
            return
        owners = {one["metadata"]["uid"]: one for one in self.api.all(POD)}
        devices = []
        for device in carved.devices:
            health = "Healthy" if carved.healthy else "Unhealthy"
            entry = {"id": f"{key[0]}/{key[1]}-{device[2]}", "health": health}
            holder = owners.get(state.held.get(device, ""))
            if holder is not None:
                meta = holder["metadata"]
                where = {"namespace": meta["namespace"], "name": meta["name"]}
                entry["holder"] = {**where, "container": "main"}  # type: ignore[assignment]
            devices.append(entry)
        self._write_report(shadow, carved, devices, node)

    def _write_report(
        self, shadow: Object, carved: Carved, devices: list[Object], node: str
    ) -> None:
        draining = {"Drained": ("True", "Drained"), "InUse": ("False", "InUse")}.get(
            carved.stage,
            ("False", "NotAsked") if carved.stage == "Serving" else ("Unknown", "InProgress"),
        )
        held = "True" if any("holder" in one for one in devices) else "False"
        ready = "True" if carved.stage in ("Serving", "InUse") else "False"
        said = {"Ready": ready, "PodInUsing": held, "Healthy": "True", "Draining": draining[0]}
        known = {one["type"]: one for one in shadow["status"].get("conditions") or ()}
        own = [one for type, one in known.items() if type not in said]
        own += [
            {
                "type": type,
                "status": status,
                "reason": draining[1] if type == "Draining" else "Said",
                "lastTransitionTime": self._since(known.get(type), status),
            }
            for type, status in said.items()
        ]
        idle = {"idleSince": format_time(carved.idle_since)} if carved.idle_since else {}
        shadow["status"].pop("idleSince", None)
        shadow["status"] |= {"node": node, "devices": devices, "conditions": own, **idle}
        self.api.touch(shadow)

    def _since(self, known: Object | None, status: str) -> str:
        """When a condition came to have the status that it has now."""
        same = known is not None and known["status"] == status
        return known["lastTransitionTime"] if known is not None and same else self.api.now

    # Looking.

    def pods_on(self, node: str) -> Iterator[Object]:
        """The pods bound to a node."""
        return (pod for pod in self.api.all(POD) if pod["spec"].get("nodeName") == node)

    def holders(self, namespace: str, shadow: str) -> list[str]:
        """UIDs of the pods that hold devices of the shadow pod, as the kubelet knows."""
        return [
            uid
            for state in self.nodes.values()
            for device, uid in state.held.items()
            if device[:2] == (namespace, shadow)
        ]

    def pools(self) -> list[Object]:
        """All pools."""
        return list(self.api.all(GPU_POOL))


def _of_dra(kind: str, name: str, spec: Object) -> Object:
    api = "resource.k8s.io/v1"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _container(name: str, asked: tuple[str, int]) -> Object:
    limits = {asked[0]: str(asked[1])}
    return {"name": name, "resources": {"limits": dict(limits), "requests": limits}}


def _asked(pod: Object) -> dict[str, int]:
    asked = devices_requested(pod["spec"])
    for container in pod["spec"]["containers"]:
        for resource in (PHYSICAL_RESOURCE, SPOT_RESOURCE):
            cards = container["resources"]["limits"].get(resource)
            if cards is not None:
                asked[resource] = int(cards)
    return asked


def is_served(pod: Object) -> bool:
    """Whether there is a scheduler of the name that the pod asks for."""
    return "schedulerName" not in pod["spec"]


def is_spot(pod: Object) -> bool:
    """Whether the pod is a spot pod."""
    return (pod["metadata"].get("labels") or {}).get(LABEL_SPOT_POD) == "true"


def _key(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _is_shadow(pod: Object) -> bool:
    return (pod["metadata"].get("labels") or {}).get(LABEL_SHADOW_POD) == "true"


def _ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")
