"""The actions of a plan for spot pods. Each can be repeated without harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from mizar_core.condition import Condition
from mizar_core.models import SpotStatus
from mizar_core.names import SpotEvictionReason
from mizar_core.planning.actions import EmitEvent
from mizar_core.planning.snapshot import Key, Subject


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Remove the pod's scheduling gate, since its turn has come."""

    spot: Key
    uid: str


@dataclass(frozen=True, slots=True)
class EvictSpot:
    """Evict a spot pod. `at_once`: its processes have already been ended, so there is nothing left
    for a PodDisruptionBudget to protect, and where one forbids the eviction the pod is deleted.
    `grace_s`: the seconds that it has to shut down."""

    spot: Key
    uid: str
    reason: SpotEvictionReason
    at_once: bool
    grace_s: int


@dataclass(frozen=True, slots=True)
class WriteSpotStatus:
    """Write into a quota's status what its namespace borrows; None leaves that part out."""

    quota: Key
    status: SpotStatus | None


@dataclass(frozen=True, slots=True)
class WriteLent:
    """Write into a pool's status how many of its cards are lent, and the condition Lending, which
    is None for a pool that lends none."""

    pool: str
    lent: int
    condition: Condition | None


SpotAction = OpenGate | EvictSpot | WriteSpotStatus | WriteLent | EmitEvent


@dataclass(frozen=True, slots=True)
class Borrowing:
    """What a namespace borrows: cards that its spot pods have or were promised, cards that they
    wait for, and recent card-seconds."""

    in_use: int = 0
    waiting: int = 0
    recent: float = 0.0


@dataclass(frozen=True, slots=True)
class SpotPlan:
    """The actions in order. `due`: when to plan again even if nothing changes. `rules`: the text of
    the rules for the node agents. `borrowing`: by namespace. `lendable`: how many cards of each
    node are neither lent nor promised. `held_back`: the subjects of new messages that wait because
    an earlier one was posted recently. `kept`: UIDs of the pods whose turn had come and for which
    there are cards."""

    actions: tuple[SpotAction, ...] = ()
    due: datetime | None = None
    rules: str = ""
    borrowing: Mapping[str, Borrowing] = field(default_factory=dict)
    lendable: Mapping[str, int] = field(default_factory=dict)
    held_back: frozenset[Subject] = frozenset()
    kept: frozenset[str] = frozenset()
