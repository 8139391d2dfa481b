"""Eviction of share pods whose shadow pod has lost their cards, and of those that can never start
with the devices that their kubelet gave them. Running share pods are evicted for no other reason:
when a quota shrinks, those that are there stay."""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import datetime, timedelta
from itertools import groupby

from mizar_core.names import EventReason, LossReason
from mizar_core.planning.actions import EmitEvent, EvictShare
from mizar_core.planning.draft import Draft
from mizar_core.planning.shadow_stage import ShadowStage, stranded_at
from mizar_core.planning.snapshot import Attempt, ShadowView, ShareView
from mizar_core.quantities import counted

RETRY_AFTER = timedelta(seconds=5)
"""How long to wait before retrying an eviction that a PodDisruptionBudget did not allow."""

LOSERS_AGE = timedelta(seconds=30)
"""The least age of a share pod on a card that its shadow pod has lost while others are left: node
agents take a card for lost once it has been away for a minute, and meanwhile no pod gets its
devices. The API server's clock, by which pods are made, may be a little ahead."""

SEVERAL_CARDS = (
    "evicted: it demands one card, but its devices are on several; the next pod of its controller "
    "may get others"
)
"""The message for a pod that is evicted since it cannot start on several cards."""

GIVEN_TWICE = (
    "evicted: the kubelet gave one of its devices to another container as well, so it cannot start;"
    " the next pod of its controller gets another"
)
"""The message for a pod that is evicted since another container has one of its devices."""

MUST_BE_UNUSED = frozenset({ShadowStage.LOST, ShadowStage.FINISHED, ShadowStage.LEAVING})
"""Stages in which no pod may hold a device: the operator drains a shadow pod before it deletes
it."""


def evict(draft: Draft) -> None:
    """Plan the eviction of all share pods that hold devices on cards which their shadow pod has
    lost."""
    for shadow in lost_in_use(draft, (one for one, _ in draft.unsettled())):
        for share in _losers(draft, shadow):
            if not share.deleting:
                draft.post(_share_event(share, _lost_message(draft, shadow)))
                draft.actions.append(EvictShare(share.key, share.uid))


def evict_who_cannot_start(draft: Draft) -> list[datetime]:
    """Plan the eviction of the share pods that can never start with the devices that their kubelet
    gave them, which it never changes: they demand one card and got devices of several, or got a
    device that another container has. Only pods with a controller are evicted, since nothing would
    replace the others.

    A new pod may be refused as well: it goes where enough devices are free, whether on one card or
    not. So this is an attempt, made for all pods of a controller at once and then not again for a
    while, which grows each time. A Job counts an evicted pod as failed, and ends all its pods when
    there are too many of these: one is evicted at a time, and none while others of it run. Returns
    when pods that are being deleted on nodes that do not answer stop counting as such others.
    """
    if not (found := _refused(draft)):
        return []
    going = {one.uid for one in draft.actions if isinstance(one, EvictShare)}
    bound = (one for one in draft.shares if one.node is not None)
    busy = {one.owner for one in bound if one.uid in going or _occupies_job(draft, one)}
    for owner, refused in found:
        attempt = Attempt(f"{_attempted(refused[0])}/{owner}", owner)
        if attempt.what in draft.attempted or (refused[0].of_job and owner in busy):
            continue
        busy.add(owner)
        draft.record_attempt(attempt)
        for share in refused[:1] if refused[0].of_job else refused:
            if share.uid not in going:
                draft.post(_share_event(share, GIVEN_TWICE if share.gives_way else SEVERAL_CARDS))
                draft.actions.append(EvictShare(share.key, share.uid))
    owners = {owner for owner, _ in found}
    times = (_stranded_at(draft, one) for one in draft.shares if one.of_job and one.owner in owners)
    return [at for at in times if at is not None]


def _occupies_job(draft: Draft, share: ShareView) -> bool:
    """Whether no other pod of its Job is evicted because of it: it runs, or has yet to end."""
    if not share.deleting:
        return not share.cannot_start
    at = _stranded_at(draft, share)
    return at is None or at > draft.now


def _stranded_at(draft: Draft, share: ShareView) -> datetime | None:
    return stranded_at(share, draft.nodes.get(share.node or ""))


def _attempted(share: ShareView) -> str:
    """What the eviction attempts: that the next pod gets devices of one card, or alone."""
    return "sole-holder" if share.gives_way else "one-card"


