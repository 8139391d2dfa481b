"""The ledger, example by example."""

import pytest

from mizar_core.carve import Card, Carve
from mizar_core.device_ids import DeviceID, device_ids
from mizar_core.errors import (
    AlreadyHeld,
    CarveRefused,
    ForeignTenant,
    LedgerRefused,
    UnknownDevice,
)
from mizar_core.ledger import Ledger
from mizar_core.models import Holder

SHADOW = ("team-a", "shadow-2-x7k4q")
FIRST, SECOND = device_ids(*SHADOW, 2)
ONE = Holder(namespace="team-a", name="one", container="main")
TWO = Holder(namespace="team-a", name="two", container="main")
STRANGER = Holder(namespace="team-b", name="one", container="main")
CARD = Card("GPU-a", 16 * 2**30)


def _carve(**more: str) -> Carve:
    return Carve(
        resource="mizar.share/gpu.2", devices=2, cards=1, pool="default", quota="quota"
    ).changed(**more)


def _ledger(**more: str) -> Ledger:
    return Ledger().offer(SHADOW, _carve(**more), [CARD])


def test_granted_devices_are_no_longer_free() -> None:
    ledger = _ledger().grant([FIRST], ONE)
    assert ledger.free("mizar.share/gpu.2") == (SECOND,)
    assert ledger.free("mizar.share/gpu.4") == ()
    assert ledger.devices_of(ONE) == (FIRST,)
    assert not ledger.idle(SHADOW)


def test_released_devices_are_free_again() -> None:
    ledger = _ledger().grant([FIRST, SECOND], ONE).release(ONE)
    assert ledger.idle(SHADOW) and ledger.free("mizar.share/gpu.2") == (FIRST, SECOND)


def test_granting_again_to_the_same_holder_changes_nothing() -> None:
    ledger = _ledger().grant([FIRST], ONE)
    assert ledger.grant([FIRST], ONE) == ledger


def test_a_device_has_one_holder() -> None:
    with pytest.raises(AlreadyHeld, match="one holder per device"):
        _ledger().grant([FIRST], ONE).grant([SECOND, FIRST], TWO)


def test_a_strangers_pod_gets_nothing_unless_the_pool_is_shared() -> None:
    with pytest.raises(ForeignTenant, match="belongs to team-a, not team-b"):
        _ledger().grant([FIRST], STRANGER)
    assert _ledger(tenancy="Shared").grant([FIRST], STRANGER).devices_of(STRANGER) == (FIRST,)


def test_unknown_devices_are_refused() -> None:
    for device in (DeviceID(*SHADOW, 2), DeviceID("team-a", "gone", 0)):
        with pytest.raises(UnknownDevice):
            _ledger().grant([device], ONE)


def test_a_card_is_carved_once() -> None:
    with pytest.raises(LedgerRefused, match="one shadow pod per card"):
        _ledger().offer(("team-a", "another"), _carve(), [CARD])
    with pytest.raises(LedgerRefused, match="offered already"):
        _ledger().offer(SHADOW, _carve(), [Card("GPU-b", 1)])
    with pytest.raises(CarveRefused, match="holds 2 cards"):
        Ledger().offer(SHADOW, _carve(), [CARD, Card("GPU-b", 1)])


def test_a_shadow_pod_in_use_is_not_withdrawn() -> None:
    ledger = _ledger().grant([FIRST], ONE)
    with pytest.raises(AlreadyHeld, match="drain it"):
        ledger.withdraw(SHADOW)
    assert ledger.release(ONE).withdraw(SHADOW) == Ledger(offers={}, holders={})


def test_limits_follow_the_devices() -> None:
    (limit,) = _ledger().grant([FIRST], ONE).limits_of(ONE)
    assert (limit.uuid, limit.memory_bytes, limit.core_share) == ("GPU-a", 8 * 2**30, 5000)


def test_settling_frees_what_the_kubelet_does_not_list_and_reports_what_cannot_be() -> None:
    """Invariant 5: what the kubelet says is enough to build the ledger again."""
    gone = DeviceID("team-a", "gone", 0)
    seen = {SECOND: TWO, gone: ONE, FIRST: STRANGER}
    ledger, refused = _ledger().grant([FIRST], ONE).settle(seen)
    assert dict(ledger.holders) == {SECOND: TWO}
    assert [type(one) for one in refused] == [UnknownDevice, ForeignTenant]
