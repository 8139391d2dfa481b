"""Faults of the network and the API server: their rates are drawn once per schedule, the fate of
each call from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from mizar_kube.errors import Conflict, KubeError, Unavailable

Refusal = Callable[[], KubeError]

REFUSALS: dict[str, Refusal] = {
    "409": lambda: Conflict("the object has been modified (simulated)", status=409),
    "429": lambda: Unavailable("too many requests (simulated)", status=429, retry_after=1.0),
    "500": lambda: Unavailable("etcdserver: leader changed (simulated)", status=500),
    "504": lambda: Unavailable("gateway timeout (simulated)", status=504),
}


STRAYS_S = 60.0
"""As long as an API server lets a call wait for its turn. Two kinds of writes never stray, since
the operator has no remedy: a pod that is created when its ShadowPod is gone already (Kubernetes'
garbage collector ends it), and a namespace's budget."""


@dataclass(frozen=True, slots=True)
class CallFate:
    """The fate of one call: seconds until it arrives and until the answer is back; the error that
    the server answers instead of doing it; whether the request or its answer gets lost, and whether
    a request arrives although its sender has died or given up."""

    there: float
    back: float
    refusal: Refusal | None = None
    request_lost: bool = False
    answer_lost: bool = False
    outlives: bool = False


@dataclass
class FaultInjection:
    """`faults` in [0, 1): how often a call fails; `strays`: how often a write is stuck somewhere
    and arrives when its sender has long given it up; `latency`: seconds, on average; `breaks`: mean
    life of a watch in seconds; `lag`: seconds that watches are behind, on average."""

    random: Random
    faults: float = 0.0
    strays: float = 0.0
    latency: float = 0.01
    breaks: float = 600.0
    lag: float = 0.02
    kinds: tuple[str, ...] = tuple(REFUSALS)
    away_until: float = 0.0
    calm: bool = False

    @classmethod
    def drawn(cls, random: Random) -> FaultInjection:
        """Some schedules are rough in one respect, some in many, some in none."""
        kinds = [one for one in REFUSALS if random.random() < 0.6] or ["500"]
        return cls(
            random,
            faults=random.choice((0.0, 0.02, 0.1, 0.25)),
            strays=random.choice((0.0, 0.0, 0.02, 0.1)),
            latency=random.choice((0.002, 0.02, 0.2, 1.0)),
            breaks=random.choice((3.0, 15.0, 60.0, 600.0)),
            lag=random.choice((0.005, 0.05, 0.5, 4.0)),
            kinds=tuple(kinds),
        )

    def stop(self) -> None:
        """From now on nothing fails and nothing is slow."""
        self.calm = True
        self.faults, self.strays = 0.0, 0.0
        self.latency, self.lag = 0.01, 0.02
        self.away_until = 0.0

    def next_call(self, writes: bool, strays: bool) -> CallFate:
        """The fate of the next call. `writes`: whether it is a write; `strays`: whether it may be
        stuck. It takes the same number of draws whatever comes out, so that a change of one rate
        leaves the other draws of a seed as they are."""
        chance = [self.random.random() for _ in range(7)]
        there, back = self._seconds(chance[0]), self._seconds(chance[1])
        if strays and chance[6] < self.strays:
            return CallFate(STRAYS_S * chance[0], back, outlives=True)
        if chance[2] >= self.faults:
            return CallFate(there, back, outlives=chance[4] < 0.5)
        kind = int(chance[3] * 4)
        return CallFate(
            there,
            back,
            refusal=self._refusal(chance[5], writes) if kind < 2 else None,
            request_lost=kind == 2,
            answer_lost=kind == 3,
            outlives=chance[4] < 0.5,
        )

    def watch_lives(self) -> float:
        """Seconds until the next watch breaks."""
        lives = self.random.expovariate(1 / self.breaks)
        return math.inf if self.calm else lives

    def watch_lags(self) -> float:
        """Seconds until an event that happens now is delivered."""
        return self.random.expovariate(1 / self.lag)

    def _seconds(self, chance: float) -> float:
        # Mostly around the latency, now and then twenty times as long.
        return self.latency * (20 * chance if chance > 0.95 else 0.5 + chance)

    def _refusal(self, chance: float, writes: bool) -> Refusal:
        kind = self.kinds[int(chance * len(self.kinds))]
        return REFUSALS[kind if writes or kind != "409" else "500"]
