"""What namespaces have borrowed lately."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from mizar_core.model_base import parse_time
from mizar_core.models import GPUQuota, SpotStatus
from mizar_core.planning.spot.accounts import STEADY_S, Accounts, recent

NOW = parse_time("2026-03-01T12:00:00Z")
HOUR = timedelta(hours=1)


def counted(in_use: int, card_seconds: int, at: datetime = NOW) -> SpotStatus:
    return SpotStatus(in_use=in_use, recent_card_seconds=card_seconds, counted_at=at)


def quota(name: str, most: int | None, status: SpotStatus | None, **meta: object) -> GPUQuota:
    spot = {} if most is None else {"spot": {"max": most}}
    told = {} if status is None else {"status": {"spot": status.to_dict()}}
    return GPUQuota.from_dict(
        {
            "metadata": {"name": name, "namespace": "team", **meta},
            "spec": {"pool": "default", "profiles": [{"devices": 2, "max": 1}], **spot},
            **told,
        }
    )


def test_what_was_had_counts_for_half_after_an_hour() -> None:
    assert recent(counted(0, 1000), NOW + HOUR) == pytest.approx(500)
    assert recent(counted(0, 1000), NOW + 3 * HOUR) == pytest.approx(125)


def test_what_is_had_is_added_while_it_fades() -> None:
    assert recent(counted(2, 0), NOW + timedelta(seconds=60)) == pytest.approx(120, rel=0.01)
    assert recent(counted(1, 0), NOW + 50 * HOUR) == pytest.approx(STEADY_S)


def test_it_does_not_matter_how_often_it_is_counted() -> None:
    status = counted(3, 700)
    later = status
    for step in range(1, 61):
        at = NOW + timedelta(minutes=step)
        later = counted(3, round(recent(later, at)), at)
    assert later.recent_card_seconds == pytest.approx(recent(status, NOW + HOUR), abs=60)


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    assert recent(counted(1, 100), NOW - HOUR) == 100


def test_a_namespace_without_an_account_had_nothing() -> None:
    assert recent(None, NOW) == 0
    assert Accounts([], NOW).recent("team") == 0
    assert Accounts([], NOW).most("team") == 0


def test_a_namespace_has_one_account_and_the_sum_of_its_quotas() -> None:
    old, new = counted(1, 10, NOW - HOUR), counted(0, 300)
    quotas = [quota("a", 1, new), quota("b", 2, old), quota("c", None, None)]
    for given in (quotas, quotas[::-1]):
        accounts = Accounts(given, NOW)
        assert (accounts.recent("team"), accounts.most("team")) == (300, 3)


def test_a_quota_that_is_being_deleted_allows_nothing() -> None:
    going = quota("a", 2, counted(1, 10), deletionTimestamp="2026-03-01T11:00:00Z", finalizers=[])
    accounts = Accounts([going], NOW)
    assert (accounts.recent("team"), accounts.most("team")) == (10, 0)
