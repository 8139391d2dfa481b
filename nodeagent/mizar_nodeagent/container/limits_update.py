"""Updates the limits of running containers: when their shadow pods' carves change, and when they
lose their cards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from mizar_core.carve import CardLimit, Carve
from mizar_core.device_ids import DeviceID
from mizar_core.errors import DeviceIDRefused
from mizar_core.names import EventReason
from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.cards import Card
from mizar_nodeagent.container.limits import (
    ContainerLimits,
    DeviceGroup,
    by_shadow_pod,
    container_limits,
    describe_changes,
    priority_of,
    wants_shim,
)
from mizar_nodeagent.container.opt_out import NO_MORE, may_opt_out
from mizar_nodeagent.container.prestart_checks import WITHOUT_SHIM
from mizar_nodeagent.container.slots import Notify, Owner, Slot, Slots
from mizar_nodeagent.container.used_slots import slots_in_use
from mizar_nodeagent.errors import RegionDamaged, RegionUnserved, StartRefused
from mizar_nodeagent.event_loop_turns import let_calls_in
from mizar_nodeagent.planning.card_loss import gone_reason, loss_reason
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.regions import limits_file

log = get_logger(__name__)

AT_ONCE: Final = 100
"""Number of slots that are compared with the agent's state without a pause: some hundred
microseconds. Each container that has ended keeps its slot for half a minute or more."""

Terms = tuple[tuple[Carve, tuple[Card, ...]], ...]
"""All that a container's limits are computed from, except its priority, which never changes."""

KEEPS_LIMITS = (
    "isolation.backend is now None: this container keeps its memory limits until its pod is "
    "deleted; new pods have none"
)
"""A sentence for containers whose shim stays although their isolation sets no limits any more."""


@dataclass(frozen=True)
class _Change:
    """A slot whose limits may have to change."""

    slot: Slot
    pod: Pod
    groups: tuple[DeviceGroup, ...]

    @property
    def terms(self) -> Terms:
        """All that the slot's limits are computed from now."""
        return tuple((carving.carve, carving.cards) for carving, _ in self.groups)

    @property
    def wants_shim(self) -> bool:
        """Whether the isolation of one of the devices sets limits."""
        return any(wants_shim(carving.carve.isolation) for carving, _ in self.groups)


@dataclass(frozen=True)
class _Loss:
    """Cards that the container has lost; `uuids` None: all of them."""

    shadow: str
    uuids: frozenset[str] | None
    why: str

    def sentence(self, slot: Slot) -> str:
        """A sentence about the loss, for an event on the container's pod."""
        cards = f"card {', '.join(sorted(self.uuids))}" if self.uuids else "its cards"
        work = "starts no more work there" if slot.shim else "may work there until it ends"
        return f"shadow pod {self.shadow} lost {cards}: {self.why}; the container {work}"


