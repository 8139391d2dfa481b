"""Polls the kubelet: at once after an event, often while something waits, and rarely otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from mizar_kube.logs import get_logger
from mizar_kube.timed_wait import wait_until_set
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet.claims import Claim, Claims, DraDevice
from mizar_nodeagent.kubelet.podresources import PodResources
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.shared_call import SharedCall

log = get_logger(__name__)

IDLE_INTERVAL_S = 3.0
"""Seconds between two polls while nothing waits for the kubelet."""
RETRY_S = 0.5
"""Seconds between two polls while the kubelet does not answer."""

CARDS_WITHIN_S = 30.0
"""Seconds for which an answer counts as incomplete because it names a device of NVIDIA's DRA driver
that no ResourceSlice names. The driver announces each device before it is allocated, so the slice
can be read within a moment, unless the API server is away."""

STARTS_S = 30.0
"""Seconds for which a kubelet that has just started may answer without knowing its pods. They count
from when the API server answers, from which the kubelet gets its pods."""


@dataclass(frozen=True)
class Intervals:
    """Seconds between two polls while the agent waits for something: `quick` until it has waited
    for `quick_until` seconds, then `slow` until `slow_until`, then IDLE_INTERVAL_S."""

    quick: float = 0.03
    quick_until: float = 5.0
    slow: float = 0.5
    slow_until: float = 60.0

    def after(self, waited: float) -> float:
        """Seconds until the next poll, after the agent has waited for `waited` seconds."""
        if waited < self.quick_until:
            return self.quick
        return self.slow if waited < self.slow_until else IDLE_INTERVAL_S


@dataclass(frozen=True)
class Advertised:
    """The IDs of the healthy devices that the kubelet had of each resource at the time `at`
    (monotonic seconds)."""

    devices: Mapping[str, frozenset[str]]
    at: float


class KubeletPoller:
    """Keeps `claims` and `kubelet` (healthy devices per resource; None while the kubelet does not
    answer) current. Calls `polled` after each attempt. `expected`: the pods (namespace, name) that
    held devices when an earlier agent ended. Times are monotonic seconds."""

    def __init__(
        self,
        podresources: PodResources,
        polled: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        expected: Set[tuple[str, str]] = frozenset(),
    ) -> None:
        self.claims = Claims()
        self.kubelet: dict[str, frozenset[str]] | None = None
        self.kubelet_at = float("-inf")
        self._podresources = podresources
        self._polled = polled
        self._clock = clock
        self._expected = expected
        self._intervals = Intervals()
        self._wake = asyncio.Event()
        self._list = SharedCall(self._list_urgently)
        self._allocatable = SharedCall(podresources.allocatable)
        self._waiting_for: object = None
        self._waiting_since: float | None = None
        self._failed = False
        self._tried_at = clock()
        self.api_heard_at: Callable[[], float] = lambda: float("inf")
        """When the agent last received something from the API server (monotonic seconds)."""
        self.is_expected: Callable[[tuple[str, str]], bool] = lambda key: True
        """Whether a pod (namespace, name) that had claims must still exist according to the API
        server."""
        self.claims_of_forgotten: Callable[[Set[tuple[str, str]]], Iterable[Claim] | None] = (
            lambda _: ()
        )
        """The devices that containers of these pods (namespace, name) had when they started; None
        while the API server has not listed the pods. See `_with_forgotten`."""
        self._suspected: Set[tuple[str, str]] = frozenset()
        """Pods whose devices, or those of some of their containers, the kubelet may have
        forgotten."""
        self._forgotten: Set[tuple[str, str]] = frozenset()
        """Those of them whose devices are missing from the last answer."""
        self._complete_since: float | None = None
        """The `restarted_at` of podresources at the last answer that was taken to be complete."""
        self.taken: Callable[[Claims], None] = lambda claims: None
        """Called with each answer that becomes `claims`."""
        self._unknown_since: dict[DraDevice, float] = {}
        """When the kubelet first named each device of NVIDIA's DRA driver whose card is not
        known."""
        self._api_back: tuple[float, float] | None = None
        """When the kubelet restarted (minus infinity: not since the agent's start), and when its
        claims were first asked for after the API server had been heard again; None before that."""

    def poll_soon(self) -> None:
        """Poll at once. To be called when something has happened that changes the kubelet's
        answers."""
        self._wake.set()

    def adapt_to(self, plan: Plan) -> None:
        """Poll as often as the plan needs: often as soon as it begins to wait for something else of
        the kubelet, and more rarely the longer it waits."""
        waits = (plan.without_cards, plan.poll_often and plan.lists, _stages(plan))
        if not plan.without_cards and not plan.poll_often:
            self._waiting_for, self._waiting_since = None, None
        elif waits != self._waiting_for:
            self._waiting_for, self._waiting_since = waits, self._clock()
            self.poll_soon()

    async def poll_claims(self) -> Claims:
        """The claims as they are now or a moment later, for a caller that cannot wait. Raises
        KubeletAway.

        Concurrent callers share an answer: otherwise, each of many containers that start at once
        would make the kubelet list all pods.
        """
        return await self._list.answer()

    async def poll_devices(self, resource: str) -> frozenset[str]:
        """The IDs of the resource's devices that the kubelet considers healthy now or a moment
        later. Raises KubeletAway."""
        return (await self._allocatable.answer()).get(resource, frozenset())

    async def _list_urgently(self) -> Claims:
        claims = self._checked(await self._podresources.list(urgent=True))
        # The caller asks who holds virtual devices, which even an answer without a card says.
        if not self._without_card(claims):
            self._take(claims)
        return claims

    @property
    def advertised(self) -> Advertised | None:
        """The healthy devices that the kubelet has; None while it does not answer."""
        return None if self.kubelet is None else Advertised(self.kubelet, self.kubelet_at)

    @property
    def age(self) -> float:
        """Seconds since the start of the last poll that was answered."""
        return self._clock() - self.claims.asked_at

    @property
    def since_attempt(self) -> float:
        """Seconds since the last poll, answered or not."""
        return self._clock() - self._tried_at

    async def run(self) -> None:
        """Poll for ever."""
        while True:
            self._wake.clear()
            await self._poll()
            await wait_until_set(self._wake, within=self._delay())

    async def _poll(self) -> None:
        began = self._tried_at = self._clock()
        try:
            answer, healthy = await asyncio.gather(
                self._podresources.list(), self._podresources.allocatable()
            )
            claims = self._checked(answer)
            self._check_cards(claims)
        except KubeletAway as error:
            (log.debug if self._failed else log.warning)(
                "it is not known which pods hold which devices", error=error
            )
            self._failed, self.kubelet = True, None
            self._polled()
            return
        self._failed = False
        self.kubelet, self.kubelet_at = healthy, began
        self._take(claims)

    def _checked(self, claims: Claims) -> Claims:
        """The claims, with those that the kubelet has forgotten. Raises KubeletAway if the answer
        lacks claims that were known or are expected, and the kubelet may not know all of its pods
        yet."""
        self._note_api(claims.asked_at)
        missing = self._missing(claims)
        if self._is_doubtful(claims, missing) and claims.asked_at < self._knows_pods_at():
            raise KubeletAway("the kubelet has just started and does not know its pods yet")
        return self._with_forgotten(claims)

    def _check_cards(self, claims: Claims) -> None:
        """Raise KubeletAway while it may soon be known which card a device of NVIDIA's DRA driver
        is: until then, that card would seem to be free."""
        if waiting := self._without_card(claims):
            raise KubeletAway(f"the API server has not said yet which card device {waiting[0]} is")

    def _without_card(self, claims: Claims) -> list[DraDevice]:
        """The devices of NVIDIA's DRA driver whose cards are not known, for CARDS_WITHIN_S after
        each was first named, sorted."""
        now, before = self._clock(), self._unknown_since
        unknown = sorted(one for one, uuid in claims.dra.items() if uuid is None)
        self._unknown_since = {one: before.get(one, now) for one in unknown}
        return [one for one in unknown if now - self._unknown_since[one] < CARDS_WITHIN_S]

    def _missing(self, claims: Claims) -> set[tuple[str, str]]:
        """The pods that should have claims, and have none in this answer."""
        return set(filter(self.is_expected, self._users() - claims.pods - self._forgotten))

    def _users(self) -> Set[tuple[str, str]]:
        """The pods that had claims, by the last answer or else by the earlier agent."""
        return self.claims.pods if self.claims.are_known else self._expected

    def _with_forgotten(self, claims: Claims) -> Claims:
        """The claims, and those of containers whose devices the kubelet has forgotten: a kubelet
        that starts without its record, or with a damaged one, counts running containers as having
        no devices, and gives theirs to others. Containers of their pods that do not run at that
        moment get new ones.

        A container has been forgotten if it is missing from the first complete answer since the
        start of the kubelet or the agent. If it is missing only from a later one, its pod ends."""
        if claims.asked_at < self.claims.asked_at:
            # `_take` discards this answer, but the caller that asked for it uses it.
            return self._completed(claims, self.claims_of_forgotten(self._forgotten) or ())
        if self._complete_since != self._podresources.restarted_at:
            self._complete_since = self._podresources.restarted_at
            self._suspected = self._suspected | self._users()
        self._suspected = set(filter(self.is_expected, self._suspected))
        if not self._suspected:
            self._forgotten = frozenset()
            return claims
        if (known := self.claims_of_forgotten(self._suspected)) is None:
            return claims
        completed = self._completed(claims, known)
        more = completed.all[len(claims.all) :]
        lost = (self._suspected - claims.pods) | {(one.namespace, one.pod) for one in more}
        if new := lost - self._forgotten:
            log.warning("the kubelet may have forgotten devices", pod=sorted(map("/".join, new)))
        self._suspected = self._forgotten = lost
        return completed

    @staticmethod
    def _completed(claims: Claims, known: Iterable[Claim]) -> Claims:
        """The claims, and the known ones of containers that they lack."""
        answered = {(one.namespace, one.pod, one.container) for one in claims.all}
        more = [one for one in known if (one.namespace, one.pod, one.container) not in answered]
        return replace(claims, all=(*claims.all, *more)) if more else claims

    def _is_doubtful(self, claims: Claims, missing: set[tuple[str, str]]) -> bool:
        """Whether the answer may lack the `missing` pods because the kubelet does not know them
        yet: a kubelet that starts learns of its static pods first, and adds all others one after
        the other. If the kubelet ran when the agent started, only its first answer is in doubt;
        and if it had run for long, only a first answer without any claim."""
        podresources = self._podresources
        if not missing:
            return False
        if self.claims.are_known:
            return podresources.restarted_at > float("-inf")
        return not claims.all or claims.asked_at < podresources.started_at + STARTS_S

    def _note_api(self, asked_at: float) -> None:
        """Note when the kubelet was asked for its first answer that came after its restart and
        after the API server had been heard again."""
        restarted_at = self._podresources.restarted_at
        if self._api_back is None or self._api_back[0] != restarted_at:
            is_back = self.api_heard_at() > restarted_at
            self._api_back = (restarted_at, asked_at) if is_back else None

    def _knows_pods_at(self) -> float:
        """From when on the kubelet is taken to know its pods, which it gets from the API server:
        STARTS_S after it started, or restarted and the API server was heard again."""
        if self._api_back is None:
            return float("inf")
        restarted_at, asked_at = self._api_back
        since = asked_at if restarted_at > float("-inf") else self._podresources.started_at
        return since + STARTS_S

    def _take(self, claims: Claims) -> None:
        # The answer to a later poll may have come first.
        if claims.asked_at > self.claims.asked_at:
            self.claims = claims
            self.taken(claims)
        self._polled()

    def _delay(self) -> float:
        if self._failed:
            return RETRY_S
        if self._waiting_since is None:
            return IDLE_INTERVAL_S
        return self._intervals.after(self._clock() - self._waiting_since)


def _stages(plan: Plan) -> frozenset[tuple[object, str]]:
    return frozenset((key, carving.stage.value) for key, carving in plan.carvings.items())
