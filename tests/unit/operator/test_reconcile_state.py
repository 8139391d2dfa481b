"""The state that the operator keeps from plan to plan."""

from mizar_core.planning.snapshot import Attempt, Refused
from mizar_operator.reconcile_state import (
    REFUSED_NODE_FOR_S,
    SILENT_NODE_FOR_S,
    Backoffs,
    ReconcileState,
)
from property.plan.snapshots import NOW, at

N1, N2 = ("gpu.2", "n1"), ("gpu.2", "n2")
OFFER = (("team-a", "gpus"), 2)


def test_what_stays_so_is_believed_longer_each_time() -> None:
    backoffs: Backoffs[str] = Backoffs(first=2, most=5)
    lasted = []
    now = 0.0
    for _ in range(4):
        backoffs.record("a", now)
        wait = backoffs.next(now)
        assert wait is not None and backoffs.is_waiting("a", now)
        lasted.append(wait)
        now += wait
        assert not backoffs.is_waiting("a", now)
    assert lasted == [2, 4, 5, 5]
    backoffs.forget_after(60, now + 59)
    backoffs.record("a", now + 59)
    assert backoffs.next(now + 59) == 5
    backoffs.forget_after(60, now + 59 + 5 + 60)
    backoffs.record("a", now + 200)
    assert backoffs.next(now + 200) == 2, "forgotten, so it begins anew"


def test_refusals_are_told_in_their_words_until_it_is_time() -> None:
    memory = ReconcileState()
    memory.refused.record(OFFER, 0, "exceeded quota")
    assert memory.refusals(1) == (Refused(*OFFER, "exceeded quota"),)
    assert memory.next_try(1) == 1
    assert memory.refusals(2) == ()


def test_gates_that_cannot_be_opened_are_tried_again_as_long_as_the_pod_is_there() -> None:
    memory = ReconcileState()
    for uid in ("uid-p", "uid-q"):
        memory.unopenable.record(uid, 0)
    assert memory.next_try(1) == 1
    memory.forget_old(1, {"uid-p"}, set())
    assert [uid for uid, _ in memory.unopenable.active(1)] == ["uid-p"]


def test_since_when_a_gate_is_closed() -> None:
    memory = ReconcileState()
    memory.note_gated({"uid-p"}, at(20))
    memory.note_gated({"uid-p", "uid-q"}, at(10))
    assert memory.gated_since == {"uid-p": at(20), "uid-q": at(10)}
    memory.note_gated({"uid-q"}, NOW)
    assert memory.gated_since == {"uid-q": at(10)}


def test_refused_nodes_count_for_a_while_as_long_as_the_pod_is_there() -> None:
    memory = ReconcileState()
    one, other = ("uid-p", "gpu.2"), ("uid-q", "gpu.2")
    memory.note_refused_nodes({one: {"n1"}, other: {"n1"}}, 0)
    memory.note_refused_nodes({one: {"n2"}}, REFUSED_NODE_FOR_S / 2)
    memory.forget_old(REFUSED_NODE_FOR_S - 1, {"uid-p"}, set())
    assert memory.nodes_refused(REFUSED_NODE_FOR_S - 1) == {one: {"n1", "n2"}}
    assert memory.nodes_refused(REFUSED_NODE_FOR_S) == {one: {"n2"}}
    memory.forget_old(2 * REFUSED_NODE_FOR_S, {"uid-p"}, set())
    assert memory.refused_nodes == {}


def test_silent_nodes_count_for_a_while_after_they_were_silent() -> None:
    memory = ReconcileState()
    memory.note_silent_nodes({"n1": at(20), "n2": at(20)}, 0)
    memory.note_silent_nodes({"n1": at(10)}, 10)
    assert memory.nodes_silent(SILENT_NODE_FOR_S) == {"n1": at(10)}
    memory.forget_old(SILENT_NODE_FOR_S + 10, set(), set())
    assert memory.silent_nodes == {}


def test_nodes_that_are_avoided_no_longer_are_planned_with_at_once() -> None:
    memory = ReconcileState()
    memory.note_silent_nodes({"n1": at(20)}, 0)
    assert memory.next_try(10) == SILENT_NODE_FOR_S - 10
    assert memory.next_try(SILENT_NODE_FOR_S) is None


def test_silent_nodes_are_forgotten_once_they_were_heard() -> None:
    memory = ReconcileState()
    memory.note_silent_nodes({"n1": at(20), "n2": at(20)}, 0)
    memory.note_heard_nodes({"n1", "n3"})
    assert memory.nodes_silent(1) == {"n2": at(20)}


def test_how_long_devices_have_been_free() -> None:
    memory = ReconcileState()
    memory.note_free({N1: 1, N2: 2}, at(30))
    memory.note_free({N1: 3, N2: 1}, at(20))
    assert memory.free_since == {N1: (at(30), at(20), at(20)), N2: (at(30),)}
    memory.note_free({N1: 1}, at(10))
    memory.note_free({N1: 1, N2: 2}, NOW)
    assert memory.free_since == {N1: (at(30),), N2: (NOW, NOW)}


def test_a_guess_that_helped_is_made_again_at_once() -> None:
    memory = ReconcileState()
    memory.note_attempts([Attempt("carry/web", "first")], 0)
    assert memory.attempts(1, {"first", "second"}) == {"carry/web"}
    assert memory.attempts(1, {"second"}) == set(), "the first waits no more"
    memory.note_attempts([Attempt("carry/web", "second")], 1)
    assert memory.next_try(1) == 60
    memory.note_attempts([Attempt("carry/web", "second")], 61)
    assert memory.next_try(61) == 120, "in vain: longer the next time"
