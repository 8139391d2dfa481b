"""Lends the node's cards: tracks what their owners do, and publishes which cards may be
borrowed. loan.py decides for how long a card's owners must have been idle before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mizar_core.models import Spot
from mizar_core.names import PHYSICAL_RESOURCE, POD_CONDITION_ACTIVE, SPOT_RESOURCE, EventReason
from mizar_core.spot_rules import SpotRule
from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import ALLOCATING_FOR_S, AgentState
from mizar_nodeagent.container.slots import Notify, Owner, Slot, Slots
from mizar_nodeagent.container.used_slots import slots_in_use
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.kubelet.poller import KubeletPoller
from mizar_nodeagent.node_status import NodeStatusWriter
from mizar_nodeagent.planning.device_lists import Device
from mizar_nodeagent.planning.snapshot import NodeSnapshot
from mizar_nodeagent.plugin.manager import PluginManager
from mizar_nodeagent.regions import limits_file
from mizar_nodeagent.spot import device_list, owner_conditions
from mizar_nodeagent.spot.borrowers import Borrower, borrowers, with_init_containers
from mizar_nodeagent.spot.detectors.card_processes import CardLoads, ProcessDetector
from mizar_nodeagent.spot.detectors.owner_pods import OwnerPodDetector
from mizar_nodeagent.spot.detectors.pod_starts import PodStartDetector
from mizar_nodeagent.spot.detectors.usage_files import UsageDetector
from mizar_nodeagent.spot.loan import CardFacts, CardLoan, CardState
from mizar_nodeagent.spot.owner_events import Activity, OwnerEvent, PodIdentity
from mizar_nodeagent.spot.owners import CardOwner, pools, resources
from mizar_nodeagent.spot.pod_conditions import PodConditionWriter
from mizar_nodeagent.spot.reclaim import Reclaimer
from mizar_nodeagent.spot.rule_source import RuleSource

log = get_logger(__name__)

OFFERED: Final = (CardState.LENDABLE, CardState.LENT, CardState.RECLAIMING)
"""States in which a borrower may use the card or may be given it at any moment."""
FOLLOW_S: Final = 0.05
"""Seconds between two polls of the kubelet while its spot devices differ from those it was sent."""
FOLLOW_FOR_S: Final = 5.0
"""Seconds after a change of the spot devices during which the kubelet is polled every FOLLOW_S."""


@dataclass
class Detectors:
    """The detectors that report what owners do, one of each kind."""

    owner_pods: OwnerPodDetector = field(default_factory=OwnerPodDetector)
    starts: PodStartDetector = field(default_factory=PodStartDetector)
    usage: UsageDetector = field(default_factory=UsageDetector)
    processes: ProcessDetector = field(default_factory=ProcessDetector)


@dataclass(frozen=True)
class SpotOutputs:
    """The parts that apply the lender's decisions."""

    plugins: PluginManager
    node: NodeStatusWriter
    conditions: PodConditionWriter
    reclaimer: Reclaimer
    poller: KubeletPoller
    notify: Notify


