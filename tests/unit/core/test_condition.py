"""Conditions: the time moves only when the status does."""

from datetime import UTC, datetime, timedelta

from mizar_core.condition import MESSAGE_MAX, Condition, find_condition, set_condition
from mizar_core.names import ConditionType

NOON = datetime(2025, 1, 31, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)


def _ready(
    status: bool, now: datetime, before: tuple[Condition, ...] = ()
) -> tuple[Condition, ...]:
    return set_condition(before, ConditionType.READY, status, "Because", "It is so.", now)


def test_a_new_condition_has_the_present_time() -> None:
    (condition,) = _ready(True, NOON)
    assert condition.to_dict() == {
        "type": "Ready",
        "status": "True",
        "reason": "Because",
        "message": "It is so.",
        "lastTransitionTime": "2025-01-31T12:00:00Z",
    }


def test_the_time_stays_while_the_status_stays() -> None:
    before = _ready(True, NOON)
    (after,) = set_condition(before, "Ready", "True", "Other", "Another sentence.", LATER)
    assert (after.last_transition_time, after.reason) == (NOON, "Other")


def test_the_time_moves_with_the_status() -> None:
    (after,) = _ready(False, LATER, _ready(True, NOON))
    assert (after.last_transition_time, after.status) == (LATER, "False")


def test_other_conditions_are_left_alone_and_sorted() -> None:
    both = set_condition(_ready(True, NOON), "Healthy", "Unknown", "NoAgent", "", LATER)
    assert [one.type for one in both] == ["Healthy", "Ready"]
    assert find_condition(both, "Ready") == both[1]
    assert find_condition(both, "Draining") is None


def test_times_are_whole_seconds_in_utc() -> None:
    (condition,) = _ready(True, NOON + timedelta(microseconds=999_999))
    assert condition.last_transition_time == NOON
    assert Condition.from_dict(condition.to_dict()) == condition


def test_a_long_message_is_cut_to_what_the_api_server_takes() -> None:
    (condition,) = set_condition((), "Ready", "True", "Because", "x" * 9999, NOON)
    assert len(condition.message) == MESSAGE_MAX
