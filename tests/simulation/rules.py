"""Invariants that must hold at every moment, checked at each write and each step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from mizar_core.names import BUDGET_NAME, LABEL_IN_USE, LABEL_SHADOW_POD
from mizar_core.spot_rules import CONFIG_MAP as SPOT_RULES
from mizar_kube.kinds import (
    BUDGET,
    CONFIG_MAP,
    EVENT,
    GPU_POOL,
    GPU_QUOTA,
    LEASE,
    POD,
    SHADOW_POD,
    Object,
    Ref,
    ref_of,
)
from mizar_operator.main import LEASE_NAME
from simulation.cluster import Cluster
from simulation.history import Change
from simulation.spot_rules import REMEMBERED_S, SpotRules
from stateful.memory_api import Write, has_ended
from stateful.model import is_spot


class Broken(Exception):
    """A rule was broken; ends the schedule."""


class Rules:
    """Told of every write of the operator, when it is sent (`issued`) and when it takes effect
    (`writing`), and of every look of another component. Breaches go to `broken`. `leased`: whether
    replicas compete for the Lease."""

    def __init__(self, cluster: Cluster, broken: Callable[[str], None], leased: bool) -> None:
        self.sender = ""
        """The process whose write takes effect now; empty where the process has died or given the
        write up."""
        self._cluster = cluster
        self._leased = leased
        self._api = cluster.api
        self._broken = broken
        self._created: dict[str, tuple[str, float]] = {}
        self.spot = SpotRules(cluster, broken)
        cluster.api.before_write = self.writing

    def issued(self, sender: str, verb: str, ref: Ref, body: Object) -> None:
        """Only the leader writes, and it deletes nothing without saying which object it means."""
        if ref.kind in (LEASE, EVENT):
            return
        if self._leased and (holder := self._holder()) != sender.partition("/")[0]:
            self._broken(f"{sender} writes ({verb} {ref}) while {holder!r} leads")
        if verb in ("delete", "evict") and not body["uid"]:
            self._broken(f"{sender} ends {ref} of whatever UID")

    def _holder(self) -> str:
        lease = self._api.find(LEASE, LEASE_NAME, "mizar-system")
        return str(lease["spec"]["holderIdentity"]) if lease else ""

    def writing(self, write: Write) -> None:
        """A write of the operator takes effect."""
        verb, ref, obj = write
        if ref.kind in (LEASE, EVENT) or (verb == "apply" and ref.kind in (GPU_POOL, GPU_QUOTA)):
            return
        if ref.kind == BUDGET and ref.name == BUDGET_NAME:
            self._nobody_needs(verb, ref)
            return
        if ref.kind == CONFIG_MAP and (verb, ref.name) == ("patch", SPOT_RULES):
            return
        if ref.kind == POD and is_spot(obj):
            self.spot.writing(verb, ref, obj, self.sender)
        elif verb == "evict":
            self._has_lost_its_card(ref, obj)
        elif ref.kind == POD and not is_shadow(obj):
            self._broken(f"{verb} {ref}: it is somebody else's")
        elif ref.kind not in (POD, SHADOW_POD):
            self._broken(f"{verb} {ref}: the operator has no business there")
        elif verb == "create":
            self._creating(ref, obj)
        elif (verb, ref.kind) in (("delete", POD), ("patch", SHADOW_POD)):
            self._nobody_uses(ref)

    def looked(self) -> None:
        """A component has done something: a device's holder is of its tenant, and its card is
        held (invariants 1 and 2)."""
        owners = {pod["metadata"]["uid"]: pod for pod in self._api.all(POD)}
        for name, state in self._cluster.nodes.items():
            for device, uid in state.held.items():
                carved = state.carved.get(device[:2])
                own = carved is not None and carved.resource.startswith(f"{device[0]}.")
                if own and uid in owners and owners[uid]["metadata"]["namespace"] != device[0]:
                    self._broken(f"{device} on {name} is held by another tenant's pod")
                lost = device[:2] in self._cluster.lost
                if not lost and (carved is None or carved.uid not in state.cards.values()):
                    self._broken(f"{device} is held on {name}, and its card is given away")
        self._budgets_suffice()

    def _budgets_suffice(self) -> None:
        """A budget allows the eviction of no pod that is marked as in use."""
        marked = self._marked()
        for one in self._api.all(BUDGET):
            namespace, least = one["metadata"]["namespace"], one["spec"]["minAvailable"]
            if least < marked[namespace]:
                self._broken(f"{marked[namespace]} pods of {namespace} are in use, not {least}")

    def _nobody_needs(self, verb: str, budget: Ref) -> None:
        """A budget goes only once nothing in its namespace is marked as in use."""
        marked = self._marked()[budget.namespace or ""]
        if self.sender and verb == "delete" and marked:
            self._broken(f"delete {budget}: {marked} pods are marked as in use")

    def _marked(self) -> Counter[str]:
        """How many pods of each namespace are marked as in use."""
        return Counter(
            pod["metadata"]["namespace"]
            for pod in self._api.all(POD)
            if pod["metadata"].get("labels", {}).get(LABEL_IN_USE) == "true"
            and "deletionTimestamp" not in pod["metadata"]
        )

    def _creating(self, ref: Ref, obj: Object) -> None:
        if ref.kind == SHADOW_POD:
            # A creation that was given up may come when another has taken its place: it is deleted
            # as soon as it is seen. One that was repeated may come when the shadow pod is gone.
            if self.sender and str(ref) not in self._created:
                self._within_quota(ref, obj)
            self._created[str(ref)] = self.sender, asyncio.get_running_loop().time()
            return
        (owner,) = obj["metadata"]["ownerReferences"]
        shadow = self._api.find(SHADOW_POD, ref.name, ref.namespace or "")
        if shadow is not None and shadow["metadata"]["uid"] != owner["uid"]:
            self._broken(f"create {ref}: for another ShadowPod of that name")

    def _within_quota(self, ref: Ref, obj: Object) -> None:
        """There are no more shadow pods than a quota allowed that the operator may have known."""
        spec, namespace = obj["spec"], ref.namespace or ""
        known = self._known_specs(namespace, spec["quota"], spec["pool"])
        same = [
            one
            for one in self._api.all(SHADOW_POD)
            if one["metadata"]["namespace"] == namespace
            and (one["spec"]["quota"], one["spec"]["pool"]) == (spec["quota"], spec["pool"])
            and self._is_known(one)
        ]
        count = sum(one["spec"]["devices"] == spec["devices"] for one in same)
        cards = sum(one["spec"]["cards"] for one in same) + spec["cards"]
        allowed = [
            profile["max"]
            for one in known
            for profile in one["profiles"]
            if profile["devices"] == spec["devices"]
        ]
        if count >= max(allowed, default=0):
            self._broken(f"create {ref}: {count} of profile {spec['devices']} are there")
        if cards > max((one.get("maxCards", 10**6) for one in known), default=0):
            self._broken(f"create {ref}: the quota's cards are exceeded")

    def _is_known(self, shadow: Object) -> bool:
        """Whether the sender must know of the object: it made it itself, or the object was not made
        just now."""
        sender, at = self._created[str(ref_of(shadow))]
        return sender == self.sender or asyncio.get_running_loop().time() - at > REMEMBERED_S

    def _known_specs(self, namespace: str, name: str, pool: str) -> list[Object]:
        """What quotas of that name allowed of the pool lately."""
        now = asyncio.get_running_loop().time()
        found: list[Change] = []
        for change in self._api.after(GPU_QUOTA, 0):
            meta = change.after["metadata"]
            if (meta["namespace"], meta["name"]) != (namespace, name):
                continue
            if change.at < now - (self.spot.missed_s if change.deleted else REMEMBERED_S):
                found.clear()
            if not change.deleted:
                found.append(change)
        return [one.after["spec"] for one in found if one.after["spec"]["pool"] == pool]

    def _has_lost_its_card(self, ref: Ref, pod: Object) -> None:
        """Only a pod is evicted that has a device of a lost card, or no device any more."""
        uid = pod["metadata"]["uid"]
        for state in self._cluster.nodes.values():
            held = [device for device, holder in state.held.items() if holder == uid]
            if held and all(device[:2] not in self._cluster.lost for device in held):
                self._broken(f"evict {ref}: it has {held}, whose cards are there")

    def _nobody_uses(self, ref: Ref) -> None:
        """Invariant 3, as the kubelets know it."""
        key = ref.namespace or "", ref.name
        if key in self._cluster.lost:
            self._nobody_is_left(ref)
            return
        if holders := self._cluster.holders(*key):
            self._broken(f"{ref} goes while {holders} use it")
        for state in self._cluster.nodes.values():
            carved = state.carved.get(key)
            if carved is not None and carved.healthy:
                self._broken(f"{ref} goes while its devices are offered")

    def _nobody_is_left(self, ref: Ref) -> None:
        """The ShadowPod of cards that are lost stays for those whom it names as their holders,
        until they have ended: without it nobody would evict them."""
        shadow = self._api.find(SHADOW_POD, ref.name, ref.namespace or "")
        if shadow is None or ref.kind != SHADOW_POD:
            return
        named = {
            one["holder"]["name"] for one in shadow["status"].get("devices", ()) if "holder" in one
        }
        held = self._cluster.holders(ref.namespace or "", ref.name)
        left = [
            pod["metadata"]["name"]
            for pod in self._api.all(POD)
            if pod["metadata"]["uid"] in held
            and pod["metadata"]["name"] in named
            and not has_ended(pod)
        ]
        if left:
            self._broken(f"{ref} goes while {left} are to be evicted")


def is_shadow(pod: Object) -> bool:
    """Whether the pod is a shadow pod's."""
    return (pod["metadata"].get("labels") or {}).get(LABEL_SHADOW_POD) == "true"
