"""Invariants 1, 3 and 4 under every order of events: kubelet, API server and agent lag and die.

Events that are rare by chance are made to happen often. Walks that a seed decides must reach
everything that the machine is for. Hypothesis draws further walks, and makes them as short as it
can where something fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from mizar_nodeagent.pods import Key
from support.effort import effort, times
from unit.nodeagent.makers import carve
from unit.nodeagent.node_model import CARDS, NAMES, WHO, NodeModel

T = TypeVar("T")

SHAPES = {2: carve(), 4: carve(resource="team-a.mizar.share/gpu.4", devices=4, cards=2)}
STEPS = ("is bound", "asks for devices", "is given them", "holds them")
"""How far a share pod has come."""
BREAKS = ("deleted", "gone", "replaced", "agent", "kubelet")
"""Ways in which a shadow pod goes, or agent or kubelet starts again."""
MEANWHILE = (
    "nothing",
    "comes",
    "comes unseen",
    "comes unseen",
    "comes, and the agent dies",
    "comes unseen, and the agent dies",
    "behind",
    "is asked for again",
    "is called off",
)
"""Events that may happen while a shadow pod is being drained."""
ROUND_S = 0.6
"""Seconds between the steps of a drain that is not disturbed: several steps outlast the agent's
grace periods."""

OFTEN = {
    "new → Serving",
    "new → Blocked",
    "Serving → Lowered",
    "Serving → InUse",
    "Serving → Leaving",
    "Lowered → Blocked",
    "Lowered → InUse",
    "Lowered → Serving",
    "Blocked → Drained",
    "Blocked → InUse",
    "Blocked → Serving",
    "Drained → Serving",
    "InUse → Lowered",
    "InUse → Serving",
    "Leaving → Serving",
    "Leaving → forgotten",
    "Ready: DevicesInUse",
    "Ready: Unhealthy",
    "claims are old while Lowered",
    "claims are old while Blocked",
    "given: 1 cards",
    "given: 2 cards",
    "given: 2 shadow pods",
    "lost in use",
    "refused",
}
"""Events without which the machine would not test what it is for."""

ACTIONS = (
    "one_acts",
    "all_act",
    "time_passes",
    "somebody_falls_behind",
    "a_share_pod_comes",
    "a_share_pod_comes",
    "a_share_pod_goes_on",
    "a_share_pod_ends",
    "a_shadow_pod_comes",
    "something_breaks",
    "a_card_fails_or_is_mended",
    "a_drain_takes_its_course",
    "a_drain_takes_its_course",
    "a_drain_is_called_off",
)


AT_ONCE = 60
"""The number of walks of a test."""
PARTS = times(1)


class Walk:
    """A node to which one event after the other happens. `draw` chooses among several."""

    def __init__(self, draw: Callable[..., Any], happened: Callable[[str], None]) -> None:
        self.draw = draw
        self.node = NodeModel(SHAPES[self.draw(2, 4)], self.draw(False, True), happened)
        for _ in range(self.draw(0, 1, 2)):
            self.comes(1, STEPS[-1])

    def step(self) -> None:
        getattr(self, self.draw(*ACTIONS))()
        self.node.check()

    # ---- everybody ----

    def one_acts(self) -> None:
        self.node.act(self.draw(*WHO, "agent", "agent"))

    def all_act(self) -> None:
        self.node.all_act({who for who in WHO if self.draw(False, True)})

    def time_passes(self) -> None:
        self.node.pass_time(self.draw(0.5, 2.0, 11.0))
        self.node.all_act()

    def somebody_falls_behind(self) -> None:
        """The part stays behind until all catch up."""
        self.node.behind = {self.draw(*WHO, "")} - {""}

    def something_breaks(self) -> None:
        what, node = self.draw(*BREAKS), self.node
        if what == "agent":
            node.start_agent()
        elif what == "kubelet":
            node.restart_kubelet()
        elif node.shadows:
            self.a_shadow_pod_goes(self.draw(*node.shadows), what)
        if self.draw(True, False):
            self.life_goes_on()

    def life_goes_on(self) -> None:
        """All parts hear of what has happened, and a new pod comes."""
        self.node.behind.clear()
        for _ in range(3):
            self.node.all_act()
        self.a_share_pod_goes_on()
        self.comes(1, STEPS[-1])

    def a_card_fails_or_is_mended(self) -> None:
        self.node.sick ^= {self.draw(*range(1, CARDS + 1))}
        self.node.all_act()

    # ---- share pods ----

    def a_share_pod_comes(self) -> None:
        self.comes(self.draw(1, 2), self.draw(STEPS[-1], *STEPS))

    def comes(self, count: int, how_far: str) -> None:
        self.node.bind(count)
        for _ in range(STEPS.index(how_far)):
            self.a_share_pod_goes_on()

    def a_share_pod_goes_on(self) -> None:
        """The pod that has come the farthest takes its next step."""
        node, kubelet = self.node, self.node.kubelet
        if kubelet.answered:
            node.record(min(kubelet.answered, key=kubelet.answered.__getitem__))
        elif kubelet.unanswered:
            node.answer(kubelet.unanswered[0])
        elif node.bound:
            node.admit(node.bound[0], self.choose)

    def choose(self, free: list[str], count: int) -> list[str]:
        chosen: list[str] = []
        for _ in range(count):
            chosen.append(self.draw(*(one for one in free if one not in chosen)))
        return chosen

    def a_share_pod_ends(self) -> None:
        if self.node.kubelet.held:
            self.node.end(self.draw(*sorted(set(self.node.kubelet.held.values()))))

    # ---- shadow pods ----

    def a_shadow_pod_comes(self) -> None:
        self.node.add_shadow(self.draw(*NAMES), self.draw(0, 1))

    def a_shadow_pod_goes(self, key: Key, how: str) -> None:
        """It is deleted, with a grace period or at once, or replaced by another that has its cards
        and maybe its name; a pod may just be asking for its devices."""
        node = self.node
        if self.draw(True, False):
            self.comes(1, STEPS[1])
        if how == "deleted":
            node.pods[key] = replace(node.pods[key], terminating=True)
            return
        node.remove_shadow(key)
        if how == "replaced":
            for place in (0, 1):
                node.add_shadow(self.draw(key[1], *NAMES), place)
        elif self.draw(True, False):
            self.is_forgotten()

    def is_forgotten(self) -> None:
        """The agent forgets the shadow pod after the time for which it lists what is gone, if no
        pod holds a device of it."""
        self.node.behind = {self.draw("", "", "kubelet", "claims")} - {""}
        for seconds in (0.5, 0.5, 11.0):
            self.node.all_act()
            self.node.pass_time(seconds)
        self.comes(1, self.draw(*STEPS))
        self.node.all_act()

    def a_drain_is_called_off(self) -> None:
        if self.node.shadows:
            self.node.ask(self.draw(*self.node.shadows), off=True)

    def a_drain_takes_its_course(self) -> None:
        """The drain goes from the operator's request to the agent's promise, unless an event
        happens at some moment."""
        if not self.node.shadows:
            return
        key = self.draw(*self.node.shadows)
        if self.draw(True, True, True, False):
            self.comes_to_rest(key)
        self.node.ask(key)
        what, at, later = self.draw(*MEANWHILE), self.draw(*range(7)), self.draw(*range(1, 7))
        for moment in range(12):
            if moment == at:
                self.happens(what, key)
            elif moment == at + later:
                self.follows(what)
            self.node.pass_time(ROUND_S)
            self.node.all_act()

    def comes_to_rest(self, key: Key) -> None:
        """Its users end, and all parts know."""
        self.node.behind.clear()
        for pod in self.node.kubelet.users_of(key[1]) & set(self.node.kubelet.held.values()):
            self.node.end(pod)
        self.node.all_act()

    def happens(self, what: str, key: Key) -> None:
        """An event in the middle of a drain."""
        match what:
            case "comes":
                self.comes(1, self.draw(*STEPS))
            case "comes unseen" | "comes unseen, and the agent dies":
                self.node.behind = {"informer"}
                self.comes(1, STEPS[1])
            case "comes, and the agent dies":
                self.comes(1, STEPS[-1])
                self.node.start_agent()
                self.node.behind = {"claims"}
            case "behind":
                self.node.behind = {self.draw("claims", *WHO)}
            case "is asked for again" | "is called off" if key in self.node.pods:
                self.node.ask(key, off=what == "is called off")

    def follows(self, what: str) -> None:
        """Some rounds pass."""
        self.a_share_pod_goes_on()
        if what == "comes unseen, and the agent dies":
            self.a_share_pod_goes_on()
            self.node.start_agent()
            self.node.behind = {"claims"}


class Node(RuleBasedStateMachine):
    """The walk as hypothesis draws it. If hypothesis chose among rules itself, it would leave out
    half of them in each example, and events that take several steps would hardly ever happen."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.data = data
        self.walk = Walk(self._draw, event)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.data = data
        self.walk.step()

    def _draw(self, *among: T) -> T:
        return self.data.draw(st.sampled_from(among))


# hypothesis gives up after five minutes of making a failure shorter.
TestNode = pytest.mark.timeout(600)(Node.TestCase)
TestNode.settings = effort(9, stateful_step_count=25)


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_on_a_walk(part: int) -> None:
    """And the events that the machine is for do happen."""
    reached = Counter[str]()
    for seed in range(part * AT_ONCE, (part + 1) * AT_ONCE):
        _walk(seed, lambda what: reached.update([what]))
    assert not OFTEN - reached.keys(), "this did not happen once"


def _walk(seed: int, happened: Callable[[str], None]) -> None:
    """25 steps that the seed decides."""
    random = Random(seed)
    walk = Walk(lambda *among: random.choice(among), happened)
    try:
        for _ in range(25):
            walk.step()
    except AssertionError as error:
        error.add_note(f"on the walk of seed {seed}")
        raise
