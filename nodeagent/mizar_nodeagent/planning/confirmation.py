"""Confirms, after a reboot of the node, that shadow pods still have the cards of their carvings.

Pods keep their UIDs across a reboot, and usually their cards, which the kubelet keeps in its own
checkpoint. But that may be lost, or a pod may fail when the kubelet admits it again.
"""

from __future__ import annotations

from dataclasses import replace

from mizar_nodeagent.kubelet.claims import card_uuid
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.snapshot import NodeSnapshot


def confirm(carving: Carving, held: bool, snapshot: NodeSnapshot) -> Carving | None:
    """The carving, confirmed once the kubelet reports that the shadow pod has its cards. None if
    the shadow pod has other cards now and must be adopted anew. `held`: a device is held or being
    allocated, so that the carving cannot be dropped."""
    if carving.confirmed:
        return carving
    claims = snapshot.claims.of_pod(*carving.key, carving.carve.physical_resource)
    uuids = {card_uuid(one) for claim in claims for one in claim.ids}
    if uuids == {card.uuid for card in carving.cards}:
        return replace(carving, confirmed=True)
    pod = (snapshot.pods or {}).get(carving.key)
    changed = pod is not None and snapshot.claims_of(pod, carving.carve.physical_resource)
    return None if changed and not held else carving
