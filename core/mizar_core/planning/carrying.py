"""Share pods that the scheduler refuses though devices are free: a shadow pod is carried to another
node for them, one at a time, since nobody can say whether that node will do."""

from __future__ import annotations

from mizar_core.names import EventReason
from mizar_core.planning.draft import Draft
from mizar_core.planning.payers import Payer, payer
from mizar_core.planning.refusals import Denial
from mizar_core.planning.snapshot import ShareView, Try


def carrier(draft: Draft, share: ShareView) -> Payer | Denial:
    """Who pays for a shadow pod on another node: one at a time for all share pods of an owner, and
    not again soon where it was in vain. Else what the scheduler says."""
    what = f"carry/{share.owner or share.uid}/{share.resource}"
    found = payer(draft, share) if what not in draft.tried else None
    if isinstance(found, Payer):
        draft.attempt(Try(what, share.uid))
        return found
    also = f" (on other nodes: {found.message})" if found else ""
    return Denial(
        EventReason.NO_NODE_FITS,
        f"devices are free, but the scheduler finds no node: {share.unschedulable}{also}",
        found.offer if found else None,
    )