def _refused(draft: Draft) -> list[tuple[str, list[ShareView]]]:
    """Controllers with their pods that can never start with their devices, by name: those that give
    way to another pod, and apart from them those whose devices are on several cards."""
    refused = [one for one in draft.shares if one.must_go and not one.deleting]
    if not refused:
        return []
    staying = {one.key for one in draft.shares if one.node is not None and not one.deleting}
    # A pod whose device another one kept until it ended starts when its kubelet tries again.
    keepers = {None, *staying}
    refused = [one for one in refused if one.gives_way_to in keepers]
    # A pod has a view for each resource that it requests.
    pods = {one.uid: one for one in refused if one.owner not in ("", one.uid)}
    by_cause = sorted(pods.values(), key=lambda one: (_cause(one), one.key))
    return [(owner, list(of)) for (owner, _), of in groupby(by_cause, _cause)]


def _cause(share: ShareView) -> tuple[str, bool]:
    """Its controller, and whether it cannot start for another cause than that it gives way."""
    return share.owner, not share.gives_way


def lost_in_use(draft: Draft, among: Iterable[ShadowView]) -> list[ShadowView]:
    """The shadow pods among these that have lost cards while share pods use them, by name."""
    return sorted((one for one in among if _losers(draft, one)), key=lambda one: one.key)


def cards_lost_in_use(draft: Draft, among: Iterable[ShadowView]) -> int:
    """How many cards these shadow pods have lost while share pods use them."""
    lost = lost_in_use(draft, among)
    return sum(one.cards if _is_lost(draft, one) else len(one.lost_cards) for one in lost)


def _is_lost(draft: Draft, shadow: ShadowView) -> bool:
    """Whether the shadow pod has lost all of its cards."""
    return draft.stages[shadow.key] in MUST_BE_UNUSED


def _losers(draft: Draft, shadow: ShadowView) -> list[ShareView]:
    """The share pods that hold devices on cards which the shadow pod has lost, by name.

    A holder is known by its name only. Where the node agent does not report any more, the holder
    may be gone, and another pod of its name (a StatefulSet's) may be on another node by now; or on
    the same one, on a card that is left, before the node agent has reported it.
    """
    all_lost = _is_lost(draft, shadow)
    holders = set(shadow.holders if all_lost else shadow.on_lost_cards)
    if not holders:
        return []
    place = shadow.on_node or "", shadow.resource
    users = (one for one in draft.bound.get(place, ()) if one.key in holders)
    losers = (one for one in users if all_lost or draft.now - one.created >= LOSERS_AGE)
    return sorted(losers, key=lambda one: one.key)


def loss_of(shadow: ShadowView, nodes: Container[str]) -> LossReason:
    """How a shadow pod lost its cards. `nodes`: the names of all nodes that exist."""
    if shadow.on_node is not None and shadow.on_node not in nodes:
        return LossReason.NODE_GONE
    if shadow.pod is None or shadow.pod.deleting:
        return LossReason.POD_DELETED
    return LossReason.CARD_LOST if shadow.lost else LossReason.POD_ENDED


def loss_reason(draft: Draft, shadow: ShadowView) -> str:
    """How a shadow pod lost its cards, for a message."""
    match loss_of(shadow, draft.nodes):
        case LossReason.NODE_GONE:
            return f"its node {shadow.on_node} is gone"
        case LossReason.POD_DELETED:
            return "its pod was deleted or evicted"
        case LossReason.CARD_LOST:
            return (
                "they are gone from the node, or another pod has one: see condition Ready of the "
                "ShadowPod"
            )
        case LossReason.POD_ENDED:
            return f"its pod ended ({shadow.pod.phase if shadow.pod else 'gone'})"


def loss_message(draft: Draft, shadows: Iterable[ShadowView]) -> str | None:
    """A message about the shadow pods among these that have lost their cards in use; None if none
    has."""
    found = lost_in_use(draft, shadows)
    if not found:
        return None
    pods = {share.key for one in found for share in _losers(draft, one)}
    return f"{counted(len(pods), 'share pod')} to be evicted: {_loss(draft, found[0])}"


def _lost_message(draft: Draft, shadow: ShadowView) -> str:
    return f"evicted: {_loss(draft, shadow)}"


def _loss(draft: Draft, shadow: ShadowView) -> str:
    """A clause that says which cards the shadow pod lost, and how."""
    if _is_lost(draft, shadow):
        return f"shadow pod {shadow.name} lost its cards: {loss_reason(draft, shadow)}"
    lost = f"card {', '.join(shadow.lost_cards)}"
    return f"shadow pod {shadow.name} lost {lost}: not in its node any more"


def _share_event(share: ShareView, message: str) -> EmitEvent:
    return EmitEvent(
        kind="Pod",
        about=share.key,
        uid=share.uid,
        type="Warning",
        reason=EventReason.SHARE_EVICTED,
        message=message,
    )
