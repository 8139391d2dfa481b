"""Answers PreStartContainer: finds the container that holds the devices, checks whether it may
start, and writes its limits.

Unlike during Allocate, the kubelet's podresources already name the pod and container that hold the
devices. After an error, the kubelet calls again.
"""

from __future__ import annotations

import math
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from mizar_core.device_ids import DeviceID
from mizar_core.names import EventReason
from mizar_kube.logs import bind, get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.device_given_twice import Holding, may_be_given_to_others, sharing
from mizar_nodeagent.container.device_nodes import Minors
from mizar_nodeagent.container.limits import (
    ContainerLimits,
    DeviceGroup,
    by_shadow_pod,
    container_limits,
    describe_limits,
    gets_less,
    priority_of,
)
from mizar_nodeagent.container.opt_out import REFUSED, may_opt_out, wants_out
from mizar_nodeagent.container.prestart_checks import (
    check_cards_there,
    check_device_nodes,
    check_one_resource,
    check_same_card,
    check_shim,
    check_tenant,
    present_carving,
)
from mizar_nodeagent.container.slots import Notify, NotifyGranted, Owner, Slot, Slots
from mizar_nodeagent.container.spare_slots import LIMITS
from mizar_nodeagent.container.used_slots import recorded_slots
from mizar_nodeagent.cuda_context.costs import ContextCosts
from mizar_nodeagent.errors import KubeletAway, NotYet, RegionUnserved, StartRefused
from mizar_nodeagent.event_loop_turns import Turns
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.kubelet.device_checkpoint import Entry
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.device_lists import UNCONFIRMED
from mizar_nodeagent.pods import Key, Pod
from mizar_nodeagent.regions import limits_file, usage_file

log = get_logger(__name__)

OPTED_OUT = "; it has opted out of these limits"
"""The end of an event's message about the limits of such a container."""

Poll = Callable[[], Awaitable[Claims]]
"""Returns the kubelet's present claims. Raises KubeletAway."""
Records = Callable[[], tuple[Entry, ...]]
"""Returns the kubelet's own record of allocations. Raises KubeletAway."""


async def _no_check(slots: Sequence[Slot], uuids: Collection[str]) -> None: ...


