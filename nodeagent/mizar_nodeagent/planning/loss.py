"""Shadow pods that lose their cards while somebody uses them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from mizar_nodeagent.planning.adopt import plain
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.view import View
from mizar_nodeagent.pods import Key, Pod


def watch(carving: Carving, view: View) -> Carving:
    """Note when the kubelet has given a card to another pod, once it has said so for a while."""
    other = _other(carving, view)
    if carving.taken_by or not other:
        return replace(carving, taken_since=None)
    since = view.now if carving.taken_since is None else carving.taken_since
    if min(view.now, view.claims.asked_at) - since < view.grace.taken:
        return replace(carving, taken_since=since)
    return replace(carving, taken_by=other, taken_since=None)


def why_lost(key: Key, carving: Carving | None, view: View) -> str:
    """Why the cards of that shadow pod are not its users' any more; empty while they are, as far
    as is known. `carving`: what is known of it."""
    if view.pods is None:
        return ""
    if carving is not None and carving.taken_by:
        return f"the kubelet gave it to pod {carving.taken_by}"
    pod = view.pods.get(key)
    if pod is None or (carving is not None and pod.uid != carving.pod_uid):
        return "the shadow pod was deleted or evicted"
    if pod.ended:
        return "the shadow pod has ended"
    return "the shadow pod was deleted" if _is_about_to_end(pod, view) else ""


def _is_about_to_end(pod: Pod, view: View) -> bool:
    """One that was deleted keeps its cards for its grace period, so that its users can end."""
    if pod.going_by is None:
        return pod.going
    return view.time >= pod.going_by - timedelta(seconds=view.grace.going)


def _other(carving: Carving, view: View) -> str:
    """The pod that has a card which the shadow pod does not have any more, if there is one.

    As long as the shadow pod has its cards, others are told by mistake: kubelets may name pods
    that have ended.
    """
    claims = [one for one in view.live_claims() if one.resource == carving.carve.physical_resource]
    own = {
        plain(one)
        for claim in claims
        if (claim.namespace, claim.pod) == carving.key
        for one in claim.ids
    }
    lost = {card.uuid for card in carving.cards} - own
    found = [f"{claim.namespace}/{claim.pod}" for claim in claims if claim.ids & lost]
    return min(found, default="")
