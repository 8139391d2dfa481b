"""What the watcher beside the end-to-end tests calls a fault."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mizar_core.names import SPOT_RESOURCE
from support.watcher_faults import WHOLE_CARDS, Held, Look, Seen, Withdrawals, faults

SHARES = "team-a.mizar.share/gpu.2"
FIRST, SECOND = "team-a/shadow-2-x7k4q-0-0", "team-a/shadow-2-x7k4q-0-1"
SHADOW = Held("team-a/shadow-2-x7k4q-0", "main", WHOLE_CARDS, frozenset({"GPU-a"}))
USER = Held("team-a/one", "main", SHARES, frozenset({FIRST}))
OTHER = Held("team-a/two", "main", SHARES, frozenset({SECOND}))
BORROWER = Held("team-b/train", "main", SPOT_RESOURCE, frozenset({"GPU-a-spot"}))


def has(pod: str, *cards: str) -> Seen:
    return Seen(pod, "main", frozenset(cards))


def look(
    *held: Held, seen: tuple[Seen, ...] = (), offered: Mapping[str, frozenset[str]] | None = None
) -> Look:
    return Look("node-1", held, seen, offered or {})


def test_sharers_on_the_card_of_their_shadow_pod_are_right() -> None:
    both = frozenset({FIRST, SECOND})
    whole = Held("team-b/train", "main", WHOLE_CARDS, frozenset({"GPU-b", "GPU-c"}))
    seen = (has("team-a/one", "GPU-a"), has("team-a/two", "GPU-a"), has("team-b/train", "GPU-b"))
    assert faults(look(SHADOW, USER, OTHER, whole, seen=seen, offered={SHARES: both})) == set()


def test_a_container_of_a_pod_may_hand_its_card_to_the_next() -> None:
    init = Held(SHADOW.pod, "init", WHOLE_CARDS, SHADOW.ids)
    assert faults(look(SHADOW, init)) == set()


def test_a_borrower_on_the_card_of_its_owner_is_right() -> None:
    seen = (has("team-a/one", "GPU-a"), has("team-b/train", "GPU-a"))
    assert faults(look(SHADOW, USER, BORROWER, seen=seen)) == set()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            look(SHADOW, BORROWER, Held("team-c/train", "main", SPOT_RESOURCE, BORROWER.ids)),
            "card GPU-a-spot is held by team-b/train and team-c/train",
        ),
        (
            look(SHADOW, BORROWER, seen=(has("team-b/train", "GPU-b"),)),
            "team-b/train/main has card GPU-b, which was given to nobody",
        ),
        (
            look(SHADOW, USER, Held("team-a/two", "main", SHARES, USER.ids)),
            f"device {FIRST} is held by team-a/one/main and team-a/two/main",
        ),
        (
            look(SHADOW, USER, Held("team-a/one", "side", SHARES, USER.ids)),
            f"device {FIRST} is held by team-a/one/main and team-a/one/side",
        ),
        (
            look(SHADOW, Held("team-b/shadow-1-k2m9p-0", "main", WHOLE_CARDS, SHADOW.ids)),
            "card GPU-a is held by team-a/shadow-2-x7k4q-0 and team-b/shadow-1-k2m9p-0",
        ),
        (look(USER), f"team-a/one holds {FIRST}, but team-a/shadow-2-x7k4q-0 holds no card"),
        (
            look(SHADOW, Held("team-b/one", "main", "team-b.mizar.share/gpu.2", USER.ids)),
            f"team-b/one holds {FIRST} of another tenant",
        ),
        (
            look(SHADOW, seen=(has("team-b/plain", "GPU-a"),)),
            "team-b/plain/main has card GPU-a, which was given to team-a/shadow-2-x7k4q-0",
        ),
        (
            look(SHADOW, USER, seen=(has("team-a/one", "GPU-a", "GPU-b"),)),
            "team-a/one/main has card GPU-b, which was given to nobody",
        ),
    ],
)
def test_faults(wrong: Look, said: str) -> None:
    assert faults(wrong) == {f"node-1: {said}"}


def test_a_new_kubelet_may_know_a_user_before_its_shadow_pod() -> None:
    """Not where the user's container lives: then another pod may be given the card."""
    new = replace(look(USER), new_kubelet=True)
    assert faults(new) == set()
    assert any(
        "holds no card" in one for one in faults(replace(new, seen=(has(USER.pod, "GPU-a"),)))
    )


