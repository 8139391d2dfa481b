"""A container's asks, each with what becomes of it. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mizar_core.pod_requests import DeviceRequest, Spec, device_requests
from mizar_operator.webhook.pools import Pools
from mizar_operator.webhook.translate import Verdict, translate


@dataclass(frozen=True)
class PodSpec:
    """A pod's spec, or a template's, within an object at `pointer` (a JSON pointer).

    `old` is the spec before an update. A template's pods are reviewed again when they are made;
    `labels` are a pod's own.
    """

    spec: Spec
    namespace: str
    pointer: str = "/spec"
    old: Spec | None = None
    template: bool = False
    labels: Mapping[str, str] | None = None

    @property
    def asks(self) -> list[DeviceRequest]:
        """What it asks for."""
        return device_requests(self.spec)

    @property
    def old_asks(self) -> set[tuple[str, ...]]:
        """The identities of what it asked for before the update."""
        return {ask.identity for ask in device_requests(self.old or {})}

    @property
    def asks_nothing_new(self) -> bool:
        """Whether an update has left alone what it asks for."""
        return {ask.identity for ask in self.asks} == self.old_asks


@dataclass(frozen=True)
class Judged:
    """An ask and what becomes of it."""

    ask: DeviceRequest
    verdict: Verdict

    @property
    def target(self) -> str:
        """The resource to ask for in its place."""
        return self.verdict.target

    @property
    def moves(self) -> bool:
        """Whether that is another name."""
        return self.target != self.ask.key

    def tell(self, sentence: str, name: str = "") -> str:
        """A sentence about it, for the user."""
        return f"container '{self.ask.container}', {name or self.ask.key}: {sentence}"


def judge(pod: PodSpec, pools: Pools) -> list[Judged]:
    """All asks of the pod with their verdicts."""
    return [Judged(ask, translate(ask.key, ask.parsed, pools, pod.template)) for ask in pod.asks]


def superseded(judged: Collection[Judged], old: set[tuple[str, ...]]) -> list[Judged]:
    """Asks that are what we made of an earlier spelling, beside which the user now sends his own.

    `kubectl apply` does so: it doesn't know our translation, and so it never removes it.
    """
    moving = {one.ask.path for one in judged if one.moves}
    return [
        one
        for one in judged
        if not one.moves and one.ask.path in moving and one.ask.identity in old
    ]
