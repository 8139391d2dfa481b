"""When to ask the kubelet: at once after an event, often while something waits, else seldom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from mizar_kube.logs import get_logger
from mizar_kube.waking import woken
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.kubelet.podresources import PodResources
from mizar_nodeagent.planning.plan import Plan

log = get_logger(__name__)

PEACE_S = 3.0
FAILED_S = 0.5


@dataclass(frozen=True)
class Pace:
    """Seconds between questions, by how long something has been waited for."""

    quick: float = 0.03
    quick_until: float = 5.0
    slow: float = 0.5
    slow_until: float = 60.0

    def after(self, waited: float) -> float:
        """The pause before the next question."""
        if waited < self.quick_until:
            return self.quick
        return self.slow if waited < self.slow_until else PEACE_S


class Asking:
    """Keeps `claims` and `kubelet` (healthy devices per resource) fresh; `heard` follows each
    answer. Times are monotonic seconds."""

    def __init__(
        self,
        podresources: PodResources,
        heard: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.claims = Claims()
        self.kubelet: dict[str, frozenset[str]] | None = None
        self.kubelet_at = float("-inf")
        self._podresources = podresources
        self._heard = heard
        self._clock = clock
        self._pace = Pace()
        self._wake = asyncio.Event()
        self._waiting_for: object = None
        self._waiting_since: float | None = None
        self._failed = False
        self._tried_at = clock()

    def poke(self) -> None:
        """Something happened that the kubelet will have an answer to: ask now."""
        self._wake.set()

    def after(self, plan: Plan) -> None:
        """What a plan waits for decides how soon to ask again."""
        waits = (plan.cardless, plan.restless and plan.lists, _stages(plan))
        if not plan.cardless and not plan.restless:
            self._waiting_for, self._waiting_since = None, None
        elif waits != self._waiting_for:
            self._waiting_for, self._waiting_since = waits, self._clock()
            self.poke()

    async def ask(self) -> Claims:
        """The claims as they are now, for somebody who cannot wait. Raises KubeletAway."""
        claims = await self._podresources.list(urgent=True)
        self._take(claims)
        return claims

    @property
    def age(self) -> float:
        """Seconds since the question that was answered last."""
        return self._clock() - self.claims.asked_at

    @property
    def tried_ago(self) -> float:
        """Seconds since the last question, answered or not."""
        return self._clock() - self._tried_at

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            self._wake.clear()
            await self._round()
            await woken(self._wake, within=self._delay())

    async def _round(self) -> None:
        began = self._tried_at = self._clock()
        try:
            claims, healthy = await asyncio.gather(
                self._podresources.list(), self._podresources.allocatable()
            )
        except KubeletAway as error:
            (log.debug if self._failed else log.warning)(
                "the kubelet does not tell who holds what", error=error
            )
            self._failed, self.kubelet = True, None
            self._heard()
            return
        self._failed = False
        self.kubelet, self.kubelet_at = healthy, began
        self._take(claims)

    def _take(self, claims: Claims) -> None:
        # An answer that was overtaken by a younger one tells nothing new.
        if claims.asked_at > self.claims.asked_at:
            self.claims = claims
        self._heard()

    def _delay(self) -> float:
        if self._failed:
            return FAILED_S
        if self._waiting_since is None:
            return PEACE_S
        return self._pace.after(self._clock() - self._waiting_since)


def _stages(plan: Plan) -> frozenset[tuple[object, str]]:
    return frozenset((key, carving.stage.value) for key, carving in plan.memory.items())