class Lender:
    """Decides about the loans of all cards of the node. Not thread-safe: all calls must come from
    one event loop. `loans`: the loan of each card, by UUID. `clock` returns monotonic seconds."""

    def __init__(
        self,
        state: AgentState,
        slots: Slots,
        rules: RuleSource,
        detectors: Detectors,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loans = {
            uuid: CardLoan(uuid, taken_back=times) for uuid, times in state.taken_back.items()
        }
        self._state = state
        self._slots = slots
        self._rules = rules
        self._detectors = detectors
        self._clock = clock
        self._borrowers: dict[str, Borrower] = {}
        self._rule: dict[str, Spot | None] = {}
        self._last_rule: dict[str, Spot] = {}
        self._allocating: dict[str, float] = {}
        self._listed: set[str] = set()
        self._revoked: set[str] = set()
        self._blind: set[str] = set()
        self._has_read = False
        self._cards_read = False
        self._knows_owners = False
        self._complete = False
        # The slots whose shims were told something by an earlier agent, or by this one in a write
        # that failed, and it is not known what. The shims of all others were told nothing at first.
        self._unsure = {slot.name for slot in slots.all()}
        self._shims: dict[str, frozenset[str]] = {}
        self._told: set[PodIdentity] = set()
        self._devices: tuple[Device, ...] = ()
        self._kubelet: frozenset[str] = frozenset()
        self._kubelet_offered = False
        self._follow_until = float("-inf")
        self._agreeing: dict[str, SpotRule | None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, outputs: SpotOutputs) -> None:
        """Set the parts that apply decisions. This is no argument of the constructor, since these
        parts need the lender themselves. Must be called before any other method."""
        self._outputs = outputs

    # ---- input ----

    def planned(self) -> None:
        """Process the agent's new snapshot."""
        snapshot, detectors = self._state.snapshot, self._detectors
        holding = with_init_containers(snapshot, self._slots.all())
        self._read_rules()
        self._read_borrowers(holding)
        if snapshot.claims.are_known:
            # Owners are watched before pods are listed: the API server may stay unreachable.
            carvings = self._state.carvings
            self._take(detectors.owner_pods.look(holding, carvings, self._agrees))
            self._note_what_is_known()
            # Until then, an owner may look new only because its card was unknown at the last
            # snapshot.
            if snapshot.pods is not None and self._knows_owners:
                now = self._clock()
                self._take(detectors.starts.look(self.owners, snapshot.pods, now))
        self.step()

    def look_at_usage(self) -> None:
        """Read the usage files of the owners' containers."""
        in_use = slots_in_use(self._slots.all(), self._state.snapshot)
        # Most reads find no change; then no decision can change either.
        if self._take(self._detectors.usage.look(self.owners, in_use, self._clock())):
            self.step()

    def look_at_processes(self, loads: CardLoads) -> None:
        """Process NVML's report of the processes on each card."""
        uids = self._spot_pods()
        lending = frozenset().union(*(owner.cards for owner in self._lending()))
        now = self._clock()

        def most(uuid: str) -> int:
            # An owner may become idle despite a little work, but not while its card is borrowed.
            return 0 if uuid in lending else self._most(uuid)

        changed = self._take(self._detectors.processes.look(self.owners, loads, uids, most, now))
        blind = {uuid for uuid in self._borrowers if self._detectors.processes.is_blind(uuid, now)}
        if changed or blind != self._blind:
            self._blind = blind
            self.step()

    def woke(self, names: Collection[str]) -> None:
        """Record that the containers with these slots began to work on borrowed cards, as the time
        slicer saw."""
        slots = {slot.name: slot for slot in self._slots.all()}
        self._take(self._detectors.usage.woke(names, self.owners, slots, self._clock()))
        self.step()

    def allocated(self, uuids: Sequence[str]) -> dict[str, list[str]]:
        """Record that the kubelet allocates the cards with these UUIDs to a pod. Returns the UUIDs
        by the physical resource as which their owners hold the cards."""
        self._allocating |= dict.fromkeys(uuids, self._clock())
        self._outputs.poller.poll_soon()
        self.step()
        found: dict[str, list[str]] = {}
        held = resources(self._state.snapshot)
        for uuid in uuids:
            found.setdefault(held.get(uuid, PHYSICAL_RESOURCE), []).append(uuid)
        return found

    # ---- queries ----

    @property
    def owners(self) -> tuple[CardOwner, ...]:
        """The owners of all cards, by the last snapshot."""
        return self._detectors.owner_pods.owners

    def rule(self, uuid: str) -> Spot | None:
        """The settings by which the card is lent; None if it is not lent."""
        return self._rule.get(uuid)

    def memory_bytes(self, uuid: str) -> int:
        """Memory of the whole card in bytes; 0 if the card is unknown."""
        card = self._state.snapshot.cards.get(uuid)
        return card.memory_bytes if card else 0

    def objection(self, uuid: str, owner: Owner) -> str | None:
        """Why the container must not start on the card now, as a clause for a message; None if it
        may start."""
        loan = self.loans.get(uuid)
        if loan is None or not loan.state.healthy:
            state = loan.state if loan else CardState.WITHHELD
            return f"it is {state.lower()}{f' ({loan.reason})' if loan and loan.reason else ''}"
        borrower = self._borrowers.get(uuid)
        if borrower and borrower.pod.key != (owner.namespace, owner.pod):
            return f"pod {borrower.pod} borrows it"
        return None

    def sees_owners(self) -> bool:
        """Whether work of an owner of a borrowed card would be detected, also without the shim:
        true once the kubelet has reported the borrowers, and NVML each borrowed card's
        processes."""
        return self._has_read and all(map(self._detectors.processes.has_seen, self._borrowers))

    def watched(self) -> frozenset[str]:
        """UUIDs of the cards whose processes must be polled: those that may be lent or are
        borrowed, and all other cards of a borrowed card's owner, since work on any of them
        counts."""
        ruled = {
            uuid
            for uuid, loan in self.loans.items()
            if loan.owners and self._rule.get(uuid) is not None
        }
        # The owner of a borrowed card may be unknown still, so borrowed cards are added themselves.
        return frozenset(ruled.union(self._borrowers, *(one.cards for one in self._lending())))

    def unseen_by_slicer(self) -> frozenset[str]:
        """UUIDs of all cards of each owner that has a borrowed card and runs without the shim, so
        that only NVML shows when it begins to work."""
        if not (lending := self._lending()):
            return frozenset()
        with_shim = {
            (slot.owner.namespace, slot.owner.pod)
            for slot in self._slots.all()
            if slot.owner is not None and slot.shim
        }
        return frozenset().union(
            *(owner.cards for owner in lending if owner.pod.key not in with_shim)
        )

    # ---- implementation ----

    def _spot_pods(self) -> set[str]:
        """UIDs of the pods whose processes are not an owner's: the borrowers of the last snapshot,
        and the pods whose containers were given limits for borrowed cards since."""
        known = {uid for one in self._borrowers.values() for uid in one.uids}
        slots = (one for one in self._slots.all() if one.resource == SPOT_RESOURCE)
        return known | {one.owner.pod_uid for one in slots if one.owner and one.owner.pod_uid}

    def _lending(self) -> list[CardOwner]:
        """The owners that have a borrowed card."""
        return [owner for owner in self.owners if owner.cards & self._borrowers.keys()]

    def step(self) -> None:
        """Update the loan of every card to the current time, and publish the results."""
        now = self._clock()
        snapshot = self._state.snapshot
        self._allocating = {
            uuid: at
            for uuid, at in self._allocating.items()
            if now - at < ALLOCATING_FOR_S
            and not (uuid in self._borrowers and snapshot.claims.asked_at > at)
        }
        waits = []
        for uuid in {*snapshot.cards, *self._borrowers, *self.loans}:
            facts, before = self._facts(uuid), self.loans.get(uuid) or CardLoan(uuid)
            after = before.stepped(facts, now)
            self.loans[uuid] = after
            waits.append(after.wakes_in(facts, now))
            if after.state is not before.state:
                self._changed(before, after)
            if after.state is CardState.RECLAIMING and uuid in self._borrowers:
                self._take_back(after)
        self._state.taken_back = {
            uuid: loan.taken_back for uuid, loan in self.loans.items() if loan.taken_back
        }
        self._outputs.reclaimer.forget(self._borrowers.values())
        self._tell_shims()
        self._publish()
        self._set_timer(min((one for one in waits if one is not None), default=None))

    def _facts(self, uuid: str) -> CardFacts:
        card, borrower = self._state.snapshot.cards.get(uuid), self._borrowers.get(uuid)
        return CardFacts(
            complete=self._complete,
            rule=self._rule.get(uuid),
            problem=card.problem if card else "the card is not known",
            borrowed=uuid in self._borrowers or uuid in self._allocating,
            revoked=uuid in self._revoked,
            blind=uuid in self._blind,
            counted=borrower is not None and self._outputs.reclaimer.has_ended(borrower.pod.key),
        )

    def _note_what_is_known(self) -> None:
        """Note which facts are complete. To be called after owners, borrowers and rules were read
        from a snapshot, since facts that arrive later count only once they were read."""
        snapshot = self._state.snapshot
        self._cards_read |= snapshot.cards_problem is None
        seen = snapshot.pods is not None and self._cards_read
        self._knows_owners |= seen
        self._complete = seen and self._rules.known

    def _read_rules(self) -> None:
        snapshot = self._state.snapshot
        held = resources(snapshot)
        pool_of = pools(snapshot, self._state.carvings)
        rules = {
            uuid: self._rules.of(card, held[uuid], pool_of.get(uuid)) if uuid in held else None
            for uuid, card in snapshot.cards.items()
        }
        self._agreeing = rules
        self._rule = {uuid: rule.spot if rule else None for uuid, rule in rules.items()}
        self._last_rule |= {uuid: rule.spot for uuid, rule in rules.items() if rule}

    def _agrees(self, owner: CardOwner, uuid: str) -> bool:
        return owner.agrees(self._agreeing.get(uuid))

    def _most(self, uuid: str) -> int:
        """Percent of the card's time up to which its owner counts as idle."""
        rule = self._rule.get(uuid)
        return rule.max_utilisation_percent if rule else Spot().max_utilisation_percent

    def _read_borrowers(self, snapshot: NodeSnapshot) -> None:
        slots = self._slots.all()
        self._borrowers = borrowers(snapshot, slots)
        self._revoked &= self._borrowers.keys()
        if self._has_read or not snapshot.claims.are_known:
            return
        self._has_read = True
        self._revoked = {
            uuid
            for uuid, one in self._borrowers.items()
            if any(one.owns(slot) and _is_going(slot, uuid) for slot in slots)
        }

    def _take(self, events: Iterable[OwnerEvent]) -> bool:
        """Apply the events. Returns whether any of them changed a loan."""
        changed = False
        for event in events:
            for uuid in event.devices:
                before = self.loans.get(uuid) or CardLoan(uuid)
                self.loans[uuid] = before.heard(event)
                if event.activity is Activity.BUSY:
                    self._step_one(uuid)
                changed |= self.loans[uuid] is not before
        return changed

    def _step_one(self, uuid: str) -> None:
        """Update one card's loan at once: a later event may report the owner idle again, and its
        work must not go unnoticed."""
        before = self.loans[uuid]
        after = self.loans[uuid] = before.stepped(self._facts(uuid), self._clock())
        if after.state is not before.state:
            self._changed(before, after)

    def _changed(self, before: CardLoan, after: CardLoan) -> None:
        log.info(
            "a card's loan changes",
            card=after.uuid,
            message=f"{before.state} → {after.state}",
            reason=after.reason,
        )
        if after.state is CardState.LENDABLE and before.state is not CardState.LENT:
            for pod in after.owners:
                about = Owner(pod.namespace, pod.name, pod.uid, "")
                note = f"the pod is idle: its card {after.uuid} may be lent to a spot pod"
                self._outputs.notify(about, EventReason.OWNER_ASLEEP, note)

    def _take_back(self, loan: CardLoan) -> None:
        borrower, rule = self._borrowers[loan.uuid], self._last_rule.get(loan.uuid, Spot())
        resumed = loan.uuid in self._revoked
        if resumed:
            # An earlier agent gave the notice already. Without a second one, an agent that crashes
            # repeatedly does not prolong it.
            rule = Spot()
        self._outputs.reclaimer.take_back(loan, borrower, rule, resumed)

    def _tell_shims(self) -> None:
        """Tell the owners' shims which cards may be borrowed. There, each launch reports activity,
        and allocations wait for memory that a leaving borrower still holds. Until all owners are
        known after the agent's start, the shims keep what an earlier agent told them."""
        if not self._knows_owners:
            return
        lent = {uuid for uuid, loan in self.loans.items() if loan.state in OFFERED}
        cards = {owner.pod.key: owner.cards & lent for owner in self.owners}
        told: dict[str, frozenset[str]] = {}
        for slot in self._slots.all():
            if slot.owner is None or slot.resource == SPOT_RESOURCE:
                continue
            uuids = cards.get((slot.owner.namespace, slot.owner.pod), frozenset())
            knows = self._shims.get(slot.name, None if slot.name in self._unsure else frozenset())
            if knows == uuids or _tell_shim(slot, uuids):
                told[slot.name] = uuids
            else:
                self._unsure.add(slot.name)
        self._shims = told

    def _publish(self) -> None:
        outputs = self._outputs
        self._publish_devices()
        ruled = {uuid for uuid, rule in self._rule.items() if rule is not None}
        loans = self.loans.values()
        told = self._told | self._told_before()
        cause = outputs.reclaimer.cause
        pods = {one.pod for one in self._borrowers.values()}
        ended = {pod: why for pod in pods if (why := cause(pod.key))}
        found = owner_conditions.conditions(loans, self._borrowers, ended, ruled, told)
        self._told = {pod for pod, one in found.items() if one.type == POD_CONDITION_ACTIVE}
        outputs.conditions.set_desired(found)

    def _told_before(self) -> set[PodIdentity]:
        """The owners whose pods have the condition already, perhaps from an earlier agent. Empty
        until pods, claims, cards and rules are known; until then conditions stay unchanged."""
        pods = self._state.snapshot.pods if self._complete else None
        if not pods:
            return set()
        found = (owner.pod for owner in self.owners)
        return {one for one in found if one.key in pods and pods[one.key].active}

    def _publish_devices(self) -> None:
        """Publish the spot devices. A card that was listed once stays listed, since an Allocate for
        it may be in progress."""
        outputs, now = self._outputs, self._clock()
        self._listed |= {uuid for uuid, rule in self._rule.items() if rule is not None}
        self._listed |= self._borrowers.keys()
        if not self._listed:
            return
        cards = self._state.snapshot.cards
        listed = device_list.devices(self.loans.values(), self._listed, cards)
        if listed != self._devices:
            self._follow_until = now + FOLLOW_FOR_S
        lowered = _healthy(self._devices) - _healthy(listed)
        self._devices = listed
        advertised = outputs.poller.advertised
        outputs.plugins.apply({SPOT_RESOURCE: listed}, advertised)
        if advertised is not None:
            self._kubelet = advertised.devices.get(SPOT_RESOURCE, frozenset())
        self._kubelet_offered |= bool(self._kubelet)
        known = listed if self._kubelet_offered else ()
        wanted = {SPOT_RESOURCE: device_list.counts(known, self._kubelet)}
        # The kubelet may still write the higher count that it had before.
        outputs.node.set_desired(wanted, frozenset({SPOT_RESOURCE} if lowered else ()))
        if _healthy(listed) != self._kubelet and now < self._follow_until:
            asyncio.get_running_loop().call_later(FOLLOW_S, outputs.poller.poll_soon)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds + 0.001, self.step)


def _healthy(listed: Iterable[Device]) -> set[str]:
    return {one.id for one in listed if one.healthy}


def _tell_shim(slot: Slot, uuids: Collection[str]) -> bool:
    """Write to the slot which of its cards may be borrowed. Returns whether that succeeded."""
    try:
        limits_file.set_borrowed(slot.limits, uuids)
    except (OSError, RegionDamaged) as error:
        log.debug("a shim cannot be told that its card is lent", error=error, **slot.names)
        return False
    return True


def _is_going(slot: Slot, uuid: str) -> bool:
    """Whether the card is being taken back from the slot's container: it is stopped there, or in
    its notice period."""
    try:
        limits = limits_file.read(slot.limits)
        return limits_file.is_stopped(limits, uuid) or limits_file.is_in_notice(limits, uuid)
    except (OSError, RegionDamaged):
        return False
