"""Derives pod conditions from the loans: whether owners are active, what borrowers have, and which
of them must be evicted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from mizar_core.names import POD_CONDITION_ACTIVE, POD_CONDITION_BORROWS, SpotEvictionReason
from mizar_nodeagent.spot.borrowers import Borrower
from mizar_nodeagent.spot.loan import CardLoan, CardState
from mizar_nodeagent.spot.owner_events import PodIdentity
from mizar_nodeagent.spot.pod_conditions import PodCondition
from mizar_nodeagent.spot.reclaim import WHY, EvictionCause

DISRUPTION_TARGET: Final = "DisruptionTarget"
"""Kubernetes' condition of a pod that is about to be terminated. The operator evicts pods that have
it."""


def conditions(
    loans: Iterable[CardLoan],
    borrowers: Mapping[str, Borrower],
    ended: Mapping[PodIdentity, EvictionCause],
    ruled: Collection[str],
    told: Collection[PodIdentity],
) -> dict[PodIdentity, PodCondition]:
    """The desired condition of each pod. `borrowers`: by card UUID. `ended`: the borrowers that may
    be evicted, each with the cause that was counted. `ruled`: UUIDs of the cards that a rule allows
    to lend. `told`: owners that already have a condition. Owners get a condition if they agreed to
    lend a card of `ruled`, or are in `told`; borrowers if all their cards are lent by known
    owners, or if they may be evicted."""
    ordered = sorted(loans, key=lambda one: one.uuid)
    found = _borrowing(ordered, borrowers)
    for loan in ordered:
        for pod, owner in loan.owners.items():
            if pod in told or (owner.agrees and loan.uuid in ruled):
                lends = found.get(pod)
                if lends is None or lends.is_true:
                    found[pod] = _active(loan)
    by_card = {loan.uuid: loan for loan in ordered}
    return found | {pod: _evicted(by_card[why.card], why.reason) for pod, why in ended.items()}


def _borrowing(
    loans: Iterable[CardLoan], borrowers: Mapping[str, Borrower]
) -> dict[PodIdentity, PodCondition]:
    """The condition that says what a pod borrows. It stays as it is while an agent that has just
    started does not know all owners, and once a card is taken back: then DisruptionTarget is the
    one to write."""
    cards: dict[PodIdentity, list[CardLoan]] = {}
    for loan in loans:
        if borrower := borrowers.get(loan.uuid):
            cards.setdefault(borrower.pod, []).append(loan)
    return {
        pod: PodCondition(
            POD_CONDITION_BORROWS, True, "CardBorrowed", "; ".join(one.title for one in borrowed)
        )
        for pod, borrowed in cards.items()
        if all(one.whose and one.state is CardState.LENT for one in borrowed)
    }


def _evicted(loan: CardLoan, reason: SpotEvictionReason) -> PodCondition:
    message = f"{loan.title}: {WHY[reason]}"
    return PodCondition(DISRUPTION_TARGET, True, reason, message)


def _active(loan: CardLoan) -> PodCondition:
    if loan.state.healthy:
        text = f"card {loan.uuid} is {loan.state.lower()}"
        return PodCondition(POD_CONDITION_ACTIVE, False, f"Card{loan.state}", text)
    return PodCondition(POD_CONDITION_ACTIVE, True, "CardKept", "the pod has its cards to itself")
