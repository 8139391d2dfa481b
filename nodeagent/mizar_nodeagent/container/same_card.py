"""Devices of one container that have to be on one card, where its pod asks for that."""

from __future__ import annotations

from collections.abc import Iterable

from mizar_core.device_ids import DeviceID
from mizar_core.names import ANNOTATION_SAME_CARD, EventReason
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.errors import StartRefused
from mizar_nodeagent.pods import Pod


def check_same_card(state: AgentState, pod: Pod | None, ids: Iterable[str]) -> None:
    """StartRefused where a container that is to have one card has devices of several.

    The kubelet asks which devices we prefer, and gets those of one card where one has enough free.
    It has given these out for good: only another pod gets others.
    """
    if pod is None or not pod.same_card:
        return
    devices = [DeviceID.parse(one) for one in ids]
    carvings = [(one, state.carving_of(one)) for one in devices]
    cards = {carving.card(one).uuid for one, carving in carvings if carving is not None}
    if len(cards) > 1:
        raise StartRefused(
            f"its {len(devices)} devices are on {len(cards)} cards of the node, no card having as "
            f"many free, and the pod's {ANNOTATION_SAME_CARD} asks for one card: delete the pod, "
            "and a new one may get others",
            EventReason.SEVERAL_CARDS,
        )
