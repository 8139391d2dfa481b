"""Writes annotations of share pods in the format of HAMi's scheduler, so that dashboards and
exporters made for HAMi show which container has how much of which card. No part of Mizar depends on
them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from mizar_core.carve import CardLimit
from mizar_core.device_ids import DeviceID
from mizar_core.errors import DeviceIDRefused
from mizar_core.names import HAMI_POD_DEVICES, HAMI_POD_NODE
from mizar_core.quantities import WHOLE_CARD
from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict, KubeError, NotFound
from mizar_kube.kinds import POD, Ref
from mizar_kube.logs import get_logger
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.limits import container_limits, grouped
from mizar_nodeagent.errors import StartRefused
from mizar_nodeagent.kubelet.claims import Claim
from mizar_nodeagent.pods import Key, Pod

log = get_logger(__name__)

LOOK_EVERY_S: Final = 5.0
"""Seconds between two checks whether annotations must be written."""
TYPE: Final = "NVIDIA"
"""HAMi's name for NVIDIA's cards in pods' annotations, whatever their model."""


def allocated(state: AgentState) -> dict[Key, str]:
    """The value of the annotation HAMI_POD_DEVICES for each share pod whose devices are all known,
    by the pod's key."""
    claims: dict[Key, list[Claim]] = {}
    for claim in state.snapshot.live_claims():
        if claim.is_share:
            claims.setdefault((claim.namespace, claim.pod), []).append(claim)
    pods = state.snapshot.pods or {}
    found = {key: _value(pods[key], held, state) for key, held in claims.items() if key in pods}
    return {key: value for key, value in found.items() if value is not None}


def _value(pod: Pod, claims: Iterable[Claim], state: AgentState) -> str | None:
    """The annotation's value: for each container of the pod, in order, its cards, each followed by
    a colon, and then a semicolon. None while a device's card or limit is not known."""
    cards: dict[str, str] = {}
    for claim in claims:
        limits = _limits(claim, state)
        if limits is None or claim.container not in pod.containers:
            return None
        cards[claim.container] = cards.get(claim.container, "") + "".join(map(_card, limits))
    return "".join(f"{cards.get(name, '')};" for name in pod.containers)


def _limits(claim: Claim, state: AgentState) -> tuple[CardLimit, ...] | None:
    try:
        devices = sorted(DeviceID.parse(one) for one in claim.ids)
        carvings = [one for one in map(state.carving_of, devices) if one is not None]
        if len(carvings) < len(devices):
            return None
        return container_limits(grouped(carvings, devices), 0).cards
    except (DeviceIDRefused, StartRefused):
        return None


def _card(limit: CardLimit) -> str:
    """A card in the annotation: UUID, type, MiB of memory, and percent of the card's time (0 if
    that is not limited)."""
    cores = 0 if limit.compute_mode == "None" else limit.core_share * 100 // WHOLE_CARD
    return f"{limit.uuid},{TYPE},{limit.memory_bytes >> 20},{cores}:"


class HamiPodAnnotations:
    """Writes both annotations of this node's share pods whenever they differ. They stay when the
    agent ends, since the pods keep their devices, and are deleted with their pods."""

    def __init__(self, client: KubeClient, node: str, state: AgentState) -> None:
        self._client = client
        self._node = node
        self._state = state

    async def run(self) -> None:
        """Keep the annotations current, for ever."""
        while True:
            await self.write()
            await asyncio.sleep(LOOK_EVERY_S)

    async def write(self) -> None:
        """Write the annotations that differ now. A write that fails is tried again at the next
        call."""
        pods: Mapping[Key, Pod] = self._state.snapshot.pods or {}
        for key, value in allocated(self._state).items():
            if pods[key].hami_devices != value:
                await self._write(pods[key], value)

    async def _write(self, pod: Pod, value: str) -> None:
        notes = {HAMI_POD_NODE: self._node, HAMI_POD_DEVICES: value}
        body = {"metadata": {"uid": pod.uid, "annotations": notes}}
        try:
            # Patch the status subresource, the only part of a pod that the agent may write.
            await self._client.patch_merge(
                Ref(POD, pod.name, pod.namespace), body, subresource="status"
            )
        except (NotFound, Conflict):
            pass  # the pod is gone, or another one has its name
        except KubeError as error:
            log.warning(
                "a pod's annotations for HAMi cannot be written",
                namespace=pod.namespace,
                pod=pod.name,
                error=error,
            )
