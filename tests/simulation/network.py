"""How the calls of one process travel to the API server and back: late, refused, lost, or arriving
although the sender was told otherwise, or is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mizar_kube.errors import KubeError, Unavailable
from mizar_kube.kinds import BUDGET, POD, Object, Ref
from simulation.fault_injection import CallFate, FaultInjection
from simulation.history import HistoryApi

TIMEOUT_S = 15.0


class Server(Protocol):
    """The API server as the network sees it."""

    api: HistoryApi

    def issued(self, sender: str, verb: str, ref: Ref, body: Object) -> None:
        """A process has sent a write."""

    def arriving(self, sender: str) -> None:
        """A call is about to take effect; `sender` is empty where it died or gave the call up."""

    def told(self, sender: str, verb: str, what: str, outcome: str) -> None:
        """How it ended, for the trace."""


@dataclass(frozen=True)
class Call:
    """A request to the API server; `do` executes it there, at once."""

    verb: str
    ref: Ref
    do: Callable[[], Awaitable[Any]]
    writes: bool = False

    def __str__(self) -> str:
        return f"{self.verb} {self.ref}"

    @property
    def strays(self) -> bool:
        """Whether it may be stuck somewhere for long: see `fault_injection.STRAYS_S`."""
        makes_pod = (self.verb, self.ref.kind) == ("create", POD)
        return self.writes and not self._is_punctual and not makes_pod

    def outlives(self, fate: CallFate) -> bool:
        """Whether it arrives although its sender has given it up."""
        return fate.outlives and not self._is_punctual

    @property
    def _is_punctual(self) -> bool:
        return self.ref.kind == BUDGET


class Network:
    """Between the process `sender` and the server."""

    def __init__(self, server: Server, faults: FaultInjection, sender: str) -> None:
        self.dead = False
        """Whether the process is: it sends nothing any more, and hears nothing."""
        self._server = server
        self._faults = faults
        self._sender = sender

    async def write(self, call: Call, body: Object, timeout: float | None) -> Any:
        """As `call`, for what changes something; `body` is what is sent."""
        if not self.dead:
            self._server.issued(self._sender, call.verb, call.ref, body)
        return await self.call(call, timeout)

    async def call(self, call: Call, timeout: float | None = None) -> Any:
        """The answer. Raises what KubeClient raises."""
        if self.dead:
            raise asyncio.CancelledError
        loop, fate = (
            asyncio.get_running_loop(),
            self._faults.next_call(call.writes, call.strays),
        )
        answer: asyncio.Future[Any] = loop.create_future()
        timer = loop.call_later(fate.there, self._arrive, call, fate, answer)
        try:
            async with asyncio.timeout(timeout or TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise Unavailable(f"{call}: timeout (simulated)") from None
        finally:
            if not call.outlives(fate):
                timer.cancel()

    def is_away(self) -> bool:
        """Whether the API server is."""
        return asyncio.get_running_loop().time() < self._faults.away_until

    def _arrive(self, call: Call, fate: CallFate, answer: asyncio.Future[Any]) -> None:
        # One that was given up is nobody's any more, as one of a dead process.
        owned = not (self.dead or answer.done())
        outcome = self._outcome(call, fate, self._sender if owned else "")
        said = _named(outcome) if isinstance(outcome, KubeError) else "ok"
        lost = " lost" if fate.answer_lost else ""
        self._server.told(self._sender, call.verb, str(call.ref), said + lost)
        if fate.answer_lost:
            outcome = Unavailable(f"{call}: connection reset (simulated)")
        asyncio.get_running_loop().call_later(fate.back, _settle, answer, outcome)

    def _outcome(self, call: Call, fate: CallFate, sender: str) -> Any:
        if fate.request_lost or self.is_away():
            return Unavailable(f"{call}: connection refused (simulated)")
        if fate.refusal is not None:
            return fate.refusal()
        self._server.arriving(sender)
        try:
            return _at_once(call.do())
        except KubeError as error:
            return error


def _named(error: KubeError) -> str:
    """An error in the trace: with the status where the server gave one."""
    return " ".join(map(str, filter(None, (type(error).__name__, error.status))))


def _at_once(job: Awaitable[Any]) -> Any:
    """The result of a coroutine that never waits."""
    step = job.__await__()
    try:
        next(step)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the API server's memory waited")


def _settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, KubeError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
