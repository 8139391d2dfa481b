"""Derives pod conditions from the loans: whether owners are active, and which borrowers must be
evicted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from mizar_core.names import POD_CONDITION_ACTIVE
from mizar_nodeagent.spot.borrowers import Borrower
from mizar_nodeagent.spot.loan import CardLoan
from mizar_nodeagent.spot.owner_events import PodIdentity
from mizar_nodeagent.spot.pod_conditions import PodCondition
from mizar_nodeagent.spot.reclaim import WHY

DISRUPTION_TARGET: Final = "DisruptionTarget"
"""Kubernetes' condition of a pod that is about to be terminated. The operator evicts pods that have
it."""


def conditions(
    loans: Iterable[CardLoan],
    ended: Mapping[str, Borrower],
    ruled: Collection[str],
    told: Collection[PodIdentity],
) -> dict[PodIdentity, PodCondition]:
    """The desired condition of each pod. `ended`: the borrowers that may be evicted, by card UUID.
    `ruled`: UUIDs of the cards that a rule allows to lend. `told`: owners that already have a
    condition. Owners get a condition if they agreed to lend a card of `ruled`, or are in `told`."""
    found: dict[PodIdentity, PodCondition] = {}
    for loan in sorted(loans, key=lambda one: one.uuid):
        for pod, owner in loan.owners.items():
            if pod in told or (owner.agrees and loan.uuid in ruled):
                lends = found.get(pod)
                if lends is None or lends.is_true:
                    found[pod] = _active(loan)
        borrower = ended.get(loan.uuid)
        if loan.reason is not None and borrower is not None:
            found[borrower.pod] = PodCondition(
                DISRUPTION_TARGET, True, loan.reason, f"{loan.title}: {WHY[loan.reason]}"
            )
    return found


def _active(loan: CardLoan) -> PodCondition:
    if loan.state.healthy:
        text = f"card {loan.uuid} is {loan.state.lower()}"
        return PodCondition(POD_CONDITION_ACTIVE, False, f"Card{loan.state}", text)
    return PodCondition(POD_CONDITION_ACTIVE, True, "CardKept", "the pod has its cards to itself")
