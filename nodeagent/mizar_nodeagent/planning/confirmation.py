"""Confirms the carvings of before the node was started anew.

Pods keep their UIDs then, and the kubelet usually keeps their cards, by its own checkpoint; but
that may be lost, or the pods may fail when the kubelet admits them again.
"""

from __future__ import annotations

from dataclasses import replace

from mizar_nodeagent.kubelet.claims import card_uuid
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.snapshot import NodeSnapshot


def confirm(carving: Carving, held: bool, snapshot: NodeSnapshot) -> Carving | None:
    """The carving, confirmed once the kubelet says that the shadow pod has its cards. None if it
    has others now, so that it is to be adopted anew. `held`: a device is held or being allocated,
    so that it cannot be."""
    if carving.confirmed:
        return carving
    claims = snapshot.claims.of_pod(*carving.key, carving.carve.physical_resource)
    uuids = {card_uuid(one) for claim in claims for one in claim.ids}
    if uuids == {card.uuid for card in carving.cards}:
        return replace(carving, confirmed=True)
    pod = (snapshot.pods or {}).get(carving.key)
    changed = pod is not None and snapshot.claims_of(pod, carving.carve.physical_resource)
    return None if changed and not held else carving
