"""Conditions of pods: what follows from the loans, and how it is written."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import pytest
from aiohttp import web

from mizar_core.models import Spot
from mizar_core.names import SpotEvictionReason
from mizar_kube.client import KubeClient
from mizar_nodeagent.read_again import READ_AGAIN_S
from mizar_nodeagent.spot.borrowers import Borrower
from mizar_nodeagent.spot.device_list import counts, devices
from mizar_nodeagent.spot.loan import CardFacts, CardLoan, CardState, OwnerView
from mizar_nodeagent.spot.owner_conditions import conditions
from mizar_nodeagent.spot.owner_events import PodIdentity
from mizar_nodeagent.spot.pod_conditions import PodCondition, PodConditionWriter
from mizar_nodeagent.spot.reclaim import EvictionCause
from support.waiting import until
from unit.nodeagent.fake_api import FakeApi, serving
from unit.nodeagent.makers import card, cards, share_object

WHO = PodIdentity("team-a", "share", "uid-share")
BORROWER = Borrower(PodIdentity("team-b", "train", "uid-train"), frozenset(), frozenset())
AGREES = {WHO: OwnerView(agrees=True)}
ACTIVE = PodCondition("mizar.share/active", True, "CardKept", "")
GONE = SpotEvictionReason.OWNER_GONE
A, B = card(1).uuid, card(2).uuid


def given(
    *loans: CardLoan, ruled: bool = True, told: bool = False, ended: bool = True
) -> Mapping[PodIdentity, PodCondition]:
    borrowers = {loan.uuid: BORROWER for loan in loans if loan.state in ("Lent", "Reclaiming")}
    why = [EvictionCause(one.uuid, one.reason) for one in loans if one.reason]
    gone = {BORROWER.pod: why[0]} if ended and why else {}
    return conditions(loans, borrowers, gone, {A, B} if ruled else (), [WHO] if told else ())


def found(*loans: CardLoan, ruled: bool = True, told: bool = False) -> Mapping[str, str]:
    given_ = given(*loans, ruled=ruled, told=told)
    return {f"{pod.name} {one.type}": f"{one.is_true} {one.reason}" for pod, one in given_.items()}


def test_an_owner_is_inactive_while_one_of_its_cards_may_be_another_pods() -> None:
    kept, lent = (
        CardLoan(A, CardState.BUSY, owners=AGREES),
        CardLoan(B, CardState.LENT, owners=AGREES),
    )
    assert found(kept) == {"share mizar.share/active": "True CardKept"}
    assert found(kept, lent) == {
        "share mizar.share/active": "False CardLent",
        "train mizar.share/borrows": "True CardBorrowed",
    }


def test_an_owner_whose_card_is_never_lent_has_no_condition_unless_it_has_one() -> None:
    kept = CardLoan(A, owners=AGREES)
    assert found(kept, ruled=False) == {}
    assert found(kept, ruled=False, told=True) == {"share mizar.share/active": "True CardKept"}
    assert found(CardLoan(A, owners={WHO: OwnerView(agrees=False)})) == {}


def test_a_borrower_that_must_go_is_told_why() -> None:
    goes = CardLoan(A, CardState.RECLAIMING, GONE)
    assert found(goes) == {"train DisruptionTarget": "True OwnerGone"}


def test_a_borrower_of_two_cards_goes_for_what_was_counted() -> None:
    """The owners of its cards have taken them back for different reasons."""
    one = CardLoan(A, CardState.RECLAIMING, GONE, lenders=(WHO,))
    other = replace(one, uuid=B, reason=SpotEvictionReason.OWNER_ALIVE)
    for first, second in ((one, other), (other, one)):
        told = given(first, second)[BORROWER.pod]
        assert told.reason == first.reason
        assert told.message.startswith(f"card {first.uuid} of team-a/share: ")


def test_a_borrower_is_told_which_cards_it_has_and_whose_they_are() -> None:
    """The operator quotes it when it takes the cards back. It stays as it is once an owner is
    back."""
    one, two = (
        CardLoan(A, CardState.LENT, owners=AGREES),
        CardLoan(B, CardState.LENT, owners=AGREES),
    )
    message = f"card {A} of team-a/share; card {B} of team-a/share"
    borrows = PodCondition("mizar.share/borrows", True, "CardBorrowed", message)
    assert given(two, one, ended=False)[BORROWER.pod] == borrows
    going = replace(two, state=CardState.RECLAIMING, reason=SpotEvictionReason.OWNER_BACK)
    assert BORROWER.pod not in given(one, going, ended=False)
    assert given(one, going)[BORROWER.pod].type == "DisruptionTarget"


def test_a_borrower_keeps_what_it_was_told_while_its_cards_owner_is_not_known() -> None:
    """An agent that has just started knows no owners yet, and an earlier one did."""
    one, two = CardLoan(A, CardState.LENT, owners=AGREES), CardLoan(B, CardState.LENT)
    assert BORROWER.pod not in given(one, two)


def test_a_reason_changes_until_its_eviction_is_counted() -> None:
    """Counter, event and condition name the same reason."""
    back = CardLoan(A, CardState.RECLAIMING, SpotEvictionReason.OWNER_BACK)
    facts = CardFacts(complete=True, rule=Spot(), borrowed=True)
    assert back.stepped(facts, 1.0).reason == GONE
    assert back.stepped(replace(facts, counted=True), 1.0).reason == SpotEvictionReason.OWNER_BACK
    lost = replace(back, reason=SpotEvictionReason.DEVICE_LOST)
    assert lost.stepped(facts, 1.0).reason == SpotEvictionReason.DEVICE_LOST


def test_a_notice_ends_for_a_pod_that_comes_to_a_card_that_is_lent_no_more() -> None:
    """It never agreed, unlike the owner that had, by a rule that there is no more."""
    facts = CardFacts(complete=True, rule=Spot(), borrowed=True)
    lent = CardLoan(A, CardState.LENT, owners=AGREES).stepped(facts, 1.0)
    ended = replace(facts, rule=None)
    drained = replace(lent, owners={WHO: OwnerView(agrees=False)}).stepped(ended, 2.0)
    assert drained.stepped(ended, 3.0).reason == drained.reason == SpotEvictionReason.DRAIN
    other = PodIdentity("team-c", "other", "uid-other")
    for agrees, reason in ((True, "Drain"), (False, "OwnerAlive")):
        both = {**drained.owners, other: OwnerView(agrees)}
        assert replace(drained, owners=both).stepped(ended, 3.0).reason == reason


def test_the_devices_and_their_counts() -> None:
    loans = [CardLoan(A, CardState.LENT), CardLoan(B, CardState.RECLAIMING)]
    listed = devices(loans, {A, B, "GPU-lost"}, cards())
    assert {one.id: one.healthy for one in listed} == {
        f"{A}-spot": True,
        f"{B}-spot": False,
        "GPU-lost-spot": False,
    }
    known, unknown = counts(listed, {f"{A}-spot", f"{B}-spot"}), counts(listed, set())
    assert (known.capacity, known.allocatable) == (3, 1)
    assert (unknown.capacity, unknown.allocatable) == (2, 0)


class Written:
    """A writer of ACTIVE to the pod; its clock is the test's."""

    def __init__(self) -> None:
        self.api, self.now = FakeApi(), 0.0
        self.api.put_pod(share_object())

    async def run(self, act: Callable[[], Awaitable[None]]) -> None:
        async with serving(self.api) as client:
            self.writer = PodConditionWriter(client, clock=lambda: self.now, random=lambda: 0.5)
            running = asyncio.create_task(self.writer.run())
            self.writer.set_desired({WHO: ACTIVE})
            await until(lambda: self.api.writes)
            await act()
            running.cancel()

    async def read_at(self, now: float) -> None:
        """Wait until the pod was read at that time, once."""
        self.now, asked = now, len(self.api.asked)
        self.writer.set_desired({WHO: ACTIVE})
        await until(lambda: len(self.api.asked) > asked)
        self.writer.set_desired({WHO: ACTIVE})
        assert self.api.asked[asked] == "/api/v1/namespaces/team-a/pods/share"


