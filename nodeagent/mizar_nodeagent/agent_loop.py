"""The agent's main loop: takes a snapshot of the node, plans, and gives the plan to the outputs
that apply it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from mizar_kube.event_series import Regarding
from mizar_kube.events import EventRecorder
from mizar_kube.informer import Informer
from mizar_kube.kinds import POD
from mizar_kube.logs import get_logger
from mizar_kube.timed_wait import wait_until_set
from mizar_nodeagent.agent_checkpoint import Checkpoint, CheckpointFile
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.cards import Card, CardInventory, CardSource, is_out_of_use
from mizar_nodeagent.container.slots import Owner, Slots
from mizar_nodeagent.container.used_slots import claims_by_slots
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.event_loop_turns import let_calls_in
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.kubelet.poller import KubeletPoller
from mizar_nodeagent.node_status import NodeStatusWriter
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.planning.snapshot import GracePeriods, NodeSnapshot
from mizar_nodeagent.plugin.manager import PluginManager
from mizar_nodeagent.pods import Key, Pod
from mizar_nodeagent.shadow_events import FailedCards, shadow_events
from mizar_nodeagent.shadow_status_writer import ShadowStatusWriter
from mizar_nodeagent.slow_call import SlowCall
from mizar_nodeagent.static_pods import StaticPods

log = get_logger(__name__)

READ_CARDS_S = 2.0
"""Seconds between two reads of the cards by NVML."""
CARDS_WITHIN_S = 60.0
"""Seconds without an answer after which NVML counts as hanging, as it does when the driver hangs;
its start alone may take some seconds for each card."""
REPLAN_S = 5.0
"""Most seconds between two plans, which bounds the effect of a missed wake-up."""
REST = 3.0
"""Multiple of a plan's CPU time for which the agent rests after it. When many pods start at once,
each causes several changes: without the rest, the agent would plan all the time, and the kubelet's
calls would wait behind one plan after the other."""
REST_MOST_S = 0.02
"""The longest rest after a plan, in seconds."""
REST_ALLOCATING = 20.0
"""Multiple of a plan's CPU time for which the agent rests while containers are being given devices:
the kubelet admits one pod after the other, and each waits for those before it. Steps that need a
plan, such as those of a drain, wait longer meanwhile."""
REST_ALLOCATING_MOST_S = 0.1
"""The longest rest after a plan while containers are being given devices, in seconds."""
COUNTED_AGAIN_S = 300.0
"""Seconds after which a shadow pod that is still excluded from the plan is counted and logged
again, as the operator does. If it is excluded from the agent's first plan on, which is the rule
after an upgrade, the counter is 1 before Prometheus reads it for the first time, and never seems to
grow."""
DEFAULT_GRACE = GracePeriods()


@dataclass(frozen=True)
class Outputs:
    """The parts through which a plan is applied. `limits` and `lend`: update the limits of running
    containers and the loans of cards, after each plan and before it is applied.
    `planning_failed`: counts a shadow pod that is excluded from the plan."""

    plugins: PluginManager
    node: NodeStatusWriter
    statuses: ShadowStatusWriter
    events: EventRecorder
    limits: Callable[[], Awaitable[None]]
    lend: Callable[[], None]
    planning_failed: Callable[[], None]


class Agent:
    """Plans anew whenever something has changed. `clock` returns monotonic seconds, `now` the time
    of day. `repaired` returns the UUIDs of cards that were newly declared as repaired.
    `ignored_xids`: see `card_health.breaks_card`."""

    def __init__(
        self,
        state: AgentState,
        cards: CardSource,
        checkpoint: CheckpointFile,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        grace: GracePeriods = DEFAULT_GRACE,
        repaired: Callable[[], Iterable[str]] = tuple,
        ignored_xids: Collection[int] = (),
    ) -> None:
        self.state = state
        self.inventory = CardInventory(clock, ignored_xids)
        self.failed_cards = FailedCards()
        self._static_pods = StaticPods()
        self.xids: Counter[tuple[str, int]] = Counter()
        """How often each card has reported each XID to this agent, by UUID and XID."""
        self._cards = cards
        self._checkpoint = checkpoint
        self._clock = clock
        self._now = now
        self._grace = grace
        self._repaired = repaired
        self._logged: dict[str, str] = {}
        self._seen_at: dict[str, float] = {}
        self._gone_at: dict[Key, float] = {}
        self._counted_at: dict[Key, float] = {}
        self._wake = asyncio.Event()
        self._planned_at = clock()

    def attach(
        self, pods: Informer[Pod], poller: KubeletPoller, outputs: Outputs, slots: Slots
    ) -> None:
        """Set the parts that need the agent themselves. Must be called before `run`."""
        self._pods = pods
        self._poller = poller
        self._outputs = outputs
        poller.api_heard_at = lambda: self._clock() - pods.age()
        poller.is_expected = self._is_expected
        poller.claims_of_forgotten = partial(self._claims_of_forgotten, slots)
        pods.on_change(self._pod_changed)

    def pods(self) -> Mapping[Key, Pod]:
        """The node's pods as the watch has them, also those since the last plan; empty before the
        first list."""
        return dict(self._pods.items()) if self._pods.synced.is_set() else {}

    def _is_expected(self, key: Key) -> bool:
        """Whether a pod that held devices must still hold them, as far as the watch shows it."""
        if not self._pods.synced.is_set():
            return True
        pod = self._pods.get(key[1], key[0])
        return pod is not None and not pod.ended

    def _claims_of_forgotten(self, slots: Slots, pods: Set[Key]) -> Iterable[Claim] | None:
        """The devices that containers of these pods had when they started, by their slots; None
        before the first list of the node's pods."""
        if not self._pods.synced.is_set():
            return None
        return claims_by_slots(slots.by_age(), self.pods(), pods)

    def wake(self) -> None:
        """Plan soon: something has changed."""
        self._wake.set()

    def warn(self, owner: Owner, reason: str, message: str) -> None:
        """Emit a warning event on a container's pod, such as why it does not start."""
        self._outputs.events.emit(_pod(owner), reason, message, warning=True, action="Start")

    def notify(self, owner: Owner, reason: str, message: str, warning: bool = False) -> None:
        """Emit an event on a container's pod about the devices that it was given, and plan soon,
        since these may have changed meanwhile."""
        self.wake()
        self._outputs.events.emit(_pod(owner), reason, message, warning=warning, action="Share")

    @property
    def idle_for(self) -> float:
        """Seconds since the last plan, for the health probe."""
        return self._clock() - self._planned_at

    async def run(self) -> None:
        """Plan for ever."""
        while True:
            await self._wait()
            began = time.thread_time()
            before = self.state.last
            plan = self.state.replan(self._snapshot())
            await self._update()
            unsaved = await self._checkpoint.keep(self._known(plan))
            await let_calls_in()
            self._log_excluded(plan)
            self._apply(before, plan, unsaved)
            self._planned_at = self._clock()
            await asyncio.sleep(rest_after(time.thread_time() - began, bool(self.state.allocating)))

    async def _update(self) -> None:
        """Update limits and loans, with pauses in which the kubelet's calls are answered."""
        await let_calls_in()
        await self._outputs.limits()
        await let_calls_in()
        self._outputs.lend()
        await let_calls_in()

    def _known(self, plan: Plan) -> Checkpoint:
        """The checkpoint with all that the next agent needs."""
        cards = self.inventory
        return Checkpoint(plan.carvings, cards.faults, self.state.taken_back, cards.health)

    async def read_cards(self) -> None:
        """Keep the inventory of cards current, for ever."""
        reading: SlowCall[Mapping[str, Card]] = SlowCall()
        try:
            while True:
                await self._read_cards(reading)
                await asyncio.sleep(READ_CARDS_S)
        finally:
            reading.cancel()

    async def _read_cards(self, reading: SlowCall[Mapping[str, Card]]) -> None:
        before = (self.inventory.problem, self.inventory.cards())
        for uuid in self._repaired():
            log.info("a card was marked as repaired", card=uuid)
            self.inventory.repaired(uuid)
        try:
            read = partial(self._cards.read, self._expected_cards())
            self.inventory.update(await reading.answer(read, CARDS_WITHIN_S))
        except (CardsUnknown, TimeoutError) as error:
            problem = str(error) or f"NVML has not answered for {CARDS_WITHIN_S:g} s"
            if self.inventory.problem != problem:
                log.error("the cards are not known", error=problem)
            self.inventory.problem = problem
        if (self.inventory.problem, self.inventory.cards()) != before:
            self.wake()
        self._log_health()

    def _log_health(self) -> None:
        """Log each card that has become Unhealthy or is well again: nothing else says so of a card
        that no shadow pod holds."""
        cards = self.inventory.cards()
        for uuid, card in cards.items():
            problem = "" if is_out_of_use(card, cards) else card.problem
            if problem and problem != self._logged.get(uuid):
                log.warning("a card is unhealthy", card=uuid, problem=problem)
            elif not problem and self._logged.get(uuid):
                log.info("a card is healthy again", card=uuid)
            self._logged[uuid] = problem

    def _expected_cards(self) -> set[str]:
        """UUIDs of the cards that NVML should list: those known, and those that the kubelet has
        assigned to containers. A card may have been missing when this agent started."""
        return self.inventory.expected | self._poller.claims.cards()

    async def follow_faults(self) -> None:
        """Record the faults that cards report, for ever."""
        await self._cards.faults(self._fault)

    def _fault(self, uuid: str, xid: int) -> None:
        log.warning("a card reports a fault", card=uuid, xid=xid)
        self.xids[uuid, xid] += 1
        self.inventory.fault(uuid, xid)
        self.wake()

    async def _wait(self) -> None:
        await wait_until_set(self._wake, within=REPLAN_S)
        self._wake.clear()

    def _snapshot(self) -> NodeSnapshot:
        poller, node = self._poller, self._outputs.node
        return NodeSnapshot(
            now=self._clock(),
            time=self._now(),
            pods=self.pods() if self._pods.synced.is_set() else None,
            seen_at=dict(self._seen_at),
            gone_at=dict(self._gone_at),
            claims=poller.claims,
            cards=self.inventory.cards(),
            cards_problem=self.inventory.problem,
            kubelet=poller.kubelet,
            kubelet_at=poller.kubelet_at,
            node=node.written,
            node_at=node.written_at,
            grace=self._grace,
        )

    def _log_excluded(self, plan: Plan) -> None:
        now = self._clock()
        self._counted_at = {
            key: at
            for key, at in self._counted_at.items()
            if key in plan.excluded and now - at < COUNTED_AGAIN_S
        }
        for key in sorted(plan.excluded.keys() - self._counted_at.keys()):
            self._counted_at[key] = now
            self._outputs.planning_failed()
            log.error(
                "excluded from the plan",
                namespace=key[0],
                shadow=key[1],
                exc_info=plan.excluded[key],
            )

    def _apply(self, before: Plan | None, plan: Plan, unsaved: Collection[Key]) -> None:
        outputs = self._outputs
        outputs.plugins.apply(plan.lists, self._poller.advertised)
        self._rewrite_new_resources(before, plan)
        outputs.node.set_desired(plan.counts, plan.rewrite)
        outputs.statuses.set_desired(
            [one.without_promise() if one.key in unsaved else one for one in plan.reports]
        )
        self._poller.adapt_to(plan)
        failures = self.failed_cards.events(plan, self.state.snapshot)
        static = self._static_pods.events(self.state.snapshot)
        for event in (*shadow_events(before, plan), *failures, *static):
            about = Regarding(event.kind, event.about[1], event.about[0], event.uid)
            outputs.events.emit(about, event.reason, event.message, warning=event.warning)

    def _rewrite_new_resources(self, before: Plan | None, plan: Plan) -> None:
        """Rewrite the counts of resources that are new in the plan: if the kubelet lost one before,
        it has set the count to 0 in the node's status, or will do so."""
        for resource in plan.counts.keys() - (before.counts.keys() if before else set()):
            self._outputs.node.forget(resource)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        now = self._clock()
        if new is None:
            assert old is not None
            self._gone_at[old.key] = now
            self._seen_at.pop(old.uid, None)
        else:
            if old is not None and old.uid != new.uid:
                # A list, unlike a watch, tells of a pod that replaced another by one change.
                self._gone_at[old.key] = now
                self._seen_at.pop(old.uid, None)
            self._seen_at.setdefault(new.uid, now)
        self._gone_at = {key: at for key, at in self._gone_at.items() if now - at < 60}
        self._poller.poll_soon()
        self.wake()


def rest_after(cpu_s: float, allocating: bool) -> float:
    """Seconds until the next plan may begin, after one that took `cpu_s` seconds of CPU time.
    `allocating`: containers are being given devices."""
    if allocating:
        return min(REST_ALLOCATING_MOST_S, REST_ALLOCATING * cpu_s)
    return min(REST_MOST_S, REST * cpu_s)


def _pod(owner: Owner) -> Regarding:
    return Regarding(POD, owner.pod, owner.namespace, owner.pod_uid)
