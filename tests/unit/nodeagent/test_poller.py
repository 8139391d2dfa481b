"""Questions to the kubelet that many callers ask at once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet import podresources
from mizar_nodeagent.kubelet.claims import Claim, Claims
from mizar_nodeagent.kubelet.podresources import PodResources
from mizar_nodeagent.kubelet.poller import STARTS_S, KubeletPoller
from support.logs import logged
from support.waiting import PATIENCE_S, until
from unit.nodeagent.fake_kubelet import FakeKubelet


class FakePodResources:
    """Each question is answered when its future is."""

    started_at = restarted_at = float("-inf")

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Claims]] = []

    async def list(self, urgent: bool = False) -> Claims:
        assert urgent
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]

    async def allocatable(self) -> dict[str, frozenset[str]]:
        return {}


HELD = Claims((Claim("a", "pod", "main", "nvidia.com/gpu", frozenset({"GPU-1"})),), 1)


def claims(at: float) -> Claims:
    return Claims((), at)


async def answer(kubelet: FakePodResources, poller: KubeletPoller, claims: Claims) -> Claims:
    """What the poller makes of the kubelet's next answer."""
    asking = asyncio.create_task(poller.poll_claims())
    count = len(kubelet.asked)
    await until(lambda: len(kubelet.asked) > count)
    kubelet.asked[-1].set_result(claims)
    return await asking


class SilentKubelet(FakeKubelet):
    """It answers no question for claims."""

    async def List(self, request: Any, context: Any) -> Any:
        self.asked += 1
        await asyncio.Event().wait()


