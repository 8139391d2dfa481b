"""Checks, from what kubelets and containers show, that each card is used only by containers that
were given it.

Pure: `tests/e2e/watcher.py` takes the looks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from mizar_core.device_ids import DeviceID
from mizar_core.names import SPOT_RESOURCE, card_of_spot_device, is_mig, parse_resource

WHOLE_CARDS = "nvidia.com/gpu"


def is_card(resource: str) -> bool:
    """Whether cards, or MIG devices, are given out whole by this name."""
    return resource == WHOLE_CARDS or is_mig(resource)


Pod = str
"""namespace/name"""


@dataclass(frozen=True)
class Held:
    """What the kubelet says: a container of `pod` was given devices of a resource."""

    pod: Pod
    container: str
    resource: str
    ids: frozenset[str]

    @property
    def is_share(self) -> bool:
        """Whether the devices are virtual ones."""
        return parse_resource(self.resource) is not None


@dataclass(frozen=True)
class Seen:
    """What a living container shows: the UUIDs of the cards whose device nodes it has."""

    pod: Pod
    container: str
    cards: frozenset[str]


@dataclass(frozen=True)
class Look:
    """A node at one moment. `offered`: per resource, the devices that the kubelet calls healthy.
    `failed`: the cards that have failed, or had until just now; what lies on them may be unhealthy.
    `serving`: what tells the node agents and the kubelet that run now from any that ran before;
    empty where no agent runs. `new_kubelet`: the kubelet has just started. It hears of its pods one
    after the other, and lets go those whose containers don't run yet: for a moment it may know a
    user but not its shadow pod.

    Every container of `seen` lived before and after the kubelet was asked.
    """

    node: str
    held: tuple[Held, ...] = ()
    seen: tuple[Seen, ...] = ()
    offered: Mapping[str, frozenset[str]] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()
    serving: frozenset[str] = frozenset()
    new_kubelet: bool = False


def faults(look: Look) -> frozenset[str]:
    """A sentence for everything on the node that must never be."""
    return frozenset(
        f"{look.node}: {fault}"
        for check in (_two_holders, _without_shadow, _on_anothers_card)
        for fault in check(look)
    )


def _two_holders(look: Look) -> Iterator[str]:
    """A virtual device in two containers, a card in two pods, or lent to two."""
    holders: dict[str, set[str]] = defaultdict(set)
    for one in look.held:
        for device in one.ids:
            if one.is_share:
                holders[f"device {device}"].add(f"{one.pod}/{one.container}")
            elif is_card(one.resource) or one.resource == SPOT_RESOURCE:
                holders[f"card {device}"].add(one.pod)
    for what, who in holders.items():
        if len(who) > 1:
            yield f"{what} is held by {' and '.join(sorted(who))}"


def _without_shadow(look: Look) -> Iterator[str]:
    """A virtual device whose shadow pod holds no card, or is another tenant's. While the
    kubelet has just started, only containers that have a card count."""
    cards = _cards_of(look)
    living = {one.pod for one in look.seen}
    for one in _sharers(look):
        for device in one.ids:
            shadow = _shadow_of(device)
            if shadow not in cards and (one.pod in living or not look.new_kubelet):
                yield f"{one.pod} holds {device}, but {shadow} holds no card"
            if shadow.partition("/")[0] != one.pod.partition("/")[0]:
                yield f"{one.pod} holds {device} of another tenant"


class Withdrawn(Enum):
    """How a held device is missing. The value: seconds for which it may be."""

    FROM_ITS_USER = 10.0
    """It was offered while a container that still lives had it, by the same agent and kubelet. The
    container's shadow pod may be ending, and the kubelet take some seconds to notice."""
    ALONE = 15.0
    """Others of its resource are offered. A shadow pod's devices are withdrawn before it is given
    back; a container that was being given one at that moment has it offered again once the agent
    has planned anew, far sooner than this."""
    WITH_ALL = 90.0
    """No device of its resource is offered. An agent or kubelet that starts may need the API
    server, which may be down, and each other. Normally all devices are back long before this."""


_SAYS = {
    Withdrawn.FROM_ITS_USER: "which the node offered before, and has not for",
    Withdrawn.ALONE: "which the node has not offered for",
    Withdrawn.WITH_ALL: "and the node has offered nothing of its resource for",
}
LOOKED_AWAY_S = 10.0
"""Seconds after which, without a look, it is no longer known what was offered."""