@dataclass(frozen=True)
class PreStart:
    """Prepares containers' starts. `poll`: returns the kubelet's present claims. `records`: returns
    the kubelet's own record, which has the init containers that claims leave out. `notify`: emits
    an event on the pod about its devices. `warn`: emits a warning event on the pod that says why it
    does not start as it asks. `contexts`: the memory that CUDA contexts take.
    `minors`: returns the minor numbers of cards' device nodes. `check_access`: raises NotYet or
    StartRefused if the slots' container would not get its cards. `turns`: has containers that start
    at the same moment prepared one after the other. `pods`: returns the node's present pods;
    without it, those of the last plan are used. `by_way`: returns in words the way in which
    containers get their cards."""

    state: AgentState
    slots: Slots
    poll: Poll
    records: Records
    notify: NotifyGranted
    warn: Notify
    contexts: ContextCosts
    minors: Minors
    check_access: Callable[[Sequence[Slot], Collection[str]], Awaitable[None]] = _no_check
    turns: Turns = field(default_factory=Turns)
    pods: Callable[[], Mapping[Key, Pod]] | None = None
    by_way: Callable[[], str] = lambda: ""
    _starting: list[frozenset[str]] = field(default_factory=list)

    async def prepare(self, resource: str, ids: Sequence[str]) -> None:
        """Write the limits of the container that holds the devices. Raises NotYet, StartRefused."""
        try:
            claims = await self.poll()
        except KubeletAway as error:
            raise NotYet(str(error)) from error
        # If many containers start at once, all of them have waited for the same answer.
        await self.turns.wait()
        owner = self.owner(resource, ids, claims)
        bind(**owner.names)
        with self.starting(ids):
            await self._prepare(owner, resource, ids, claims)

    @contextmanager
    def starting(self, ids: Iterable[str]) -> Iterator[None]:
        """To be entered as soon as `owner` has found the container with the devices, and left when
        its start has been prepared. Otherwise, the start of another container with one of them
        could overtake this one meanwhile."""
        devices = frozenset(ids)
        self._starting.append(devices)
        try:
            yield
        finally:
            self._starting.remove(devices)

    async def _prepare(
        self, owner: Owner, resource: str, ids: Sequence[str], claims: Claims
    ) -> None:
        try:
            slots, names = await self._checked_slots(owner, resource, ids, claims)
            # A plan may have changed the limits meanwhile, or found that the cards are lost.
            groups = self._groups(owner, resource, ids, claims)
            limits = self._present_limits(owner, groups)
            is_new = all(slot.owner is None for slot in slots)
            for slot in slots:
                container = names.get(slot.name, owner.container)
                self.write(slot, replace(owner, container=container), limits)
        except StartRefused as error:
            self.warn(owner, error.reason, str(error))
            raise
        if is_new:
            # Emit this event once for each container, however often it starts.
            note = describe_limits(owner.container, groups, limits)
            note += self._remarks(slots)
            self.notify(owner, EventReason.DEVICE_GRANTED, note, gets_less(groups, limits))

    async def _checked_slots(
        self, owner: Owner, resource: str, ids: Sequence[str], claims: Claims
    ) -> tuple[list[Slot], Mapping[str, str]]:
        """The slots of these devices, and the names of the containers that they are recorded for,
        by the slot's name. Raises StartRefused if the container must not start with them."""
        if not self._has_started(owner, resource, ids):
            check_same_card(self.state, self.pod(owner.namespace, owner.pod), ids)
        groups = self._groups(owner, resource, ids, claims)
        limits = await self._limits(owner, groups)
        slots = self.slots_of(owner, resource, ids)
        names = self._recorded_containers(slots)
        slots = [self._opted(slot, owner, names.get(slot.name), groups) for slot in slots]
        check_shim(groups, [slot for slot in slots if not slot.opted_out])
        own = [
            slot for slot in slots if slot.owner is None or slot.owner.container == owner.container
        ]
        await self.check_access(own, [one.uuid for one in limits.cards])
        for slot in own:
            await check_device_nodes(self.minors, slot.minors)
        return slots, names

    def _remarks(self, slots: Iterable[Slot]) -> str:
        out = OPTED_OUT if any(slot.opted_out for slot in slots) else ""
        way = self.by_way()
        return f"{out}; it gets its cards by {way}" if way else out

    def _has_started(self, owner: Owner, resource: str, ids: Sequence[str]) -> bool:
        """Whether a container of the pod has started with exactly these devices before."""
        found = self.slots.of(resource, ids)
        return any(slot.owner is not None and slot.owner.of_pod(owner) for slot in found)

    def _opted(
        self, slot: Slot, owner: Owner, recorded: str | None, groups: Sequence[DeviceGroup]
    ) -> Slot:
        """The slot, with or without the file that loads the shim, as its container's pod asks and
        its quota permits. Raises NotYet."""
        container = slot.owner.container if slot.owner else recorded or owner.container
        wanted = wants_out(self.pod(owner.namespace, owner.pod), container)
        if wanted and slot.owner is None and not may_opt_out(groups):
            self.warn(owner, EventReason.OPT_OUT_REFUSED, REFUSED.format(container))
        try:
            return self.slots.opt_out(slot, wanted and may_opt_out(groups))
        except OSError as error:
            raise NotYet(f"slot {slot.name} cannot be written: {error}") from error

    async def _limits(self, owner: Owner, groups: list[DeviceGroup]) -> ContainerLimits:
        """The container's limits. Only the first container on a model of card waits until the size
        of a context is measured."""
        cards = {card.uuid for card in self._present_limits(owner, groups).cards}
        await self.contexts.learn(sorted(cards))
        return self._present_limits(owner, groups)

    def _present_limits(self, owner: Owner, groups: list[DeviceGroup]) -> ContainerLimits:
        priority = priority_of(self.pod(owner.namespace, owner.pod))
        return container_limits(groups, priority, self.contexts.of)

    def owner(self, resource: str, ids: Sequence[str], claims: Claims) -> Owner:
        """The container that holds the devices, by the kubelet's claims or else by its record,
        which has init containers too. Raises NotYet; StartRefused if another container has one of
        them as well."""
        found = {
            self._owner_of(claim.namespace, claim.pod, claim.container)
            for claim in claims.exactly(resource, ids)
            if not self._ended(claim.namespace, claim.pod)
        } or set(self._recorded_owners(resource, ids))
        if not found:
            raise NotYet(f"the kubelet names no pod for {', '.join(sorted(ids))}")
        owner = min(found, key=lambda one: one.container)
        self._check_former_users(owner, ids)
        self._check_not_shared(owner, resource, [self._with(one, ids) for one in found], claims)
        return owner

    def _check_former_users(self, owner: Owner, ids: Iterable[str]) -> None:
        """Raise NotYet while the API server has not told, since the agent's start, whether another
        pod still exists whose container had one of the devices: a kubelet that has lost its record
        gives devices of containers that run to others."""
        # Once it has told, there are pods: the one that holds the card is one of them.
        if self._pods():
            return
        for slot in self.slots.by_age():
            other = slot.owner
            had = not slot.ids.isdisjoint(ids)
            if had and other is not None and not other.of_pod(owner):
                raise NotYet(
                    f"pod {other.namespace}/{other.pod} had a device of this container's, and the "
                    "API server, which knows whether it has ended, has not answered yet"
                )

    def _check_not_shared(
        self, owner: Owner, resource: str, found: Sequence[Holding], claims: Claims
    ) -> None:
        """Raise StartRefused if another container has one of the devices as well, with an event on
        the pods that have to go; NotYet if none has to, since the others end anyway, or if it is
        not decided yet, since another container is starting. `found`: the containers that may be
        the one that is to start, of which `owner` is one."""
        ids, slots = found[0].ids, self.slots.by_age()
        holdings = [*self._claimed(resource, ids, claims)]
        if may_be_given_to_others(owner, ids, slots):
            holdings += self._kept_by_init(resource, ids)
        holdings += [one for one in found if one not in holdings]
        shared = sharing(ids, holdings, self._pods(), slots)
        if shared is None:
            return
        if any(one & ids for one in self._starting):
            raise NotYet(f"a container with one of {', '.join(sorted(ids))} is just starting")
        if shared.first_may_start:
            return
        why, leaving = shared.describe(), shared.leaving
        if not leaving:
            raise NotYet(why)
        for key in leaving:
            self.warn(self._owner_of(*key, ""), EventReason.DEVICE_GIVEN_TWICE, why)
        raise StartRefused(why, EventReason.DEVICE_GIVEN_TWICE)

    def _claimed(self, resource: str, ids: frozenset[str], claims: Claims) -> Iterable[Holding]:
        """The containers that have one of the devices, by the kubelet's claims."""
        for one in claims.all:
            is_one = one.resource == resource and not one.ids.isdisjoint(ids)
            if is_one and not self._ended(one.namespace, one.pod):
                owner = self._owner_of(one.namespace, one.pod, one.container)
                yield Holding(owner, one.ids)

    def _kept_by_init(self, resource: str, ids: frozenset[str]) -> Iterable[Holding]:
        """The init containers that have one of the devices, which only the kubelet's record
        names. While the record cannot be read, they are left out: otherwise no container could
        start."""
        asking = [one for one in self._running() if one.requested(resource) and one.init_containers]
        pods = {uid: pod for pod in asking for uid in pod.uids}
        for entry in self._readable_entries() if pods else ():
            is_one = entry.resource == resource and bool(entry.ids & ids)
            pod = pods.get(entry.pod_uid) if is_one else None
            if pod is not None and entry.container in pod.init_containers:
                owner = Owner(pod.namespace, pod.name, pod.uid, entry.container)
                yield Holding(owner, entry.ids, init=True)

    def _with(self, owner: Owner, ids: Iterable[str]) -> Holding:
        pod = self.pod(owner.namespace, owner.pod)
        init = pod is not None and owner.container in pod.init_containers
        return Holding(owner, frozenset(ids), init)

    def _owner_of(self, namespace: str, pod: str, container: str) -> Owner:
        found = self.pod(namespace, pod)
        return Owner(namespace, pod, found.uid if found else "", container)

    def _ended(self, namespace: str, name: str) -> bool:
        pod = self.pod(namespace, name)
        return pod is not None and pod.ended

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The node's pod of that name; None if it is not known."""
        return self._pods().get((namespace, name))

    def _pods(self) -> Mapping[Key, Pod]:
        """The node's pods by the watch, also those since the last plan."""
        return (self.state.snapshot.pods or {}) if self.pods is None else self.pods()

    def _recorded_owners(self, resource: str, ids: Sequence[str]) -> Iterable[Owner]:
        pods = {uid: pod for pod in self._running() for uid in pod.uids}
        for entry in self._entries():
            if (entry.resource, entry.ids) == (resource, frozenset(ids)) and entry.pod_uid in pods:
                pod = pods[entry.pod_uid]
                yield Owner(pod.namespace, pod.name, pod.uid, entry.container)

    def _entries(self) -> tuple[Entry, ...]:
        try:
            return self.records()
        except KubeletAway as error:
            raise NotYet(str(error)) from error

    def _readable_entries(self) -> tuple[Entry, ...]:
        """The kubelet's record; nothing if it cannot be read."""
        try:
            return self.records()
        except KubeletAway as error:
            log.warning("nothing is known of init containers", error=error)
            return ()

    def _running(self) -> Iterable[Pod]:
        return (pod for pod in self._pods().values() if not pod.ended)

    def _groups(
        self, owner: Owner, resource: str, ids: Sequence[str], claims: Claims
    ) -> list[DeviceGroup]:
        """The container's devices by carving, checked to be ones that it may have. Raises
        StartRefused, NotYet."""
        check_one_resource(owner, resource, claims)
        groups: list[DeviceGroup] = []
        for devices in by_shadow_pod(ids):
            carving = self._carving(devices[0])
            check_tenant(owner, carving)
            check_cards_there(carving, devices)
            groups.append((carving, devices))
        return groups

    def _carving(self, device: DeviceID) -> Carving:
        carving = present_carving(self.state, device)
        if not carving.confirmed:
            raise NotYet(f"{device} cannot be used yet: {UNCONFIRMED}")
        return carving

    def slots_of(self, owner: Owner, resource: str, ids: Sequence[str]) -> list[Slot]:
        """The slots that the container may have mounted: those of its pod, and new ones without an
        owner. Raises NotYet."""
        found = [
            slot
            for slot in self.slots.of(resource, ids)
            if slot.owner is None or slot.owner.of_pod(owner)
        ]
        if not found:
            found = self._recovered(resource, ids)
        elif not any(self.slots.is_certain(slot, owner) for slot in found):
            found += self._lost_beside(found, owner)
        for slot in found:
            try:
                self.slots.complete(slot)
            except OSError as error:
                raise NotYet(f"the files of slot {slot.name} cannot be made: {error}") from error
        return found

    def _recorded_containers(self, slots: Sequence[Slot]) -> Mapping[str, str]:
        """The container of each slot, by the slot's name, if several slots are new; otherwise
        empty. If an init container had the devices first, the claims name the container that has
        them next, and only the kubelet's record says which slot is whose."""
        if sum(slot.owner is None for slot in slots) < 2:
            return {}
        recorded = recorded_slots(self._readable_entries(), self._running(), self.slots.root)
        return {name: entry.container for name, entry in recorded.items()}

    def _recovered(self, resource: str, ids: Sequence[str]) -> list[Slot]:
        """Create again the slots that only the kubelet's record has, since the kubelet mounts them.
        Raises NotYet, StartRefused."""
        entries = self._entries()
        found = self._lost(entries, self._running(), resource, ids)
        if not found and self._went_without_files(entries, resource, ids):
            found.append(self.slots.create(resource, ids, 0.0, shim=False))
        if not found:
            self._check_folder(entries, resource, ids)
            raise NotYet(f"no slot is known for {', '.join(sorted(ids))}")
        return found

    def _lost_beside(self, found: Sequence[Slot], owner: Owner) -> list[Slot]:
        """Create again the slots that the kubelet mounts into the owner's pod beside those that
        were found: an earlier agent may have ended before they had all of their files, and those
        that were found may be of another pod of that name. Raises NotYet."""
        pod, slot = self.pod(owner.namespace, owner.pod), found[0]
        known = {one.name for one in found}
        pods = [] if pod is None else [pod]
        # The newest is the one in use: see slots_in_use.
        created = math.nextafter(found[-1].created, math.inf)
        return self._lost(self._readable_entries(), pods, slot.resource, slot.ids, known, created)

    def _lost(
        self,
        entries: Iterable[Entry],
        pods: Iterable[Pod],
        resource: str,
        ids: Iterable[str],
        known: Container[str] = (),
        created: float = 0.0,
    ) -> list[Slot]:
        """Create again the slots of these devices that the kubelet mounts into the pods, except
        those whose names are `known`. `created`: the creation time of those of which nothing is
        left, in seconds since the epoch. Raises NotYet."""
        here = {slot.name: slot for slot in self.slots.all()}
        found = []
        for name, entry in recorded_slots(entries, pods, self.slots.root).items():
            if (entry.resource, entry.ids) != (resource, frozenset(ids)) or name in known:
                continue
            log.warning("a slot was lost: created again from the kubelet's record", slot=name)
            found.append(self._created_again(name, here.get(name), resource, ids, created))
        return found

    def _created_again(
        self, name: str, known: Slot | None, resource: str, ids: Iterable[str], created: float
    ) -> Slot:
        """The slot, of which the disk has only a part (`known`) or nothing. Raises NotYet."""
        if known is None:
            return self.slots.create(resource, ids, created, name)
        try:
            return self.slots.describe(known, resource, ids)
        except OSError as error:
            raise NotYet(f"slot {name} cannot be written: {error}") from error

    def _went_without_files(
        self, entries: Iterable[Entry], resource: str, ids: Sequence[str]
    ) -> bool:
        """Whether the kubelet's record has a container of a living pod with exactly these devices
        and without a slot's files: it was admitted while isolation.backend was None."""
        uids = {uid for pod in self._running() for uid in pod.uids}
        return any(
            (entry.resource, entry.ids) == (resource, frozenset(ids))
            and entry.pod_uid in uids
            and not any(Path(path).name == LIMITS for path in entry.mounts)
            for entry in entries
        )

    def _check_folder(self, entries: Iterable[Entry], resource: str, ids: Sequence[str]) -> None:
        """Raise StartRefused if the container's files are in another folder than slots are now: the
        kubelet repeats the answer of the first start."""
        uids = {uid for pod in self._running() for uid in pod.uids}
        for entry in entries:
            if (entry.resource, entry.ids) == (resource, frozenset(ids)) and entry.pod_uid in uids:
                for path in map(Path, entry.mounts):
                    if path.name == LIMITS and path.parents[1] != self.slots.root:
                        raise StartRefused(
                            f"its files are in {path.parent}: nodeagent.stateDir was changed to "
                            f"{self.slots.root.parent} after its start: delete the pod",
                            EventReason.ISOLATION_NOT_ENFORCED,
                        )

    def write(self, slot: Slot, owner: Owner, limits: ContainerLimits) -> None:
        """Repair the slot's files, write its limits, and record its owner; of an owner that it
        has already, only the pod's UID is updated. Raises NotYet, StartRefused."""
        owner = owner if slot.owner is None else replace(slot.owner, pod_uid=owner.pod_uid)
        identity = limits_file.ContainerIdentity(
            owner.namespace, owner.pod, owner.pod_uid, owner.container, slot.name
        )
        try:
            limits_file.repair_size(slot.limits)
            usage_file.repair_header(slot.usage, limits_file.version(slot.limits))
            self.slots.write_limits(slot, identity, limits)
            self.slots.assign(slot, owner)
        except RegionUnserved as error:
            raise StartRefused(str(error), EventReason.ISOLATION_NOT_ENFORCED) from error
        except OSError as error:
            raise NotYet(f"the limits of slot {slot.name} cannot be written: {error}") from error
        log.info(
            "limits written",
            slot=slot.name,
            memory_mib={one.uuid: one.memory_bytes >> 20 for one in limits.cards},
            core_share={one.uuid: one.core_share for one in limits.cards},
        )
