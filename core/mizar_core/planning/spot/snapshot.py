"""The input of the plan for spot pods: one moment of the cluster, reduced to what lending depends
on.

It covers the whole cluster, since a spot pod may borrow any pool's card. Nothing in it depends on
the order of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.names import SPOT_GATE, SPOT_RESOURCE, SpotEvictionReason
from mizar_core.planning.node_fit import NO_NEEDS, Needs
from mizar_core.planning.refusal_message import lacks
from mizar_core.planning.snapshot import Announcement, Key, NodeView

GRACE_S = 30
"""The longest grace period, in seconds, of a pod that has to give its cards back, whatever its spec
says."""
LINGERS_AFTER = timedelta(seconds=GRACE_S + 10)
"""How long a pod may take to end before it counts as lingering: the grace period and a margin for
clocks that differ."""

STUCK_AFTER = timedelta(seconds=30)
"""How long a card is kept for a pod that the scheduler refuses for another reason, such as CPU."""

UNHEARD_AFTER = timedelta(minutes=5)
"""How long a card is kept for a pod that its scheduler does not react to. Kubernetes' own scheduler
considers a pod within seconds after its gate is opened, and a waiting pod again after five
minutes."""


@dataclass(frozen=True, slots=True)
class SpotView:
    """A spot pod that has not ended.

    `cards`: how many it asks for. `gates`: its scheduling gates. `scheduler`: the name of its
    scheduler. `unschedulable`: the scheduler's message, if it found no node. `lost`: why it lost
    its cards, by the node agent's condition; None while it has not. `grace_s`: its own grace
    period, in seconds. `borrows`: which cards it has and whose they are, in the node agent's words;
    empty if that has not told. `gone_by`: when its grace period ends, if it is being deleted.

    The operator's observations of its promise: `stuck_since`: since when it has been stuck, see
    `is_stuck`. `unheard_since`: since when its scheduler has reported nothing new about it,
    although a card is kept for it. `lapsed`: whether the promise has lapsed. `late`: when it got a
    node although its promise had lapsed.
    """

    namespace: str
    name: str
    uid: str
    cards: int
    created: datetime
    node: str | None = None
    gates: tuple[str, ...] = ()
    needs: Needs = NO_NEEDS
    scheduler: str = "default-scheduler"
    unschedulable: str | None = None
    stuck_since: datetime | None = None
    unheard_since: datetime | None = None
    lapsed: bool = False
    late: datetime | None = None
    lost: SpotEvictionReason | None = None
    deleting: bool = False
    grace_s: int = GRACE_S
    gone_by: datetime | None = None
    borrows: str = ""

    @property
    def key(self) -> Key:
        """(namespace, name)."""
        return self.namespace, self.name

    @property
    def order(self) -> tuple[datetime, str]:
        """The order in which the pods of a namespace have their turns."""
        return self.created, self.name

    @property
    def waits(self) -> bool:
        """Whether Mizar's gate alone keeps it from the scheduler."""
        return self.node is None and self.gates == (SPOT_GATE,) and not self.deleting

    @property
    def promised(self) -> bool:
        """Whether its turn has come, and it has no node yet."""
        return self.node is None and SPOT_GATE not in self.gates and not self.deleting

    @property
    def has_cards(self) -> bool:
        """Whether it has cards or was promised some."""
        return self.node is not None or self.promised

    @property
    def goes(self) -> bool:
        """Whether it is ending already, or has to end for another reason than its quota."""
        return self.deleting or self.lost is not None

    def lingers(self, now: datetime) -> bool:
        """Whether it is being deleted and keeps its cards for longer than others may."""
        return self.deleting and self.gone_by is not None and self.gone_by - now > LINGERS_AFTER

    @property
    def seniority(self) -> tuple[datetime, str]:
        """The order in which the pods of a namespace keep their cards. A pod that got a node after
        its promise had lapsed counts from that moment: others have been at work meanwhile."""
        return self.late or self.created, self.name

    @property
    def lacks_cards(self) -> bool:
        """Whether the scheduler finds no node for it that has its cards."""
        return self.promised and lacks(self.unschedulable, SPOT_RESOURCE)

    @property
    def is_stuck(self) -> bool:
        """Whether the scheduler finds no node for it for another reason than its cards."""
        return self.promised and self.unschedulable is not None and not self.lacks_cards

    def lapses_at(self) -> datetime | None:
        """When its promise stops counting if nothing changes; None if it has no promise, or that
        lapsed before."""
        if not self.promised or self.lapsed:
            return None
        return self._given_up_at()

    def _given_up_at(self) -> datetime | None:
        since, patience = self.unheard_since, UNHEARD_AFTER
        if self.is_stuck:
            since, patience = self.stuck_since, STUCK_AFTER
        return since + patience if since is not None else None

    def has_lapsed(self, now: datetime) -> bool:
        """Whether its scheduler has refused it for another reason than its cards, or reported
        nothing about it, for so long that its promise does not count any more, whatever the
        scheduler says later. If it gets a node after all, its cards count again."""
        lapses_at = self.lapses_at()
        return self.promised and (self.lapsed or (lapses_at is not None and lapses_at <= now))

    def is_unheard(self, now: datetime) -> bool:
        """Whether its scheduler has reported nothing about it for so long that its promise has
        lapsed."""
        given_up_at = None if self.is_stuck or not self.promised else self._given_up_at()
        return given_up_at is not None and given_up_at <= now

    def counts(self, now: datetime) -> bool:
        """Whether its cards count against its quota."""
        return self.has_cards and not self.has_lapsed(now)


@dataclass(frozen=True, slots=True)
class SpotSnapshot:
    """All input of the plan.

    `enabled`: whether Mizar was installed to lend cards. `announced`: the events that are not to be
    posted again yet. `unreadable`: namespaces with a quota that cannot be read: no pod there loses
    a card because of its quota. `heard`: when the operator last saw each scheduler bind or refuse a
    spot pod. `unopenable`: the pods, by their UIDs, whose gates the API server refused to open a
    moment ago, each with its message; `closed`: the namespaces in which it opened none, likewise.
    `unanswered`: the pods whose gates may be open, since the answer of the API server was lost.
    """

    enabled: bool = True
    pools: tuple[GPUPool, ...] = ()
    quotas: tuple[GPUQuota, ...] = ()
    spots: tuple[SpotView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    announced: frozenset[Announcement] = frozenset()
    unreadable: frozenset[str] = frozenset()
    heard: Mapping[str, datetime] = field(default_factory=dict)
    unopenable: Mapping[str, str] = field(default_factory=dict)
    closed: Mapping[str, str] = field(default_factory=dict)
    unanswered: frozenset[str] = frozenset()

    def refusal(self, spot: SpotView) -> str:
        """Why the pod's gate cannot be opened now; empty if it can."""
        return self.unopenable.get(spot.uid) or self.closed.get(spot.namespace, "")
