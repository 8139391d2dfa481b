"""Invariants 1, 3 and 4 under every order of events: kubelet, API server and agent lag and die.

The kubelet's device manager, the API server and time are models; the agent's mind is real.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mizar_core.device_ids import DeviceID
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.mind import Mind
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.devices import not_to_be_given
from mizar_nodeagent.planning.view import Counts, View
from mizar_nodeagent.pods import Key, Pod
from support.effort import effort
from unit.nodeagent.makers import RESOURCE, card, card_claim, cards, shadow, share, share_claim

NAMES = ("shadow-2-aaaaa", "shadow-2-bbbbb", "shadow-2-ccccc")
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Kubelet:
    """What the device manager believes. `arriving`: lists that it has been sent and not read."""

    devices: dict[str, bool] = field(default_factory=dict)
    arriving: deque[dict[str, bool]] = field(default_factory=deque)
    held: dict[str, str] = field(default_factory=dict)
    allocating: dict[str, str] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    cards: dict[str, str] = field(default_factory=dict)

    def healthy(self) -> set[str]:
        return {one for one, healthy in self.devices.items() if healthy}

    def free(self) -> list[str]:
        return sorted(self.healthy() - self.held.keys() - self.allocating.keys())

    def lose_the_plugin(self) -> None:
        """Its stream ended: allocations fail, nothing is healthy."""
        self.arriving.clear()
        self.devices = dict.fromkeys(self.devices, False)
        self.allocating.clear()
        self.answered.clear()


class Node(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.kubelet = Kubelet()
        self.pods: dict[Key, Pod] = {}
        self.serial = 0
        self.used: dict[str, tuple[str, str]] = {}
        self.promised: set[str] = set()
        self.agent_starts(lost=True)
        for number, name in enumerate(NAMES[:2], start=1):
            self.a_shadow_pod_gets_a_card(name, number)
        for _ in range(2):
            self.all_act(set())

    # ---- the agent ----

    @rule(lost=st.booleans())
    def agent_starts(self, lost: bool) -> None:
        saved = [] if lost else [one.to_dict() for one in self.mind.memory.values()]
        loaded = [Carving.from_dict(one, self.now) for one in saved]
        self.mind = Mind({one.key: one for one in loaded})
        self.kubelet.lose_the_plugin()
        self.sent: dict[str, bool] = {}
        self.known: dict[Key, Pod] | None = None
        self.seen_at: dict[str, float] = {}
        self.gone_at: dict[Key, float] = {}
        self.claims = Claims()
        self.healthy: frozenset[str] | None = None
        self.healthy_at = float("-inf")
        self.node_at: dict[str, float] = {}

    @rule()
    def informer_catches_up(self) -> None:
        for key in (self.known or {}).keys() - self.pods.keys():
            self.gone_at[key] = self.now
        for key, pod in self.pods.items():
            old = (self.known or {}).get(key)
            if old is not None and old.uid != pod.uid:
                self.gone_at[key] = self.now
            self.seen_at.setdefault(pod.uid, self.now)
        self.known = dict(self.pods)

    @rule()
    def agent_asks_who_holds_what(self) -> None:
        self.now += 0.001
        shadows = [
            card_claim(name, uuid)
            for uuid, name in self.kubelet.cards.items()
            if ("team-a", name) in self.pods
        ]
        shares = [share_claim(one, pod=pod) for one, pod in self.kubelet.held.items()]
        self.claims = Claims((*shadows, *_joined(shares)), self.now)

    @rule()
    def agent_asks_what_is_healthy(self) -> None:
        self.now += 0.001
        self.healthy, self.healthy_at = frozenset(self.kubelet.healthy()), self.now

    @rule()
    def agent_thinks(self) -> None:
        self.now += 0.001
        plan = self.mind.think(self.view())
        devices = {one.id: one.healthy for one in plan.lists.get(RESOURCE, ())}
        if devices != self.sent:
            gone = self.sent.keys() - devices.keys()
            used = self.kubelet.held.keys() | self.kubelet.allocating.keys()
            assert not gone & used, f"{gone & used} left the list while in use"
            self.sent = devices
            self.kubelet.arriving.append(devices)
        for report in plan.reports:
            drained = any(
                one.reason == "Drained" and one.status == "True" and one.type == "Draining"
                for one in report.conditions
            )
            pod = self.pods.get(report.key)
            if drained and report.devices and pod is not None and pod.drain:
                self.promised.add(report.key[1])

    def view(self) -> View:
        return View(
            now=self.now,
            time=START + timedelta(seconds=self.now),
            pods=self.known,
            seen_at=dict(self.seen_at),
            gone_at=dict(self.gone_at),
            claims=self.claims,
            cards=cards(),
            kubelet=None if self.healthy is None else {RESOURCE: self.healthy},
            kubelet_at=self.healthy_at,
            node={RESOURCE: Counts(0, 0)},
            node_at=self.node_at,
        )

    @rule()
    def node_status_is_written(self) -> None:
        self.node_at = {RESOURCE: self.now}

    @rule(lazy=st.sets(st.sampled_from(["informer", "claims", "healthy", "node", "kubelet"])))
    def all_act(self, lazy: set[str]) -> None:
        """One round of everybody, but for some who lag."""
        steps = {
            "informer": self.informer_catches_up,
            "claims": self.agent_asks_who_holds_what,
            "healthy": self.agent_asks_what_is_healthy,
            "node": self.node_status_is_written,
        }
        for name, step in steps.items():
            if name not in lazy:
                step()
        self.agent_thinks()
        if "kubelet" not in lazy:
            while self.kubelet.arriving:
                self.kubelet_reads_a_list()

    # ---- the kubelet ----

    @precondition(lambda self: self.kubelet.arriving)
    @rule()
    def kubelet_reads_a_list(self) -> None:
        devices = self.kubelet.arriving.popleft()
        assert self.kubelet.allocating.keys() <= devices.keys(), "the kubelet crashes"
        self.kubelet.devices = devices

    @precondition(lambda self: self.kubelet.free())
    @rule(data=st.data())
    def a_share_pod_is_admitted(self, data: st.DataObject) -> None:
        pod = f"share-{self.next()}"
        self.pods["team-a", pod] = share(pod)
        self.kubelet.allocating[data.draw(st.sampled_from(self.kubelet.free()))] = pod

    @precondition(lambda self: self.kubelet.allocating.keys() - self.kubelet.answered.keys())
    @rule()
    def agent_answers_allocate(self) -> None:
        text = min(self.kubelet.allocating.keys() - self.kubelet.answered.keys())
        device = DeviceID.parse(text)
        carving = self.mind.carving_of(device)
        if carving is None or not_to_be_given(carving, device, self.mind.view):
            self.pods.pop(("team-a", self.kubelet.allocating.pop(text)))
            return
        self.mind.begin_allocation([device], self.now)
        self.kubelet.answered[text] = self.now
        self.used[text] = carving.card(device).uuid, device.shadow

    @precondition(lambda self: self.kubelet.answered)
    @rule()
    def kubelet_records_the_allocation(self) -> None:
        text = min(self.kubelet.answered, key=self.kubelet.answered.__getitem__)
        del self.kubelet.answered[text]
        self.kubelet.held[text] = self.kubelet.allocating.pop(text)
        shadow_name = DeviceID.parse(text).shadow
        assert shadow_name not in self.promised, "a drained device was given out"

    @precondition(lambda self: self.kubelet.held)
    @rule(data=st.data())
    def a_share_pod_ends(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from(sorted(set(self.kubelet.held.values()))))
        self.pods.pop(("team-a", pod), None)
        self.kubelet.held = {one: who for one, who in self.kubelet.held.items() if who != pod}

    @rule()
    def kubelet_restarts(self) -> None:
        self.kubelet.lose_the_plugin()
        self.kubelet.devices = {}
        self.kubelet.arriving.append(dict(self.sent))
        self.healthy = None

    # ---- shadow pods ----

    @rule(name=st.sampled_from(NAMES), number=st.sampled_from([1, 2]))
    def a_shadow_pod_gets_a_card(self, name: str, number: int) -> None:
        uuid = card(number).uuid
        if ("team-a", name) in self.pods or uuid in self.kubelet.cards:
            return
        self.pods["team-a", name] = shadow(name, uid=f"uid-{name}-{self.next()}")
        self.kubelet.cards[uuid] = name

    @precondition(lambda self: self.shadows())
    @rule(data=st.data(), going=st.booleans())
    def a_shadow_pod_goes(self, data: st.DataObject, going: bool) -> None:
        key = data.draw(st.sampled_from(self.shadows()))
        if going:
            self.pods[key] = replace(self.pods[key], going=True)
            return
        del self.pods[key]
        self.kubelet.cards = {u: name for u, name in self.kubelet.cards.items() if name != key[1]}
        self.promised.discard(key[1])

    @precondition(lambda self: self.shadows())
    @rule(data=st.data())
    def a_drain_is_asked_for(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.shadows()))
        self.pods[key] = replace(self.pods[key], drain=f"t{self.next()}")

    @precondition(lambda self: self.shadows())
    @rule(data=st.data())
    def a_drain_is_called_off(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.shadows()))
        self.pods[key] = replace(self.pods[key], drain="")
        self.promised.discard(key[1])

    @rule(seconds=st.sampled_from([0.5, 2.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        """Everybody gets to act; a slow kubelet records an allocation within four seconds."""
        self.now += min(seconds, 3.0)
        while self.kubelet.allocating.keys() - self.kubelet.answered.keys():
            self.agent_answers_allocate()
        while any(self.now + seconds - at > 4.0 for at in self.kubelet.answered.values()):
            self.kubelet_records_the_allocation()
        self.now += max(seconds - 3.0, 0.0)
        self.all_act(set())

    # ---- what holds ----

    @invariant()
    def a_card_serves_one_shadow_pod(self) -> None:
        """Two shadow pods that carve one card would carve it beyond itself."""
        users: dict[str, set[str]] = {}
        for one in self.kubelet.held:
            uuid, name = self.used[one]
            users.setdefault(uuid, set()).add(name)
        assert all(len(names) == 1 for names in users.values()), users

    @invariant()
    def what_is_in_use_is_on_the_list(self) -> None:
        assert self.kubelet.allocating.keys() <= self.kubelet.devices.keys()

    def shadows(self) -> list[Key]:
        return sorted(key for key, pod in self.pods.items() if pod.shadow)

    def next(self) -> int:
        self.serial += 1
        return self.serial


def _joined(claims: list[Claim]) -> list[Claim]:
    """One claim for each pod, as the kubelet tells it."""
    pods = sorted({claim.pod for claim in claims})
    return [
        share_claim(*(one for claim in claims if claim.pod == pod for one in claim.ids), pod=pod)
        for pod in pods
    ]


TestNode = Node.TestCase
TestNode.settings = effort(9, stateful_step_count=40)