async def test_a_closed_connection_ends_no_caller(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poller behaved as if the caller had been cancelled, which ended it for good."""
    monkeypatch.setattr(podresources, "TIMEOUT_S", PATIENCE_S)
    kubelet = SilentKubelet(tmp_path_factory.mktemp("k"))
    await kubelet.start()
    client = PodResources(kubelet.podresources_dir / "kubelet.sock")
    asking = asyncio.create_task(client.list())
    await until(lambda: kubelet.asked == 1)
    await client.close()
    with pytest.raises(KubeletAway):
        await asking
    asking = asyncio.create_task(client.list())
    await until(lambda: kubelet.asked == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await client.close()
    await kubelet.stop()


async def test_a_kubelet_that_restarts_between_a_question_and_its_connection_is_not_believed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know its pods yet, and a borrower seemed gone, then back on a card whose owner
    had just started: it was evicted."""
    monkeypatch.setattr(podresources, "TIMEOUT_S", PATIENCE_S)
    old, new = (FakeKubelet(tmp_path_factory.mktemp(one)) for one in ("old", "new"))
    socket = old.podresources_dir / "kubelet.sock"
    client = PodResources(socket)
    connected = client._connected

    def restarts() -> Any:
        channel = connected()
        (new.podresources_dir / "kubelet.sock").replace(socket)
        return channel

    async with AsyncExitStack() as stack:
        for kubelet in (old, new):
            await kubelet.start()
            stack.push_async_callback(kubelet.stop)
        stack.push_async_callback(client.close)
        with monkeypatch.context() as patch:
            patch.setattr(client, "_connected", restarts)
            with pytest.raises(KubeletAway, match="restarted while it was asked"):
                await client.list()
        assert (old.asked, new.asked) == (0, 1)
        assert await client.list() and client.restarted_at > 0


async def test_those_who_come_together_share_an_answer() -> None:
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    together = [asyncio.create_task(poller.poll_claims()) for _ in range(100)]
    await until(lambda: len(kubelet.asked) == 1)
    kubelet.asked[0].set_result(claims(1))
    assert {one.asked_at for one in await asyncio.gather(*together)} == {1}
    assert len(kubelet.asked) == 1 and poller.claims.asked_at == 1


async def test_nobody_gets_an_answer_that_was_asked_for_before() -> None:
    """In between, the kubelet may have recorded the caller's devices."""
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    first = asyncio.create_task(poller.poll_claims())
    await until(lambda: len(kubelet.asked) == 1)
    later = [asyncio.create_task(poller.poll_claims()) for _ in range(3)]
    await asyncio.sleep(0)
    kubelet.asked[0].set_result(claims(1))
    assert (await first).asked_at == 1
    await until(lambda: len(kubelet.asked) == 2)
    kubelet.asked[1].set_result(claims(2))
    assert {one.asked_at for one in await asyncio.gather(*later)} == {2}
    assert len(kubelet.asked) == 2


async def test_an_error_is_for_those_who_asked_only() -> None:
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    asking = [asyncio.create_task(poller.poll_claims()) for _ in range(2)]
    await until(lambda: len(kubelet.asked) == 1)
    gives_up = asking.pop()
    gives_up.cancel()
    kubelet.asked[0].set_exception(KubeletAway("away"))
    with pytest.raises(KubeletAway):
        await asking[0]
    again = asyncio.create_task(poller.poll_claims())
    await until(lambda: len(kubelet.asked) == 2)
    kubelet.asked[1].set_result(claims(3))
    assert (await again).asked_at == 3


async def test_a_kubelet_that_has_just_started_is_not_believed_that_nobody_holds_anything() -> None:
    """The kubelet serves before it knows its pods; after a while its answer is believed."""
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    answered = partial(answer, kubelet, poller)
    assert await answered(claims(0.5)), "of one that was there before, and of pods that never were"
    assert await answered(HELD) == HELD
    kubelet.restarted_at = 2.0
    with pytest.raises(KubeletAway, match="does not know its pods"):
        await answered(claims(3))
    assert poller.claims == HELD
    assert await answered(claims(3 + STARTS_S)) == poller.claims == claims(3 + STARTS_S)


async def test_nor_is_one_that_cannot_ask_the_api_server_for_its_pods() -> None:
    """However long that lasts, and for as long as after a start once it can."""
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    answered = partial(answer, kubelet, poller)
    heard = 1.0
    poller.api_heard_at = lambda: heard
    assert await answered(HELD) == HELD
    assert await answered(claims(2)) == claims(2), "of a kubelet that was not restarted"
    assert await answered(replace(HELD, asked_at=3)) == replace(HELD, asked_at=3)
    kubelet.restarted_at = 4.0
    for at in (5, 5 + STARTS_S, 3600):
        with pytest.raises(KubeletAway):
            await answered(claims(at))
    heard = 3605.0
    for at in (3606, 3605 + STARTS_S):
        with pytest.raises(KubeletAway):
            await answered(claims(at))
    assert await answered(claims(3606 + STARTS_S)) == claims(3606 + STARTS_S)


async def test_an_agent_that_starts_with_its_kubelet_does_not_believe_it_either() -> None:
    """An earlier agent knew of pods, so their cards were withdrawn and their borrowers evicted."""
    kubelet = FakePodResources()
    kubelet.started_at = 1.0
    heard = float("-inf")
    expected = {("a", "pod"), ("a", "shadow")}
    poller = KubeletPoller(kubelet, lambda: None, expected=expected)  # type: ignore[arg-type]
    poller.api_heard_at = lambda: heard
    answered = partial(answer, kubelet, poller)
    for at in (2, 2 + STARTS_S):
        with pytest.raises(KubeletAway, match="does not know its pods"):
            await answered(claims(at))
    heard = 5.0
    with pytest.raises(KubeletAway):
        await answered(claims(STARTS_S))
    assert await answered(claims(1 + STARTS_S)) == claims(1 + STARTS_S)
    assert await answered(replace(HELD, asked_at=50)) == replace(HELD, asked_at=50)
    assert await answered(claims(51)) == claims(51), "of one that has known its pods"
    kubelet.restarted_at = 60.0
    assert await answered(claims(61)) == claims(61), "nobody had devices any more"


async def test_nor_does_it_believe_a_kubelet_that_knows_only_some_of_its_pods() -> None:
    """For a kubelet that has run for long, the API server may be away, so others have ended."""
    kubelet = FakePodResources()
    kubelet.started_at = 1.0
    expected = {("a", "pod"), ("a", "ended")}
    poller = KubeletPoller(kubelet, lambda: None, expected=expected)  # type: ignore[arg-type]
    poller.api_heard_at = lambda: 2.0
    answered = partial(answer, kubelet, poller)
    some = replace(HELD, asked_at=3)
    with pytest.raises(KubeletAway):
        await answered(some)
    poller.is_expected = lambda key: key == ("a", "pod")
    assert await answered(some) == some
    poller = KubeletPoller(kubelet, lambda: None, expected=expected)  # type: ignore[arg-type]
    poller.api_heard_at = lambda: float("-inf")
    late = replace(HELD, asked_at=1 + STARTS_S)
    assert await answer(kubelet, poller, late) == late


async def test_an_agent_that_expects_nothing_believes_a_kubelet_at_once() -> None:
    kubelet = FakePodResources()
    kubelet.started_at = 1.0
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    poller.api_heard_at = lambda: float("-inf")
    assert await answer(kubelet, poller, claims(2)) == claims(2)


async def test_when_a_kubelet_started_is_told_by_its_socket(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet = FakeKubelet(tmp_path_factory.mktemp("k"))
    socket = kubelet.podresources_dir / "kubelet.sock"
    async with AsyncExitStack() as stack:
        await kubelet.start()
        stack.push_async_callback(kubelet.stop)
        client = PodResources(socket, clock=lambda: 1000.0)
        stack.push_async_callback(client.close)
        later = socket.stat().st_ctime + 60
        monkeypatch.setattr(podresources, "time", SimpleNamespace(time=lambda: later))
        await client.list()
        assert client.started_at == pytest.approx(940, abs=0.01)
        await client.list()
        assert client.restarted_at == float("-inf")


async def test_nor_is_one_that_knows_only_some_of_its_pods() -> None:
    """A kubelet that starts knows its static pods at once, and adds all others one by one."""
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    answered = partial(answer, kubelet, poller)
    static = Claim("kube-system", "monitor-node-1", "main", "example.com/fuse", frozenset({"0"}))
    both, some = Claims((*HELD.all, static), 1), Claims((static,), 3)
    assert await answered(both) == both
    kubelet.restarted_at = 2.0
    poller.api_heard_at = lambda: 2.5
    with pytest.raises(KubeletAway, match="does not know its pods"):
        await answered(some)
    assert poller.claims == both
    poller.is_expected = lambda key: key != ("a", "pod")
    assert await answered(some) == some, "the API server has told that the other one is gone"


Answers = Callable[[Claims], Awaitable[Claims]]
ONE, TWO = (Claim("a", "pod", name, "mizar.share/x", frozenset({name})) for name in ("1", "2"))


async def which_may_forget() -> tuple[FakePodResources, KubeletPoller, Answers]:
    """A kubelet that has told of ONE and TWO, which are known also if it forgets them, the poller
    that asked it, and what that makes of the next answers."""
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    answered = partial(answer, kubelet, poller)
    poller.claims_of_forgotten = lambda pods: (ONE, TWO) if ("a", "pod") in pods else ()
    assert await answered(Claims((ONE, TWO), 1)) == Claims((ONE, TWO), 1)
    return kubelet, poller, answered


async def test_a_kubelet_may_have_forgotten_the_devices_of_some_containers_of_a_pod() -> None:
    """A kubelet that starts without its record gives new devices to those of a pod's containers
    that do not run at that moment, and none to the others."""
    kubelet, _, answered = await which_may_forget()
    again = replace(ONE, ids=frozenset({"3"}))
    kubelet.restarted_at = 2.0
    assert await answered(Claims((again,), 3)) == Claims((again, TWO), 3)
    assert await answered(Claims((again,), 4)) == Claims((again, TWO), 4)
    assert await answered(Claims((again, TWO), 5)) == Claims((again, TWO), 5)
    assert await answered(Claims((again,), 6)) == Claims((again,), 6), "they end later"


async def test_a_kubelet_is_believed_that_tells_less_of_what_it_has_forgotten() -> None:
    """That it lacks such a pod does not mean that it does not know its pods yet."""
    kubelet, _, answered = await which_may_forget()
    kubelet.restarted_at = 2.0
    for at, known in ((3, (TWO,)), (4, ())):
        assert set((await answered(Claims(known, at))).all) == {ONE, TWO}


async def test_a_container_whose_device_was_forgotten_may_be_given_another() -> None:
    """The pod's other containers keep theirs."""
    kubelet, poller, answered = await which_may_forget()
    kubelet.restarted_at = 2.0
    poller.api_heard_at = lambda: 2.5
    assert (await answered(Claims((ONE, TWO), 3))).all == (ONE, TWO)
    kubelet.restarted_at = 4.0
    poller.api_heard_at = lambda: 4.5
    with pytest.raises(KubeletAway):
        await answered(claims(5))
    assert await answered(claims(5 + STARTS_S)) == Claims((ONE, TWO), 5 + STARTS_S)
    again = replace(ONE, ids=frozenset({"3"}))
    assert await answered(Claims((again,), 50)) == Claims((again, TWO), 50)


async def test_a_late_answer_has_the_devices_that_the_kubelet_has_forgotten_too() -> None:
    """A container was started with a device of another that ran, since the answer to a later
    question had come first."""
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    answered = partial(answer, kubelet, poller)
    one, two = (Claim("a", name, "main", "mizar.share/x", frozenset({"1"})) for name in ("p", "q"))
    poller.claims_of_forgotten = lambda pods: (one,) if ("a", "p") in pods else ()
    assert await answered(Claims((one,), 1)) == Claims((one,), 1)
    kubelet.restarted_at = 2.0
    poller.api_heard_at = lambda: 2.5
    with pytest.raises(KubeletAway):
        await answered(Claims((two,), 3))
    assert await answered(Claims((two,), 5 + STARTS_S)) == Claims((two, one), 5 + STARTS_S)
    assert await answered(Claims((two,), 4 + STARTS_S)) == Claims((two, one), 4 + STARTS_S)


async def test_a_late_answer_is_no_reason_to_believe_that_nothing_was_forgotten() -> None:
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    answered = partial(answer, kubelet, poller)
    poller.claims_of_forgotten = lambda pods: HELD.all if ("a", "pod") in pods else ()
    assert await answered(HELD) == HELD
    kubelet.restarted_at = 2.0
    with pytest.raises(KubeletAway):
        await answered(claims(3))
    for at in (3 + STARTS_S, 50):
        assert await answered(claims(at)) == replace(HELD, asked_at=at)
        assert await answered(replace(HELD, asked_at=4)) == replace(HELD, asked_at=4)


@pytest.mark.parametrize("others", [(), (Claim("a", "pod", "2", "x", frozenset({"GPU-2"})),)])
async def test_what_was_forgotten_stays_known_until_the_api_server_has_told_the_pods(
    others: tuple[Claim, ...],
) -> None:
    """Also if the kubelet starts once more before. `others`: the pod's other containers."""
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    answered = partial(answer, kubelet, poller)
    poller.api_heard_at = lambda: kubelet.restarted_at + 0.5
    assert await answered(HELD) == HELD
    poller.claims_of_forgotten = lambda _: None
    for restarted_at in (2.0, 60.0):
        kubelet.restarted_at = restarted_at
        with suppress(KubeletAway):
            await answered(Claims(others, restarted_at + 1))
        complete = Claims(others, restarted_at + 1 + STARTS_S)
        assert await answered(complete) == complete
    poller.claims_of_forgotten = lambda pods: HELD.all if ("a", "pod") in pods else ()
    assert await answered(Claims(others, 99)) == Claims((*others, *HELD.all), 99)


async def test_what_a_pod_had_that_has_ended_is_no_more_missing() -> None:
    """Another pod of its name may come."""
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    answered = partial(answer, kubelet, poller)
    poller.claims_of_forgotten = lambda pods: HELD.all if ("a", "pod") in pods else ()
    assert await answered(HELD) == HELD
    kubelet.restarted_at = 2.0
    with pytest.raises(KubeletAway):
        await answered(claims(3))
    assert await answered(claims(40)) == replace(HELD, asked_at=40)
    poller.is_expected = lambda _: False
    assert await answered(claims(41)) == claims(41)
    poller.is_expected = lambda _: True
    for at in (42, 4):
        assert await answered(claims(at)) == claims(at)


async def test_it_is_logged_once_whose_devices_may_be_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also of pods that have no slot, such as those with whole cards."""
    kubelet = FakePodResources()
    poller = KubeletPoller(kubelet, lambda: None)  # type: ignore[arg-type]
    answered = partial(answer, kubelet, poller)
    assert await answered(HELD) == HELD
    kubelet.restarted_at = 2.0
    poller.api_heard_at = lambda: 2.5
    with pytest.raises(KubeletAway):
        await answered(claims(3))
    for at in (40, 41):
        assert await answered(claims(at)) == claims(at)
    assert [one["pod"] for one in logged(caplog)] == [["a/pod"]]
