"""Before a container starts: whose devices these are, whether it may run, and its limits.

Here the kubelet already shows which pod and container hold the devices. An error is tried again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mizar_core.device_ids import DeviceID
from mizar_core.names import EventReason
from mizar_kube.logs import bind, get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.collect import recorded
from mizar_nodeagent.container.grants import (
    Grant,
    Part,
    by_shadow_pod,
    grant,
    granted,
    priority_of,
)
from mizar_nodeagent.container.same_card import check_same_card
from mizar_nodeagent.container.slots import Notify, Owner, Slot, Slots
from mizar_nodeagent.cuda_context.costs import ContextCosts
from mizar_nodeagent.errors import KubeletAway, NotYet, StartRefused
from mizar_nodeagent.kubelet.checkpoint_file import Entry
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.carving import Carving, Stage
from mizar_nodeagent.planning.isolation import wants_shim
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.regions import limits_file, usage_file

log = get_logger(__name__)

WITHOUT_SHIM = (
    "the pod got its devices while isolation.backend was None, so its containers are without "
    "Mizar's shim and cannot be limited: delete the pod, and another one is"
)

Ask = Callable[[], Awaitable[Claims]]
Records = Callable[[], tuple[Entry, ...]]


@dataclass(frozen=True)
class Gatekeeper:
    """`ask` gives who holds what now; `records`: the kubelet's own record, for what that leaves
    out. `tell` and `warn` tell people, of what is well and what is not. `contexts`: what they
    cost on each card."""

    state: AgentState
    slots: Slots
    ask: Ask
    records: Records
    notify: Notify
    warn: Notify
    contexts: ContextCosts

    async def prestart(self, resource: str, ids: Sequence[str]) -> None:
        """Write the limits of the container that holds the devices. Raises NotYet, StartRefused."""
        try:
            claims = await self.ask()
        except KubeletAway as error:
            raise NotYet(str(error)) from error
        owner = self._owner(resource, ids, claims)
        bind(**owner.names)
        try:
            check_same_card(self.state, self._pod(owner.namespace, owner.pod), ids)
            parts = self._parts(owner, resource, ids, claims)
            permitted = await self._permitted(owner, parts)
            slots = self._slots_of(owner, resource, ids)
            _check_shim(parts, slots)
        except StartRefused as error:
            self.warn(owner, error.reason, str(error))
            raise
        is_new = all(slot.owner is None for slot in slots)
        for slot in slots:
            self._fill(slot, owner, permitted)
        if is_new:
            # Once for each container, however often it starts.
            note = granted(owner.container, parts, permitted)
            self.notify(owner, EventReason.DEVICE_GRANTED, note)

    async def _permitted(self, owner: Owner, parts: list[Part]) -> Grant:
        """Its limits. Only the first container on a model waits for what a context costs."""
        priority = priority_of(self._pod(owner.namespace, owner.pod))
        cards = {card.uuid for card in grant(parts, priority).cards}
        await self.contexts.learn(sorted(cards))
        return grant(parts, priority, self.contexts.of)

    def _owner(self, resource: str, ids: Sequence[str], claims: Claims) -> Owner:
        """The container, by what the kubelet tells; init containers only its record knows."""
        found = {
            self._known(claim.namespace, claim.pod, claim.container)
            for claim in claims.exactly(resource, ids)
            if not self._ended(claim.namespace, claim.pod)
        } or set(self._recorded_owners(resource, ids))
        if len({(one.namespace, one.pod) for one in found}) != 1:
            raise NotYet(f"the kubelet names {len(found)} pods for {', '.join(sorted(ids))}")
        return min(found, key=lambda one: one.container)

    def _known(self, namespace: str, pod: str, container: str) -> Owner:
        known = self._pod(namespace, pod)
        return Owner(namespace, pod, known.uid if known else "", container)

    def _ended(self, namespace: str, name: str) -> bool:
        pod = self._pod(namespace, name)
        return pod is not None and pod.ended

    def _pod(self, namespace: str, name: str) -> Pod | None:
        return (self.state.view.pods or {}).get((namespace, name))

    def _recorded_owners(self, resource: str, ids: Sequence[str]) -> Iterable[Owner]:
        pods = {uid: pod for pod in self._living() for uid in pod.uids}
        for entry in self._entries():
            if (entry.resource, entry.ids) == (resource, frozenset(ids)) and entry.pod_uid in pods:
                pod = pods[entry.pod_uid]
                yield Owner(pod.namespace, pod.name, pod.uid, entry.container)

    def _entries(self) -> tuple[Entry, ...]:
        try:
            return self.records()
        except KubeletAway as error:
            raise NotYet(str(error)) from error

    def _living(self) -> Iterable[Pod]:
        return (pod for pod in (self.state.view.pods or {}).values() if not pod.ended)

    def _parts(self, owner: Owner, resource: str, ids: Sequence[str], claims: Claims) -> list[Part]:
        """Its devices, all of which it may have, by carving. Raises StartRefused, NotYet."""
        _check_single(owner, resource, claims)
        parts: list[Part] = []
        for devices in by_shadow_pod(ids):
            carving = self._carving(devices[0])
            _check_tenant(owner, carving)
            parts.append((carving, devices))
        return parts

    def _carving(self, device: DeviceID) -> Carving:
        carving = self.state.carving_of(device)
        if carving is None:
            raise NotYet(f"nothing is known of {device} yet")
        if carving.stage is Stage.LEAVING:
            # Its card may be another pod's by now, or in a moment.
            raise StartRefused(
                f"the shadow pod of {device} is gone or going, and its card with it",
                EventReason.CARD_LOST,
            )
        return carving

    def _slots_of(self, owner: Owner, resource: str, ids: Sequence[str]) -> list[Slot]:
        """The slots that the container may have mounted: those of its pod, and new ones."""
        found = [
            slot
            for slot in self.slots.of(resource, ids)
            if slot.owner is None or slot.owner.of_pod(owner)
        ]
        return found or self._recovered(resource, ids)

    def _recovered(self, resource: str, ids: Sequence[str]) -> list[Slot]:
        """Slots that only the kubelet still knows, made again: it will mount them."""
        known = recorded(self._entries(), self._living(), self.slots.root)
        here = {slot.name: slot for slot in self.slots.all()}
        found = []
        for name, record in known.items():
            if (record.entry.resource, record.entry.ids) != (resource, frozenset(ids)):
                continue
            log.warning("a slot was lost: made again from the kubelet's record", slot=name)
            if name in here:
                found.append(self.slots.describe(here[name], resource, ids))
            else:
                found.append(self.slots.create(resource, ids, 0.0, name))
        if not found:
            raise NotYet(f"no slot is known for {', '.join(sorted(ids))}")
        return found

    def _fill(
        self,
        slot: Slot,
        owner: Owner,
        permitted: Grant,
    ) -> None:
        owner = owner if slot.owner is None else replace(slot.owner, pod_uid=owner.pod_uid)
        identity = limits_file.ContainerIdentity(
            owner.namespace, owner.pod, owner.pod_uid, owner.container, slot.name
        )
        try:
            usage_file.repair_header(slot.usage)
            limits_file.write(
                slot.limits, identity, permitted.cards, permitted.physical, permitted.contexts
            )
            self.slots.assign(slot, owner)
        except OSError as error:
            raise NotYet(f"the limits of slot {slot.name} cannot be written: {error}") from error
        log.info(
            "limits written",
            slot=slot.name,
            memory_mib={one.uuid: one.memory_bytes >> 20 for one in permitted.cards},
            core_share={one.uuid: one.core_share for one in permitted.cards},
        )


def _check_single(owner: Owner, resource: str, claims: Claims) -> None:
    """A container has one slot, so its devices must be of one resource."""
    others = {
        claim.resource
        for claim in claims.all
        if (claim.namespace, claim.pod, claim.container)
        == (owner.namespace, owner.pod, owner.container)
        and claim.is_share
    } - {resource}
    if others:
        raise StartRefused(
            f"container {owner.container} asks for {resource} and {', '.join(sorted(others))}: "
            "a container can have devices of one profile only",
            EventReason.ISOLATION_NOT_ENFORCED,
        )


def _check_tenant(owner: Owner, carving: Carving) -> None:
    if carving.carve.tenancy == "PerNamespace" and owner.namespace != carving.namespace:
        raise StartRefused(
            f"the devices of {carving.namespace}/{carving.name} are for pods of "
            f"{carving.namespace}, not of {owner.namespace}",
            EventReason.ISOLATION_NOT_ENFORCED,
        )


def _check_shim(parts: Iterable[Part], slots: Sequence[Slot]) -> None:
    """The kubelet starts a container anew with the mounts that it once got."""
    own = [slot for slot in slots if slot.owner is not None] or slots[-1:]
    wanted = any(wants_shim(carving.carve.isolation) for carving, _ in parts)
    if wanted and not all(slot.shim for slot in own):
        raise StartRefused(WITHOUT_SHIM, EventReason.ISOLATION_NOT_ENFORCED)