class Withdrawals:
    """Notices held devices that a node has not offered for long, although the same agent and the
    same kubelet have run all the while: for as long as `Withdrawn` says. Resources are tenants'
    own, so that a tenant's only shadow pod is all that there is of one.

    One for each node. A withdrawal that ends sooner, as with its users, is not noticed.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[Pod, str, Withdrawn], float] = {}
        self._served: set[tuple[Pod, str]] = set()
        """Pods and the devices that were offered while they lived and held them."""
        self._serving: frozenset[str] = frozenset()
        self._looked_at = float("-inf")

    def faults(self, look: Look, at: float) -> frozenset[str]:
        """A sentence for every device that has been withdrawn for too long. `at`: monotonic
        seconds."""
        if look.serving != self._serving or at - self._looked_at > LOOKED_AWAY_S:
            self.forget()
        self._serving, self._looked_at = look.serving, at
        living = _devices_of_the_living(look)
        withdrawn = set(_withdrawn(look, self._served & living)) if look.serving else set()
        self._since = {one: self._since.get(one, at) for one in withdrawn}
        offered = frozenset[str]().union(*look.offered.values())
        self._served = {one for one in living if one in self._served or one[1] in offered}
        return frozenset(
            f"{look.node}: {_told(*one)}"
            for one, since in self._since.items()
            if at - since >= one[2].value
        )

    def forget(self) -> None:
        """The kubelet did not answer, so that nothing lasts until now."""
        self._since.clear()
        self._served.clear()


def _told(pod: Pod, device: str, how: Withdrawn) -> str:
    return f"{pod} holds {device}, {_SAYS[how]} {how.value:g} s"


def _withdrawn(
    look: Look, served: Collection[tuple[Pod, str]]
) -> Iterator[tuple[Pod, str, Withdrawn]]:
    """Pods, the devices that they hold and that are not offered, and how these are missing. Leaves
    out pods whose shadow pod is gone (reported elsewhere) or has a failed card. `served`: devices
    that their pods had offered before."""
    cards = _cards_of(look)
    for one in _sharers(look):
        offered = look.offered.get(one.resource, frozenset())
        others = Withdrawn.ALONE if offered else Withdrawn.WITH_ALL
        for device in one.ids - offered:
            own = cards.get(_shadow_of(device))
            if own and not own & look.failed:
                known = (one.pod, device) in served
                yield one.pod, device, Withdrawn.FROM_ITS_USER if known else others


def _devices_of_the_living(look: Look) -> set[tuple[Pod, str]]:
    """Pods with a living container, and the virtual devices that they hold."""
    living = {one.pod for one in look.seen}
    return {(one.pod, id) for one in _sharers(look) if one.pod in living for id in one.ids}


def _on_anothers_card(look: Look) -> Iterator[str]:
    """A container that has a card which neither it nor its devices' shadow pods were given."""
    cards = _cards_of(look)
    owners = {card: pod for pod, own in cards.items() for card in own}
    for one in look.seen:
        given = set(cards.get(one.pod, ())) | _borrowed(look, one.pod)
        for share in _sharers(look):
            if share.pod == one.pod:
                given |= {card for id in share.ids for card in cards.get(_shadow_of(id), ())}
        for card in one.cards - given:
            owner = owners.get(card, "nobody")
            yield f"{one.pod}/{one.container} has card {card}, which was given to {owner}"


def _borrowed(look: Look, pod: Pod) -> set[str]:
    """The cards that the pod was lent."""
    ids = (
        id for one in look.held if (one.pod, one.resource) == (pod, SPOT_RESOURCE) for id in one.ids
    )
    return {card for id in ids if (card := card_of_spot_device(id))}


def _sharers(look: Look) -> Iterable[Held]:
    return (one for one in look.held if one.is_share)


def _cards_of(look: Look) -> dict[Pod, set[str]]:
    cards: dict[Pod, set[str]] = defaultdict(set)
    for one in look.held:
        if is_card(one.resource):
            cards[one.pod] |= one.ids
    return dict(cards)


def _shadow_of(device: str) -> Pod:
    parsed = DeviceID.parse(device)
    return f"{parsed.namespace}/{parsed.shadow}"
