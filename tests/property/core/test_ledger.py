"""Invariants 1 and 2: one holder per device, of the tenant that owns it; cards never exceeded."""

from collections import Counter
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mizar_core.carve import WHOLE_CARD
from mizar_core.device_ids import DeviceID
from mizar_core.errors import AlreadyHeld, LedgerRefused
from mizar_core.ledger import Ledger
from mizar_core.models import Holder
from property.core.strategies import cards_of, carves

tenants = st.sampled_from(["team-a", "team-b"])
shadows = st.tuples(tenants, st.sampled_from(["shadow-2-aaaaa", "shadow-2-bbbbb"]))
holders = st.builds(
    Holder, namespace=tenants, name=st.sampled_from(["one", "two"]), container=st.just("main")
)
wishes = st.lists(
    st.builds(
        DeviceID,
        tenants,
        st.sampled_from(["shadow-2-aaaaa", "shadow-2-bbbbb"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=3,
    unique=True,
)


class Bookkeeping(RuleBasedStateMachine):
    """Any sequence of offers, grants and releases."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()

    @rule(shadow=shadows, carve=carves(), cards=st.sampled_from(["own", "common"]))
    def offer(self, shadow, carve, cards) -> None:  # type: ignore[no-untyped-def]
        prefix = "GPU-" + ("-".join(shadow) if cards == "own" else "common")
        self._attempt(lambda: self.ledger.offer(shadow, carve, cards_of(carve, prefix)))

    @rule(ids=wishes, holder=holders)
    def grant(self, ids: list[DeviceID], holder: Holder) -> None:
        self._attempt(lambda: self.ledger.grant(ids, holder))

    @rule(holder=holders)
    def release(self, holder: Holder) -> None:
        self.ledger = self.ledger.release(holder)
        assert not self.ledger.devices_of(holder)

    @rule(shadow=shadows)
    def withdraw(self, shadow: tuple[str, str]) -> None:
        idle = self.ledger.idle(shadow)
        assert self._attempt(lambda: self.ledger.withdraw(shadow)) == idle

    @precondition(lambda self: self.ledger.holders)
    @rule(holder=holders)
    def grab(self, holder: Holder) -> None:
        """Take a device that somebody else has: always refused."""
        device, owner = next(iter(self.ledger.holders.items()))
        if owner != holder:
            assert not self._attempt(lambda: self.ledger.grant([device], holder))

    @invariant()
    def holders_are_of_the_tenant(self) -> None:
        for device, holder in self.ledger.holders.items():
            assert holder.namespace == device.namespace

    @invariant()
    def free_and_held_are_all_devices(self) -> None:
        for (namespace, name), offer in self.ledger.offers.items():
            held = [
                one
                for one in self.ledger.holders
                if (one.namespace, one.shadow) == (namespace, name)
            ]
            free = [
                one
                for one in self.ledger.free(offer.carve.resource)
                if (one.namespace, one.shadow) == (namespace, name)
            ]
            assert len(held) + len(free) == offer.carve.devices and not set(held) & set(free)

    @invariant()
    def cards_are_never_exceeded(self) -> None:
        memory: Counter[str] = Counter()
        cores: Counter[str] = Counter()
        for holder in set(self.ledger.holders.values()):
            for limit in self.ledger.limits_of(holder):
                memory[limit.uuid] += limit.memory_bytes
                cores[limit.uuid] += limit.core_share
        for offer in self.ledger.offers.values():
            for card in offer.cards:
                scaling = Fraction(offer.carve.memory_scaling)
                assert memory[card.uuid] <= card.memory_bytes * scaling
                assert cores[card.uuid] <= WHOLE_CARD * Fraction(offer.carve.core_scaling)

    @invariant()
    def it_can_be_built_again(self) -> None:
        """Invariant 5."""
        again, refused = self.ledger.settle(self.ledger.holders)
        assert not refused and again == self.ledger

    def _attempt(self, step) -> bool:  # type: ignore[no-untyped-def]
        before = self.ledger
        try:
            self.ledger = step()
        except LedgerRefused:
            assert self.ledger is before
            return False
        return True


TestBookkeeping = Bookkeeping.TestCase
TestBookkeeping.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


@given(carves(), st.data())
def test_each_device_is_granted_once(carve, data) -> None:  # type: ignore[no-untyped-def]
    ledger = Ledger().offer(("team-a", "shadow"), carve, cards_of(carve))
    order = data.draw(st.permutations(ledger.free(carve.resource)))
    for at, device in enumerate(order):
        holder = Holder(namespace="team-a", name=f"pod-{at}", container="main")
        ledger = ledger.grant([device], holder)
        try:
            ledger.grant([device], holder.changed(name="thief"))
            raise AssertionError("granted twice")
        except AlreadyHeld:
            pass
    assert ledger.free(carve.resource) == ()
