"""The agent's loop: gather what is known into a view, plan, hand the plan to those who apply it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from mizar_kube.event_series import Regarding
from mizar_kube.events import EventRecorder
from mizar_kube.informer import Informer
from mizar_kube.kinds import POD
from mizar_kube.logs import get_logger
from mizar_kube.waking import woken
from mizar_nodeagent.announce import news
from mizar_nodeagent.asking import Asking
from mizar_nodeagent.cards import CardBook, CardSource
from mizar_nodeagent.checkpoint import CheckpointFile
from mizar_nodeagent.container.slots import Owner
from mizar_nodeagent.errors import CardsUnknown
from mizar_nodeagent.mind import Mind
from mizar_nodeagent.node_status import NodeStatus
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.planning.view import Patience, View
from mizar_nodeagent.plugin.manager import Plugins
from mizar_nodeagent.pods import Key, Pod
from mizar_nodeagent.shadow_status import ShadowStatuses

log = get_logger(__name__)

READ_CARDS_S = 2.0
# However quiet it is: a wake-up that went missing must not be for ever.
THINK_S = 5.0
PATIENCE = Patience()


@dataclass(frozen=True)
class Hands:
    """Those who apply a plan. `follow`: writes the limits of containers that run."""

    plugins: Plugins
    node: NodeStatus
    statuses: ShadowStatuses
    events: EventRecorder
    follow: Callable[[], None]


class Agent:
    """Thinks whenever something has changed. Clocks are for tests."""

    def __init__(
        self,
        mind: Mind,
        cards: CardSource,
        checkpoint: CheckpointFile,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        patience: Patience = PATIENCE,
    ) -> None:
        self.mind = mind
        self.book = CardBook()
        self._cards = cards
        self._checkpoint = checkpoint
        self._clock = clock
        self._now = now
        self._patience = patience
        self._seen_at: dict[str, float] = {}
        self._gone_at: dict[Key, float] = {}
        self._wake = asyncio.Event()
        self._thought_at = clock()

    def attach(self, pods: Informer[Pod], asking: Asking, hands: Hands) -> None:
        """The parts that call back into this one."""
        self._pods = pods
        self._asking = asking
        self._hands = hands
        pods.on_change(self._pod_changed)

    def wake(self) -> None:
        """Something has changed: think soon."""
        self._wake.set()

    def complain(self, owner: Owner, reason: str, message: str) -> None:
        """Tell the owner of a pod what is wrong with it, such as why it does not start."""
        self._hands.events.emit(_pod(owner), reason, message, warning=True, action="Start")

    def tell(self, owner: Owner, reason: str, message: str) -> None:
        """Tell the owner of a pod what it has, and see whether it should still have that."""
        self.wake()
        self._hands.events.emit(_pod(owner), reason, message, action="Share")

    @property
    def idle_for(self) -> float:
        """Seconds since the last thought, for the health probe."""
        return self._clock() - self._thought_at

    async def run(self) -> None:
        """Think for ever."""
        while True:
            await self._wait()
            before = self.mind.last
            plan = self.mind.think(self._view())
            self._hands.follow()
            await self._checkpoint.keep(plan.memory)
            self._apply(before, plan)
            self._thought_at = self._clock()

    async def read_cards(self) -> None:
        """Keep the book of cards, for ever."""
        while True:
            before = (self.book.problem, self.book.facts())
            try:
                self.book.seen(await self._cards.read())
            except CardsUnknown as error:
                if self.book.problem != str(error):
                    log.error("the cards are not known", error=error)
                self.book.problem = str(error)
            if (self.book.problem, self.book.facts()) != before:
                self.wake()
            await asyncio.sleep(READ_CARDS_S)

    async def follow_faults(self) -> None:
        """Note cards' faults, for ever."""
        await self._cards.faults(self._fault)

    def _fault(self, uuid: str, xid: int) -> None:
        log.warning("a card reports a fault", card=uuid, xid=xid)
        self.book.fault(uuid, xid)
        self.wake()

    async def _wait(self) -> None:
        await woken(self._wake, within=THINK_S)
        self._wake.clear()

    def _view(self) -> View:
        asking, node = self._asking, self._hands.node
        return View(
            now=self._clock(),
            time=self._now(),
            pods=dict(self._pods.items()) if self._pods.synced.is_set() else None,
            seen_at=dict(self._seen_at),
            gone_at=dict(self._gone_at),
            claims=asking.claims,
            cards=self.book.facts(),
            cards_problem=self.book.problem,
            kubelet=asking.kubelet,
            kubelet_at=asking.kubelet_at,
            node=node.written,
            node_at=node.written_at,
            patience=self._patience,
        )

    def _apply(self, before: Plan | None, plan: Plan) -> None:
        hands = self._hands
        hands.plugins.apply(plan.lists)
        self._expect_overwritten(before, plan)
        hands.node.want(plan.counts, plan.insist)
        hands.statuses.want(plan.reports)
        self._asking.after(plan)
        for one in news(before, plan, self.mind.view.pods or {}):
            about = Regarding(one.kind, one.about[1], one.about[0], one.uid)
            hands.events.emit(about, one.reason, one.message, warning=one.warning)

    def _expect_overwritten(self, before: Plan | None, plan: Plan) -> None:
        """A kubelet that had lost a resource has told the API server so."""
        for resource in plan.counts.keys() - (before.counts.keys() if before else set()):
            self._hands.node.forget(resource)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        now = self._clock()
        if new is None:
            assert old is not None
            self._gone_at[old.key] = now
            self._seen_at.pop(old.uid, None)
        else:
            self._seen_at.setdefault(new.uid, now)
        self._gone_at = {key: at for key, at in self._gone_at.items() if now - at < 60}
        self._asking.poke()
        self.wake()


def _pod(owner: Owner) -> Regarding:
    return Regarding(POD, owner.pod, owner.namespace, owner.pod_uid)