class LimitsUpdater:
    """Writes the limits of slots whenever they have to change. Limits that an earlier agent did not
    write, or left half written, are found by comparison with the files."""

    def __init__(
        self,
        state: AgentState,
        slots: Slots,
        notify: Notify,
        warn: Notify,
        context_bytes: Callable[[str], int],
    ) -> None:
        self._state = state
        self._slots = slots
        self._notify = notify
        self._warn = warn
        self._context_bytes = context_bytes
        self._written: dict[str, Terms | _Loss] = {}
        self._failed: set[str] = set()

    def update(self) -> None:
        """Write what differs from the agent's state now. Nothing is written before the shadow pods'
        annotations have been read from the API server: a checkpoint may be older than the files."""
        for _ in self._update():
            pass

    async def update_with_pauses(self) -> None:
        """As `update`, but pause whenever AT_ONCE slots were compared with the state, so that the
        kubelet's calls are answered meanwhile."""
        for _ in self._update():
            await let_calls_in()

    def _update(self) -> Iterator[None]:
        """Yields where there may be a pause."""
        snapshot, slots = self._state.snapshot, self._slots.all()
        if snapshot.pods is None:
            return
        self._written = {
            slot.name: self._written[slot.name] for slot in slots if slot.name in self._written
        }
        changed: list[tuple[bool, _Change]] = []
        for number, slot in enumerate(slots, start=1):
            with self._isolated(slot):
                changed += self._compare(slot, snapshot)
            if number % AT_ONCE == 0:
                yield
        # No pause from here on: until all have been written, a card may be promised twice.
        self._write_all(changed, _running(slots, snapshot) if changed else set())

    def _compare(self, slot: Slot, snapshot: NodeSnapshot) -> Iterator[tuple[bool, _Change]]:
        """Stop the slot's work on cards that it has lost. Yields its change, if there is one, and
        whether it gets more memory."""
        if slot.owner is not None and (loss := self._lost_cards(slot, snapshot)):
            self._stop(slot, slot.owner, loss, snapshot)
        if found := self._change(slot, snapshot):
            yield _grows(found), found

    def _write_all(self, changed: Sequence[tuple[bool, _Change]], running: Collection[str]) -> None:
        """Write the limits, first those of containers that get less, so that a card is never
        promised beyond its memory. `running`: the names of slots whose containers run."""
        for _, one in sorted(changed, key=lambda pair: pair[0]):
            with self._isolated(one.slot):
                self._write(one, one.slot.name in running)

    @contextmanager
    def _isolated(self, slot: Slot) -> Iterator[None]:
        """Log an error of the agent with one slot and leave the slot's limits as they are, so that
        the other slots are updated all the same."""
        try:
            yield
        except Exception as error:
            if slot.name not in self._failed:
                log.error("the slot keeps its earlier limits", exc_info=error, **slot.names)
            self._failed.add(slot.name)
        else:
            self._failed.discard(slot.name)

    def _lost_cards(self, slot: Slot, snapshot: NodeSnapshot) -> _Loss | None:
        """The cards that the container has lost; None if it has lost none."""
        uuids: set[str] | None = set()
        why = shadow = ""
        for devices in _groups(slot):
            key, carving = (devices[0].namespace, devices[0].shadow), self._carving(devices[0])
            reason = loss_reason(key, carving, snapshot)
            gone = carving.gone_of(devices) if carving is not None else frozenset[str]()
            if not reason and not gone:
                continue
            why, shadow = reason or gone_reason(gone), key[1]
            if carving is None or uuids is None:
                uuids = None
            else:
                uuids |= gone if not reason else {carving.card(one).uuid for one in devices}
        return _Loss(shadow, None if uuids is None else frozenset(uuids), why) if why else None

    def _carving(self, device: DeviceID) -> Carving | None:
        return self._state.carving_of(device)

    def _stop(self, slot: Slot, owner: Owner, loss: _Loss, snapshot: NodeSnapshot) -> None:
        known = self._written.get(slot.name)
        if isinstance(known, _Loss) and known.uuids == loss.uuids:
            return
        try:
            is_new = limits_file.stop_cards(slot.limits, loss.uuids)
        except (OSError, RegionDamaged) as error:
            log.warning("the slot's work cannot be stopped", slot=slot.name, error=error)
            return
        self._written[slot.name] = loss
        if is_new:
            log.warning("work stopped", problem=loss.why, **slot.names)
        if is_new and _pod_of(slot, snapshot) is not None:
            self._warn(owner, EventReason.CARD_LOST, loss.sentence(slot))

    def _change(self, slot: Slot, snapshot: NodeSnapshot) -> _Change | None:
        pod = _pod_of(slot, snapshot)
        groups = self._device_groups(slot)
        if pod is None or groups is None:
            return None
        change = _Change(slot, pod, groups)
        return None if self._written.get(slot.name) == change.terms else change

    def _device_groups(self, slot: Slot) -> tuple[DeviceGroup, ...] | None:
        """The slot's devices with their carvings; None while a carving is not known, or is leaving,
        or one of the devices is on a card that is gone: work there would be permitted again."""
        groups: list[DeviceGroup] = []
        for devices in _groups(slot):
            carving = self._carving(devices[0])
            if carving is None or carving.stage is DrainStage.LEAVING:
                return None
            if carving.gone_of(devices):
                return None
            groups.append((carving, devices))
        return tuple(groups) or None

    def _write(self, change: _Change, is_running: bool) -> None:
        slot, owner = change.slot, change.slot.owner
        assert owner is not None
        try:
            before = _read(slot)
            wanted = container_limits(change.groups, priority_of(change.pod), self._context_bytes)
            identity = _identity(slot, owner)
            self._slots.write_limits(slot, identity, wanted)
        except StartRefused as error:
            # The container runs on with its present limits.
            if is_running:
                self._warn(owner, error.reason, f"its limits stay as they are: {error}")
        except RegionUnserved as error:
            self._warn(owner, EventReason.ISOLATION_NOT_ENFORCED, str(error))
        except (OSError, RegionDamaged) as error:
            log.warning("the slot's limits cannot be changed", slot=slot.name, error=error)
            return
        else:
            if is_running:
                self._notify_change(change, owner, before, wanted)
        self._written[slot.name] = change.terms

    def _notify_change(
        self, change: _Change, owner: Owner, before: Sequence[CardLimit], wanted: ContainerLimits
    ) -> None:
        if change.wants_shim and not change.slot.shim:
            if not (change.slot.opted_out and may_opt_out(change.groups)):
                why = NO_MORE if change.slot.opted_out else WITHOUT_SHIM
                self._warn(owner, EventReason.ISOLATION_NOT_ENFORCED, why)
            return
        note = describe_changes(before, wanted.cards) if before else ""
        # An agent that has just started and finds no change: the previous one emitted the event.
        is_told = not note and change.slot.name not in self._written
        if change.slot.shim and not change.wants_shim and not is_told:
            note = "; ".join(filter(None, [note, KEEPS_LIMITS]))
        if note:
            self._notify(owner, EventReason.LIMITS_CHANGED, note)


