"""The limits of containers that run follow what their shadow pods are told later, and end with
their cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mizar_core.carve import CardLimit, Carve
from mizar_core.device_ids import DeviceID
from mizar_core.errors import DeviceIDRefused
from mizar_core.names import EventReason
from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.collect import living
from mizar_nodeagent.container.grants import Grant, Part, by_shadow_pod, changes, grant, priority_of
from mizar_nodeagent.container.prestart import WITHOUT_SHIM
from mizar_nodeagent.container.slots import Notify, Owner, Slot, Slots
from mizar_nodeagent.errors import RegionDamaged, StartRefused
from mizar_nodeagent.planning.carving import Carving, HeldCard, Stage
from mizar_nodeagent.planning.isolation import wants_shim
from mizar_nodeagent.planning.loss import why_lost
from mizar_nodeagent.planning.view import View
from mizar_nodeagent.pods import Pod
from mizar_nodeagent.regions import limits_file

log = get_logger(__name__)

Terms = tuple[tuple[Carve, tuple[HeldCard, ...]], ...]
"""All that a container's limits follow from, but for its priority, which never changes."""

KEEPS_LIMITS = (
    "isolation.backend is None now: this container keeps its limits of memory, and a pod that is "
    "made after this one has none"
)


@dataclass(frozen=True)
class _Change:
    """A slot whose limits may not be what they should be."""

    slot: Slot
    pod: Pod
    parts: tuple[Part, ...]

    @property
    def terms(self) -> Terms:
        return tuple((carving.carve, carving.cards) for carving, _ in self.parts)

    @property
    def wants_shim(self) -> bool:
        return any(wants_shim(carving.carve.isolation) for carving, _ in self.parts)


@dataclass(frozen=True)
class _Loss:
    """Cards that are not the container's any more; None: all that it had."""

    shadow: str
    uuids: frozenset[str] | None
    why: str

    def sentence(self, slot: Slot) -> str:
        """For the container's owner."""
        cards = f"card {', '.join(sorted(self.uuids))}" if self.uuids else "its cards"
        work = "starts no more work there" if slot.shim else "may work there until it ends"
        return f"shadow pod {self.shadow} lost {cards}: {self.why}; the container {work}"


