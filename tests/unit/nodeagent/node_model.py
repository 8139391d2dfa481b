"""A node around the agent's state. The state is real; kubelet, API server and time are models, each
of which may be late, and the agent may start again at any moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mizar_core.carve import Carve
from mizar_core.device_ids import DeviceID
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.kubelet.claims import Claims
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.device_lists import refusal
from mizar_nodeagent.planning.plan import Plan
from mizar_nodeagent.planning.shadow_status import Report
from mizar_nodeagent.planning.snapshot import Counts, NodeSnapshot
from mizar_nodeagent.pods import Key, Pod
from unit.nodeagent.kubelet_model import Kubelet
from unit.nodeagent.makers import card, shadow, share

NAMES = ("shadow-aaaaa", "shadow-bbbbb", "shadow-ccccc")
START = datetime(2026, 1, 1, tzinfo=UTC)
WHO = ("informer", "claims", "healthy", "node", "kubelet")
"""The parts of the node that act now and then, and may be late."""
CARDS = 4
OLD_S = 1.0
"""Claims older than this are noted: with newer ones the agent would have gone a step further."""


class NodeModel:
    """Two shadow pods of one shape, with cards of their own; `happened` is called for each event.

    `pods`: as the API server has them. `used`: card and shadow pod of each device that was given.
    `promised`: shadow pods that the operator may delete. `sick`: numbers of cards. `behind`: parts
    that do not act. `forgetful`: an agent that starts again has lost its checkpoint; then no name
    is used again, which no operator does either. What the agent knows is in `known` (pods),
    `claims`, `healthy` and `node_at`.
    """

    def __init__(self, carve: Carve, forgetful: bool, happened: Callable[[str], None]) -> None:
        self.now = 0.0
        self.forgetful = forgetful
        self.carve = carve
        self.happened = happened
        self.kubelet = Kubelet(carve.resource)
        self.pods: dict[Key, Pod] = {}
        self.serial = 0
        self.used: dict[str, tuple[str, str]] = {}
        self.promised: set[str] = set()
        self.sick: set[int] = set()
        self.behind: set[str] = set()
        self._start_agent([])
        for name, place in zip(NAMES[:2], (0, 1), strict=True):
            self.add_shadow(name, place)
        for _ in range(3):
            self.all_act()

    def check(self) -> None:
        """Assert that no card is carved for two shadow pods, which would give out more than the
        card has, and that every device in use is on the list."""
        users: dict[str, set[str]] = {}
        for one in self.kubelet.held:
            uuid, name = self.used[one]
            users.setdefault(uuid, set()).add(name)
        assert all(len(names) == 1 for names in users.values()), users
        assert self.kubelet.coming <= self.kubelet.devices.keys()

    # ---- the agent ----

    def start_agent(self) -> None:
        """Start another agent; if it is forgetful, without the last one's checkpoint."""
        saved = [] if self.forgetful else [one.to_dict() for one in self.state.carvings.values()]
        self._start_agent([Carving.from_dict(one, self.now) for one in saved])

    def _start_agent(self, loaded: list[Carving]) -> None:
        self.state = AgentState({one.key: one for one in loaded})
        self.kubelet.lose_the_plugin()
        self.sent: dict[str, bool] = {}
        self.known: dict[Key, Pod] | None = None
        self.seen_at: dict[str, float] = {}
        self.gone_at: dict[Key, float] = {}
        self.claims = Claims()
        self.healthy: frozenset[str] | None = None
        self.healthy_at = float("-inf")
        self.node_at: dict[str, float] = {}

    def replan(self) -> None:
        self.now += 0.001
        before = dict(self.state.carvings)
        plan = self.state.replan(self._snapshot())
        self._note(before, plan)
        devices = {one.id: one.healthy for one in plan.lists.get(self.carve.resource, ())}
        told = {str(one) for one, _ in self.claims.share()} & self.kubelet.held.keys()
        assert told <= devices.keys(), f"{told - devices.keys()} are held and not on the list"
        if devices != self.sent:
            gone = self.sent.keys() - devices.keys()
            used = self.kubelet.held.keys() | self.kubelet.coming
            assert not gone & used, f"{gone & used} left the list while in use"
            self.sent = devices
            self.kubelet.arriving.append(devices)
        for report in plan.reports:
            self._hear(report)

    def _snapshot(self) -> NodeSnapshot:
        facts = [card(one, "XID 79" if one in self.sick else "") for one in range(1, CARDS + 1)]
        return NodeSnapshot(
            now=self.now,
            time=START + timedelta(seconds=self.now),
            pods=self.known,
            seen_at=dict(self.seen_at),
            gone_at=dict(self.gone_at),
            claims=self.claims,
            cards={one.uuid: one for one in facts},
            kubelet=None if self.healthy is None else {self.carve.resource: self.healthy},
            kubelet_at=self.healthy_at,
            node={self.carve.resource: Counts(0, 0)},
            node_at=self.node_at,
        )

    def _note(self, before: dict[Key, Carving], plan: Plan) -> None:
        """Note the carvings' changes of stage and the conditions of shadow pods."""
        for key in before.keys() | plan.carvings.keys():
            was, now = before.get(key), plan.carvings.get(key)
            stages = was.stage if was else "new", now.stage if now else "forgotten"
            if stages[0] != stages[1]:
                self.happened(f"{stages[0]} → {stages[1]}")
            elif now and self.now - max(now.since, self.claims.asked_at) > OLD_S:
                self.happened(f"claims are old while {now.stage}")
        for report in plan.reports:
            self.happened(f"Ready: {report.conditions[0].reason}")

    def _hear(self, report: Report) -> None:
        """The operator believes the agent's conditions: a drained shadow pod may be deleted."""
        pod, name = self.pods.get(report.key), report.key[1]
        drained = any(
            one.reason == "Drained" and one.status == "True" and one.type == "Draining"
            for one in report.conditions
        )
        if drained and report.devices and pod is not None and pod.drain:
            users = self.kubelet.users_of(name)
            assert not users, f"{name} is said to be drained, and {users} hold devices of it"
            self.promised.add(name)

    # ---- the parts, each at its own pace ----

    def act(self, who: str) -> None:
        """Let one part act once."""
        self.now += 0.001
        match who:
            case "agent":
                self.replan()
            case "informer":
                self._informer()
            case "claims":
                self.claims = self.kubelet.claims({name for _, name in self.shadows}, self.now)
            case "healthy":
                self.healthy, self.healthy_at = frozenset(self.kubelet.healthy()), self.now
            case "node":
                self.node_at = {self.carve.resource: self.now}
            case "kubelet" if self.kubelet.arriving:
                self.kubelet.read_a_list()

    def all_act(self, lazy: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        """One round of all parts, except those that lag or are behind."""
        late = lazy | self.behind
        for who in (*WHO[:-1], "agent"):
            if who not in late:
                self.act(who)
        while "kubelet" not in late and self.kubelet.arriving:
            self.kubelet.read_a_list()

    def pass_time(self, seconds: float) -> None:
        """Let time pass. The kubelet waits for an answer for a second at most, and records it
        within four."""
        self.now += min(seconds, 3.0)
        if seconds > 1.0:
            for pod in self.kubelet.unanswered:
                self.answer(pod)
        for pod, at in list(self.kubelet.answered.items()):
            if self.now + seconds - at > 4.0:
                self.record(pod)
        self.now += max(seconds - 3.0, 0.0)

    def restart_kubelet(self) -> None:
        self.kubelet.lose_the_plugin()
        self.kubelet.devices = {}
        self.kubelet.arriving.append(dict(self.sent))
        self.healthy = None

    def _informer(self) -> None:
        for key in (self.known or {}).keys() - self.pods.keys():
            self.gone_at[key] = self.now
        for key, pod in self.pods.items():
            old = (self.known or {}).get(key)
            if old is not None and old.uid != pod.uid:
                self.gone_at[key] = self.now
            self.seen_at.setdefault(pod.uid, self.now)
        self.known = dict(self.pods)

    # ---- share pods ----

    @property
    def bound(self) -> list[Pod]:
        """Pods on the node that the kubelet has not admitted yet."""
        coming = self.kubelet.allocating
        return [one for one in self.pods.values() if not one.admitted and one.name not in coming]

    def bind(self, count: int) -> None:
        """The scheduler sends a pod that asks for that many devices."""
        name = f"share-{self._next()}"
        requests = ((self.carve.resource, count),)
        self.pods["team-a", name] = share(name, admitted=False, requests=requests)

    def admit(self, pod: Pod, choose: Callable[[list[str], int], list[str]]) -> None:
        """The kubelet chooses devices for the pod, if there are any, and asks the agent."""
        free, count = self.kubelet.free(), pod.requested(self.carve.resource)
        if len(free) < count:
            del self.pods[pod.key]
            return
        self.kubelet.allocating[pod.name] = tuple(sorted(choose(free, count)))

    def answer(self, pod: str) -> None:
        """The agent answers Allocate."""
        devices = [DeviceID.parse(one) for one in self.kubelet.allocating[pod]]
        carvings = [self.state.carving_of(one) for one in devices]
        for carving, one in zip(carvings, devices, strict=True):
            if carving is None or refusal(carving, one, self.state.snapshot):
                self.happened("refused")
                del self.kubelet.allocating[pod], self.pods["team-a", pod]
                return
            held = carving.card(one).uuid
            assert not self.state.snapshot.cards[held].problem, (
                f"{one} is on a card that has failed"
            )
            self.used[str(one)] = held, one.shadow
        self.happened(f"given: {len({self.used[str(one)][0] for one in devices})} cards")
        self.happened(f"given: {len({one.shadow for one in devices})} shadow pods")
        self.state.begin_allocation(devices, self.now)
        self.kubelet.answered[pod] = self.now

    def record(self, pod: str) -> None:
        """From now on the kubelet reports that the pod holds its devices."""
        shadows = {DeviceID.parse(one).shadow for one in self.kubelet.allocating[pod]}
        self.kubelet.record(pod)
        self.pods["team-a", pod] = replace(self.pods["team-a", pod], admitted=True)
        assert not shadows & self.promised, "a drained device was given out"

    def end(self, pod: str) -> None:
        """The share pod ends."""
        del self.pods["team-a", pod]
        self.kubelet.end(pod)

    # ---- shadow pods ----

    @property
    def shadows(self) -> list[Key]:
        """The shadow pods that the API server has."""
        return sorted(key for key, pod in self.pods.items() if pod.shadow)

    def add_shadow(self, name: str, place: int) -> None:
        """A shadow pod gets the cards of a place, if the cards are free."""
        name = f"{name}-{self._next()}" if self.forgetful else name
        count = self.carve.cards
        uuids = [card(place * count + number).uuid for number in range(1, count + 1)]
        if ("team-a", name) in self.pods or self.kubelet.cards.keys() & set(uuids):
            return
        uid = f"uid-{name}-{self._next()}"
        self.pods["team-a", name] = shadow(name, uid=uid, carve=self.carve)
        self.kubelet.cards |= dict.fromkeys(uuids, name)

    def remove_shadow(self, key: Key) -> None:
        """Remove a shadow pod, even while pods use it."""
        if self.kubelet.users_of(key[1]):
            self.happened("lost in use")
        del self.pods[key]
        self.kubelet.cards = {u: name for u, name in self.kubelet.cards.items() if name != key[1]}
        self.promised.discard(key[1])

    def ask(self, key: Key, off: bool = False) -> None:
        """The operator asks for a drain, perhaps once more, or calls it off."""
        self.pods[key] = replace(self.pods[key], drain="" if off else f"t{self._next()}")
        if off:
            self.promised.discard(key[1])

    def _next(self) -> int:
        self.serial += 1
        return self.serial
