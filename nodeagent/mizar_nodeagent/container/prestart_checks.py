"""The checks of PreStartContainer (prestart.py). Each raises StartRefused, with the reason for an
event, if the container must not start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mizar_core.device_ids import DeviceID
from mizar_core.names import ANNOTATION_SAME_CARD, EventReason
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.container.device_nodes import Minors, minors_of
from mizar_nodeagent.container.limits import DeviceGroup, wants_shim
from mizar_nodeagent.container.slots import Owner, Slot
from mizar_nodeagent.errors import CardsUnknown, NotYet, StartRefused
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.carving import Carving, DrainStage
from mizar_nodeagent.pods import Pod

WITHOUT_SHIM = (
    "the pod was admitted while isolation.backend was None, so its containers run without Mizar's "
    "shim and cannot be limited: delete the pod, so that a new one is limited"
)
"""A sentence for containers that must be limited and have no shim."""


def present_carving(state: AgentState, device: DeviceID) -> Carving:
    """The carving of a device whose card is still its shadow pod's. Raises NotYet if the device is
    not known yet."""
    carving = state.carving_of(device)
    if carving is None:
        raise NotYet(f"device {device} is not known yet")
    if carving.stage is DrainStage.LEAVING:
        # The device's card may be another pod's by now, or soon.
        raise StartRefused(
            f"the shadow pod of {device} has been deleted or is terminating, so its card is lost",
            EventReason.CARD_LOST,
        )
    return carving


def check_cards_there(carving: Carving, devices: Iterable[DeviceID]) -> None:
    """Check that the cards of a carving's devices are not gone. A start writes the container's
    limits anew, which would permit work there once the card is back."""
    if gone := carving.gone_of(devices):
        lost = f"shadow pod {carving.name} has lost card {', '.join(sorted(gone))}"
        raise StartRefused(lost, EventReason.CARD_LOST)


def check_same_card(state: AgentState, pod: Pod | None, ids: Iterable[str]) -> None:
    """Check that a container whose pod or pool demands one card has no devices of several. Raises
    NotYet if the pool does and the pod, which may say otherwise, is not known yet.

    GetPreferredAllocation prefers devices of one card, if one has enough free. The kubelet has
    allocated the devices for good: only another pod gets others. The operator replaces the pod if
    it has a controller (mizar_core/planning/evict_share_pods.py).
    """
    devices = [DeviceID.parse(one) for one in ids]
    known = [(one, carving) for one in devices if (carving := state.carving_of(one)) is not None]
    cards = {carving.card(one).uuid for one, carving in known}
    who = _who_demands_one_card(pod, [carving for _, carving in known])
    if len(cards) < 2 or who is None:
        return
    if pod is None:
        raise NotYet("the pod is not known yet")
    raise StartRefused(
        f"{who} demands one card, but its {len(devices)} devices are on {len(cards)} cards, since "
        "no card of the node had as many free: the operator replaces a pod that has a controller, "
        "at once or within an hour, and a new one may get other devices; delete any other",
        EventReason.SEVERAL_CARDS,
    )


def _who_demands_one_card(pod: Pod | None, carvings: Iterable[Carving]) -> str | None:
    """What demands that a container's devices be on one card; None if nothing does. The pod decides
    if it says anything, otherwise the pool."""
    if pod is not None and pod.same_card is not None:
        return f"the pod's {ANNOTATION_SAME_CARD}" if pod.same_card else None
    pools = (one.carve.pool for one in carvings if one.carve.same_card)
    return next((f"sameCard of pool {name}" for name in pools), None)


def check_one_resource(owner: Owner, resource: str, claims: Claims) -> None:
    """Check that the container's devices are of one resource, since it has only one slot."""
    others = {
        claim.resource
        for claim in claims.all
        if (claim.namespace, claim.pod, claim.container)
        == (owner.namespace, owner.pod, owner.container)
        and claim.is_share
    } - {resource}
    if others:
        raise StartRefused(
            f"container {owner.container} asks for {resource} and {', '.join(sorted(others))}: "
            "a container can have devices of one profile only",
            EventReason.ISOLATION_NOT_ENFORCED,
        )


def check_tenant(owner: Owner, carving: Carving) -> None:
    """Check that the carving's devices may be used by pods of the container's namespace."""
    if carving.carve.tenancy == "PerNamespace" and owner.namespace != carving.namespace:
        raise StartRefused(
            f"the devices of {carving.namespace}/{carving.name} are for pods of "
            f"{carving.namespace}, not of {owner.namespace}",
            EventReason.ISOLATION_NOT_ENFORCED,
        )


def check_shim(groups: Iterable[DeviceGroup], slots: Sequence[Slot]) -> None:
    """Check that a container which must be limited has the shim, which cannot be added later: the
    kubelet restarts a container with the mounts of its first start."""
    own = [slot for slot in slots if slot.owner is not None] or slots[-1:]
    wanted = any(wants_shim(carving.carve.isolation) for carving, _ in groups)
    if wanted and not all(slot.shim for slot in own):
        raise StartRefused(WITHOUT_SHIM, EventReason.ISOLATION_NOT_ENFORCED)


async def check_device_nodes(ask: Minors, given: Mapping[str, int]) -> None:
    """Check that the device nodes which a container got are still its cards': the kubelet restarts
    a container with the device nodes of its first start. `given`: their minor numbers, by the
    card's UUID. Raises StartRefused if they are not, NotYet while NVML does not know."""
    try:
        now = await minors_of(ask, given) if given else {}
    except CardsUnknown as error:
        raise NotYet(str(error)) from error
    for uuid, minor in sorted(given.items()):
        if now[uuid] != minor:
            raise StartRefused(
                f"the driver has renumbered its cards: /dev/nvidia{minor}, which this pod got for "
                f"card {uuid}, now belongs to another card ({uuid} is /dev/nvidia{now[uuid]}):"
                " delete the pod, and a new one gets the right card",
                EventReason.CARD_RENUMBERED,
            )