class Follower:
    """Writes the limits of slots that are in use whenever they should be others. What an earlier
    agent had not come to, or had half written, is found by comparing with the files."""

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
        self._done: dict[str, Terms | _Loss] = {}

    def follow(self) -> None:
        """Once, by what the state knows now. Nothing is concluded before the API server has told
        what the shadow pods' annotations are: memory may be older than the files."""
        view, slots = self._state.view, self._slots.all()
        if view.pods is None:
            return
        self._done = {slot.name: self._done[slot.name] for slot in slots if slot.name in self._done}
        alive = _alive(slots, view)
        for slot in slots:
            if slot.owner is not None and (loss := self._loss(slot, view)):
                self._stop(slot, slot.owner, loss, view)
        changed = [found for slot in slots if (found := self._change(slot, view))]
        # Who gets less comes first, so that a card is never promised beyond itself.
        for one in sorted(changed, key=_is_growing):
            self._write(one, one.slot.name in alive)

    def _loss(self, slot: Slot, view: View) -> _Loss | None:
        """The cards of the container that are lost; all, where it is not known which."""
        uuids: set[str] | None = set()
        why = shadow = ""
        for devices in _groups(slot):
            key, carving = (devices[0].namespace, devices[0].shadow), self._carving(devices[0])
            if not (reason := why_lost(key, carving, view)):
                continue
            why, shadow = reason, key[1]
            if carving is None or uuids is None:
                uuids = None
            else:
                uuids |= {carving.card(one).uuid for one in devices}
        return _Loss(shadow, None if uuids is None else frozenset(uuids), why) if why else None

    def _carving(self, device: DeviceID) -> Carving | None:
        return self._state.carving_of(device)

    def _stop(self, slot: Slot, owner: Owner, loss: _Loss, view: View) -> None:
        known = self._done.get(slot.name)
        if isinstance(known, _Loss) and known.uuids == loss.uuids:
            return
        try:
            is_new = limits_file.stop_cards(slot.limits, loss.uuids)
        except (OSError, RegionDamaged) as error:
            log.warning("the slot's work cannot be stopped", slot=slot.name, error=error)
            return
        self._done[slot.name] = loss
        if is_new:
            log.warning("work stopped", problem=loss.why, **slot.names)
        if is_new and _pod_of(slot, view) is not None:
            self._warn(owner, EventReason.CARD_LOST, loss.sentence(slot))

    def _change(self, slot: Slot, view: View) -> _Change | None:
        pod = _pod_of(slot, view)
        parts = self._parts(slot)
        if pod is None or parts is None:
            return None
        change = _Change(slot, pod, parts)
        return None if self._done.get(slot.name) == change.terms else change

    def _parts(self, slot: Slot) -> tuple[Part, ...] | None:
        """Its devices with their carvings; None while one is not known, or goes."""
        parts: list[Part] = []
        for devices in _groups(slot):
            carving = self._carving(devices[0])
            if carving is None or carving.stage is Stage.LEAVING:
                return None
            parts.append((carving, devices))
        return tuple(parts) or None

    def _write(self, change: _Change, alive: bool) -> None:
        slot, owner = change.slot, change.slot.owner
        assert owner is not None
        try:
            before = _read(slot)
            wanted = grant(change.parts, priority_of(change.pod), self._context_bytes)
            limits_file.write(
                slot.limits,
                _identity(slot, owner),
                wanted.cards,
                wanted.physical,
                wanted.contexts,
            )
        except StartRefused as error:
            # It runs on with the limits that it has.
            self._refused(owner, error, alive)
        except (OSError, RegionDamaged) as error:
            log.warning("the slot's limits cannot be changed", slot=slot.name, error=error)
            return
        else:
            if alive:
                self._told(change, owner, before, wanted)
        self._done[slot.name] = change.terms

    def _refused(self, owner: Owner, error: StartRefused, alive: bool) -> None:
        if alive:
            self._warn(owner, error.reason, f"its limits stay as they are: {error}")

    def _told(
        self, change: _Change, owner: Owner, before: Sequence[CardLimit], wanted: Grant
    ) -> None:
        if change.wants_shim and not change.slot.shim:
            self._warn(owner, EventReason.ISOLATION_NOT_ENFORCED, WITHOUT_SHIM)
            return
        words = [changes(before, wanted.cards)] if before else []
        # Not after a start of the agent: it was told before.
        if change.slot.shim and not change.wants_shim and change.slot.name in self._done:
            words.append(KEEPS_LIMITS)
        if note := "; ".join(filter(None, words)):
            self._notify(owner, EventReason.LIMITS_CHANGED, note)


def _groups(slot: Slot) -> list[list[DeviceID]]:
    """Its devices by shadow pod; nothing where slot.json was lost or is damaged."""
    try:
        return by_shadow_pod(slot.ids)
    except DeviceIDRefused:
        return []


def _alive(slots: list[Slot], view: View) -> set[str]:
    """Slots whose containers run, or may run while the kubelet has not told yet."""
    known = view.claims.asked_at > float("-inf")
    return {slot.name for slot in (living(slots, view) if known else slots)}


def _pod_of(slot: Slot, view: View) -> Pod | None:
    """The pod, that has not ended, of a container that was permitted to start."""
    owner = slot.owner
    pod = (view.pods or {}).get((owner.namespace, owner.pod)) if owner else None
    if owner is None or pod is None or pod.ended or owner.pod_uid not in ("", *pod.uids):
        return None
    return pod


def _identity(slot: Slot, owner: Owner) -> limits_file.ContainerIdentity:
    return limits_file.ContainerIdentity(
        owner.namespace, owner.pod, owner.pod_uid, owner.container, slot.name
    )


def _read(slot: Slot) -> tuple[CardLimit, ...]:
    """What the file says; nothing where it is damaged."""
    try:
        return limits_file.card_limits(limits_file.read(slot.limits))
    except RegionDamaged:
        return ()


def _is_growing(change: _Change) -> bool:
    """Whether the container gets more memory of any card than its file says."""
    try:
        wanted = grant(change.parts, 0).cards
        before = {one.uuid: one.memory_bytes for one in _read(change.slot)}
    except (OSError, StartRefused):
        return True
    return any(one.memory_bytes > before.get(one.uuid, 0) for one in wanted)