SERVED = replace(look(SHADOW, USER), serving=frozenset({"agent 1", "kubelet 1"}))
OFFERED = replace(SERVED, offered={SHARES: frozenset({FIRST})})
WITHDRAWN = (
    f"node-1: team-a/one holds {FIRST}, and the node has offered nothing of its resource for 90 s"
)


def told(*looks: Look, every: float = 1.0) -> frozenset[str]:
    """What the last of these looks reports about withdrawals."""
    withdrawals = Withdrawals()
    found: frozenset[str] = frozenset()
    for number, one in enumerate(looks):
        found = withdrawals.faults(one, 1000 + number * every)
    return found


def test_a_resource_that_is_withdrawn_for_long_is_noticed() -> None:
    """It is noticed although the tenant has no other devices there."""
    assert told(OFFERED, *[SERVED] * 90) == set()
    assert told(OFFERED, *[SERVED] * 91) == {WITHDRAWN}
    assert told(*[SERVED] * 91) == {WITHDRAWN}, "it may never have been offered"
    assert told(*[replace(SERVED, offered={SHARES: frozenset()})] * 91) == {WITHDRAWN}


def test_a_device_that_is_withdrawn_while_others_are_offered_is_noticed_sooner() -> None:
    """A start that ends a drain has its device offered again before."""
    others = replace(SERVED, offered={SHARES: frozenset({SECOND})})
    alone = {f"node-1: team-a/one holds {FIRST}, which the node has not offered for 15 s"}
    assert told(OFFERED, *[others] * 15) == set()
    assert told(OFFERED, *[others] * 16) == alone
    assert told(*[SERVED] * 60, *[others] * 15) == set(), "the agent is starting until then"
    assert told(*[replace(others, failed=frozenset({"GPU-a"}))] * 91) == set()
    assert told(*[replace(others, failed=frozenset({"GPU-b"}))] * 91) == alone


ALIVE = replace(SERVED, seen=(has(USER.pod, "GPU-a"),))
IN_USE = replace(ALIVE, offered=OFFERED.offered)
VANISHED = f"node-1: team-a/one holds {FIRST}, which the node offered before, and has not for 10 s"


def test_a_device_that_is_taken_from_its_user_is_noticed_soon() -> None:
    """Nothing but a failed card takes an offered device from a container that lives, whatever else
    is offered: agent and kubelet run on."""
    others = replace(ALIVE, offered={SHARES: frozenset({SECOND})})
    for missing in (ALIVE, others):
        assert told(IN_USE, *[missing] * 10) == set()
        assert told(IN_USE, *[missing] * 11) == {VANISHED}
    assert told(IN_USE, *[ALIVE] * 6, *[others] * 5) == {VANISHED}
    assert told(IN_USE, *[ALIVE] * 8, IN_USE, *[ALIVE] * 10) == set()
    assert told(IN_USE, *[SERVED] * 90) == set(), "its container has ended"
    assert told(OFFERED, *[ALIVE] * 90) == set(), "it was offered before its container lived"
    assert told(IN_USE, *[replace(ALIVE, failed=frozenset({"GPU-a"}))] * 91) == set()


@pytest.mark.parametrize(
    "between",
    [replace(ALIVE, serving=frozenset({"agent 2", "kubelet 1"})), replace(ALIVE, held=(SHADOW,))],
    ids=["another agent", "not held"],
)
def test_what_another_agent_or_holder_had_offered_does_not_count(between: Look) -> None:
    assert told(IN_USE, between, *[ALIVE] * 90) == set()
    assert told(IN_USE, between, IN_USE, *[ALIVE] * 11) == {VANISHED}


@pytest.mark.parametrize(
    "other",
    [
        OFFERED,
        replace(SERVED, serving=frozenset()),
        replace(SERVED, serving=frozenset({"agent 2", "kubelet 1"})),
        replace(SERVED, failed=frozenset({"GPU-a"})),
        replace(SERVED, held=(USER,)),
        replace(SERVED, held=(SHADOW,)),
    ],
    ids=["offered", "no agent", "another agent", "failed card", "no shadow pod", "not held"],
)
def test_what_may_be_in_between_begins_a_new_withdrawal(other: Look) -> None:
    assert told(*[SERVED] * 80, other, *[SERVED] * 90) == set()
    assert told(*[SERVED] * 80, other, *[SERVED] * 92) == {WITHDRAWN}


def test_what_nobody_looked_at_is_not_known() -> None:
    assert told(*[SERVED] * 20, every=11.0) == set()
    withdrawals = Withdrawals()
    for at in range(91):
        if at == 50:
            withdrawals.forget()
        assert withdrawals.faults(SERVED, at) == set()