async def test_a_pod_is_read_now_and_then_and_not_written_while_it_is_right() -> None:
    world = Written()

    async def act() -> None:
        for turn in (1, 2, 3):
            await world.read_at(turn * READ_AGAIN_S)
        assert len(world.api.asked) == 4 and len(world.api.writes) == 1
        assert len(world.api.from_copy) == 3, "etcd is not asked for what is nearly always right"

    await world.run(act)


async def test_a_pod_that_is_due_while_it_is_read_is_read_once_more() -> None:
    world = Written()
    world.api.asked = Interrupted(lambda: act())

    def act() -> None:
        """During the first read, the next one is due."""
        if len(world.api.asked) == 2:
            world.now = 2 * READ_AGAIN_S
            world.writer.set_desired({WHO: ACTIVE})

    async def read_twice() -> None:
        await world.read_at(READ_AGAIN_S)
        await until(lambda: len(world.api.asked) == 3)

    await world.run(read_twice)


class Interrupted(list[str]):
    """A list that calls `after` whenever something was appended."""

    def __init__(self, after: Callable[[], None]) -> None:
        super().__init__()
        self._after = after

    def append(self, one: str) -> None:
        super().append(one)
        self._after()


async def test_a_pod_that_is_restored_from_a_backup_gets_its_condition_again() -> None:
    world = Written()

    async def act() -> None:
        world.api.put_pod(share_object())
        world.api.read_only = True
        await world.read_at(READ_AGAIN_S)
        await until(lambda: len(world.api.asked) > 3)
        world.api.read_only = False
        await until(lambda: len(world.api.writes) == 2)

    await world.run(act)
    (condition,) = world.api.pods["team-a", "share"]["status"]["conditions"]
    assert condition["type"] == ACTIVE.type