def _groups(slot: Slot) -> list[list[DeviceID]]:
    """The slot's devices by shadow pod; empty if slot.json was lost or is damaged."""
    return _groups_of(slot.ids)


@lru_cache(maxsize=4096)
def _groups_of(ids: frozenset[str]) -> list[list[DeviceID]]:
    """Cached, since each plan needs this for all slots, most of which have not changed."""
    try:
        return by_shadow_pod(ids)
    except DeviceIDRefused:
        return []


def _running(slots: list[Slot], snapshot: NodeSnapshot) -> set[str]:
    """Names of slots whose containers run; all slots while the kubelet has not answered yet."""
    known = snapshot.claims.are_known
    return {slot.name for slot in (slots_in_use(slots, snapshot) if known else slots)}


def _pod_of(slot: Slot, snapshot: NodeSnapshot) -> Pod | None:
    """The pod of a container that has started once; None if it has ended or is not known."""
    owner = slot.owner
    pod = (snapshot.pods or {}).get((owner.namespace, owner.pod)) if owner else None
    if owner is None or pod is None or pod.ended or owner.pod_uid not in ("", *pod.uids):
        return None
    return pod


def _identity(slot: Slot, owner: Owner) -> limits_file.ContainerIdentity:
    return limits_file.ContainerIdentity(
        owner.namespace, owner.pod, owner.pod_uid, owner.container, slot.name
    )


def _read(slot: Slot) -> tuple[CardLimit, ...]:
    """The limits in the slot's file; empty if it is damaged. Raises OSError."""
    try:
        return limits_file.card_limits(limits_file.read(slot.limits))
    except RegionDamaged:
        return ()


def _grows(change: _Change) -> bool:
    """Whether the container gets more memory of any card than its file says."""
    try:
        wanted = container_limits(change.groups, 0).cards
        before = {one.uuid: one.memory_bytes for one in _read(change.slot)}
    except (OSError, StartRefused):
        return True
    return any(one.memory_bytes > before.get(one.uuid, 0) for one in wanted)