@pytest.mark.parametrize("gone", [True, False])
async def test_a_pod_that_goes_is_left_alone(gone: bool) -> None:
    world = Written()

    async def act() -> None:
        pod = share_object()
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        world.api.put_pod(pod)
        if gone:
            world.api.delete_pod("team-a", "share")
        for turn in (1, 2):
            await world.read_at(turn * READ_AGAIN_S)
        assert len(world.api.asked) == 3 and len(world.api.writes) == 1

    await world.run(act)


async def test_a_condition_is_written_once_and_to_that_very_pod() -> None:
    api = FakeApi()
    api.put_pod(share_object())
    async with serving(api) as client:
        writer = PodConditionWriter(client, lambda: datetime(2026, 1, 1, tzinfo=UTC))
        running = asyncio.create_task(writer.run())
        other, nameless = PodIdentity("team-a", "share", "uid-old"), PodIdentity("team-a", "x")
        writer.set_desired({WHO: ACTIVE, other: ACTIVE, nameless: ACTIVE})
        # Two writes, and then a read, since the one to the pod that is gone was refused.
        await until(lambda: len(api.asked) == 3)
        (condition,) = api.conditions.values()
        assert condition == {
            "type": "mizar.share/active",
            "status": "True",
            "reason": "CardKept",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        api.down = True
        lent = PodCondition("mizar.share/active", False, "CardLent", "")
        writer.set_desired({WHO: ACTIVE, other: ACTIVE})
        writer.set_desired({WHO: lent, other: ACTIVE})
        tried = len(api.asked)
        await until(lambda: len(api.asked) > tried + 1)
        api.down = False
        await until(lambda: api.conditions["team-a", "share"]["reason"] == "CardLent")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    uids = [body["metadata"]["uid"] for _, body in api.writes]
    assert sorted(uids[:2]) == ["uid-old", "uid-share"] and uids[2:] == ["uid-share"]


class Contended(FakeApi):
    """The first write to a pod fails, since another client writes to it at that moment."""

    contended = True

    def _pod_status(self, key: tuple[str, str], body: Any) -> web.Response:
        if self.contended:
            self.contended = False
            return web.json_response({"reason": "Conflict"}, status=409)
        return super()._pod_status(key, body)


async def test_a_pod_that_another_client_writes_to_gets_its_condition_all_the_same() -> None:
    api = Contended()
    api.put_pod(share_object())
    async with serving(api) as client:
        writer = PodConditionWriter(client)
        running = asyncio.create_task(writer.run())
        for _ in range(20):
            writer.set_desired({WHO: ACTIVE})
            await asyncio.sleep(0.05)
        running.cancel()
    assert api.conditions


class Managed:
    """The API server, as far as applies of a field manager replace its earlier ones only."""

    def __init__(self) -> None:
        self.by_manager: dict[str, list[str]] = {}

    async def apply(self, obj: Any, *, field_manager: str, subresource: str) -> None:
        assert subresource == "status"
        self.by_manager[field_manager] = [one["type"] for one in obj["status"]["conditions"]]

    def has(self, kind: str) -> bool:
        return any(kind in types for types in self.by_manager.values())


async def test_why_a_borrower_goes_is_written_beside_what_it_borrows() -> None:
    """After a rollback, an agent of the version before writes why. The policies of that version do
    not let it remove a condition that they do not know, so that the borrower was never evicted."""
    api, both = Managed(), {"mizar.share/borrows", "DisruptionTarget"}
    writer = PodConditionWriter(cast(KubeClient, api))
    running = asyncio.create_task(writer.run())
    for kind in sorted(both, reverse=True):
        writer.set_desired({BORROWER.pod: PodCondition(kind, True, "Reason", "")})
        await until(partial(api.has, kind))
    running.cancel()
    assert all(map(api.has, both))
    assert api.by_manager["mizar-nodeagent"] == ["DisruptionTarget"], "as agents before write it"
