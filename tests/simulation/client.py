"""KubeClient, as a process of the simulation has it: each call travels, may fail, and may take
effect although its sender was told otherwise, or is dead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol

from mizar_kube.client import Listing, WatchEvent
from mizar_kube.errors import Gone, KubeError, Unavailable
from mizar_kube.kinds import BUDGET, POD, Kind, Object, Ref, ref_of
from simulation.history import Change, HistoryApi
from simulation.matching import Selector, selector
from simulation.weather import Luck, Weather

TIMEOUT_S = 15.0
RESET_S = 0.05
BOOKMARK_S = 20.0


class Server(Protocol):
    """Who hears what the client does."""

    api: HistoryApi

    def issued(self, sender: str, verb: str, ref: Ref, body: Object) -> None:
        """A process has sent a write."""

    def arriving(self, sender: str) -> None:
        """A call is about to take effect; `sender` is empty where it died or gave the call up."""

    def told(self, sender: str, verb: str, what: str, outcome: str) -> None:
        """How it ended, for the trace."""


class SimulatedClient:
    """Has KubeClient's interface; errors are those of `mizar_kube.errors`."""

    def __init__(self, server: Server, weather: Weather, sender: str) -> None:
        self._server = server
        self._api = server.api
        self._weather = weather
        self._sender = sender
        self._dead = False

    def cut(self) -> None:
        """The process is dead: it sends nothing any more, and hears nothing."""
        self._dead = True

    async def get(self, ref: Ref, *, timeout: float | None = None) -> Object:
        """As KubeClient.get."""
        return await self._call("get", ref, lambda: self._api.get(ref), timeout)

    async def create(
        self, obj: Object, *, field_manager: str = "", timeout: float | None = None
    ) -> Object:
        """As KubeClient.create."""
        obj = json.loads(json.dumps(obj))
        return await self._write("create", ref_of(obj), obj, lambda: self._api.create(obj), timeout)

    async def replace(
        self, obj: Object, *, subresource: str = "", timeout: float | None = None
    ) -> Object:
        """As KubeClient.replace."""
        obj = json.loads(json.dumps(obj))
        return await self._write(
            "replace", ref_of(obj), obj, lambda: self._api.replace(obj), timeout
        )

    async def patch_merge(
        self, ref: Ref, patch: Object, *, subresource: str = "", timeout: float | None = None
    ) -> Object:
        """As KubeClient.patch_merge."""
        patch = json.loads(json.dumps(patch))
        return await self._write(
            "patch", ref, patch, lambda: self._api.patch_merge(ref, patch), timeout
        )

    async def apply(
        self,
        obj: Object,
        *,
        field_manager: str,
        subresource: str = "",
        timeout: float | None = None,
    ) -> Object:
        """As KubeClient.apply."""
        obj = json.loads(json.dumps(obj))
        return await self._write("apply", ref_of(obj), obj, lambda: self._api.apply(obj), timeout)

    async def delete(
        self,
        ref: Ref,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        propagation: str = "",
        timeout: float | None = None,
    ) -> Object:
        """As KubeClient.delete."""
        wanted = {"uid": uid, "resource_version": resource_version}
        return await self._write(
            "delete", ref, wanted, lambda: self._api.delete(ref, **wanted), timeout
        )

    async def evict(self, ref: Ref, *, uid: str = "", timeout: float | None = None) -> Object:
        """As KubeClient.evict."""
        return await self._write(
            "evict", ref, {"uid": uid}, lambda: self._api.evict(ref, uid=uid), timeout
        )

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = 500,
        timeout: float | None = None,
    ) -> Listing:
        """As KubeClient.list, in one page."""
        matches = selector(label_selector, field_selector)

        async def listing() -> Any:
            found = [one for one in self._api.all(kind) if matches(one)]
            if namespace:
                found = [one for one in found if one["metadata"].get("namespace") == namespace]
            return Listing(json.loads(json.dumps(found)), str(self._api.version))

        return await self._call("list", Ref(kind, "", namespace), listing, timeout)

    async def list_pages(
        self, kind: Kind, namespace: str | None = None, *, page_size: int = 500, **selectors: Any
    ) -> AsyncGenerator[Listing, None]:
        """As KubeClient.list_pages; all pages show the moment of the first one."""
        whole = await self.list(kind, namespace, **selectors)
        size = 1 + self._weather.random.randrange(8) if page_size else len(whole.items)
        version = int(whole.resource_version)

        async def page() -> Any:
            if version < self._api.compacted:
                raise Gone("the continue token is too old (simulated)", status=410)
            return whole

        for start in range(0, max(1, len(whole.items)), max(1, size)):
            if start:
                await self._call("list", Ref(kind, "", namespace), page, None)
            yield Listing(whole.items[start : start + max(1, size)], whole.resource_version)

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = 240,
    ) -> AsyncGenerator[WatchEvent, None]:
        """As KubeClient.watch. Events come late, in their order; the connection breaks."""
        matches, at = selector(label_selector, field_selector), int(resource_version)

        async def begin() -> Any:
            return list(self._api.since(kind, at))

        await self._call("watch", Ref(kind, "", namespace), begin, None)
        loop = asyncio.get_running_loop()
        breaks, ends = loop.time() + self._weather.watch_lives(), loop.time() + timeout_seconds
        while loop.time() < ends:
            pending = list(self._api.after(kind, at))
            for change in pending:
                await self._until(change.at + self._weather.watch_lags(), breaks)
                at = change.version
                if event := _event(change, matches):
                    yield event
            if pending or await self._news(kind, min(breaks, ends, loop.time() + BOOKMARK_S)):
                continue
            if loop.time() >= breaks or self._is_away():
                raise Unavailable("the connection broke (simulated)")
            at = self._api.version
            yield _bookmark(kind, at)

    async def request(
        self, method: str, path: str, *, timeout: float | None = None, **_: Any
    ) -> Object:
        """Not needed by what is simulated."""
        raise NotImplementedError(f"{method} {path}")

    # How calls travel.

    async def _write(
        self,
        verb: str,
        ref: Ref,
        body: Object,
        do: Callable[[], Awaitable[Any]],
        timeout: float | None,
    ) -> Any:
        if not self._dead:
            self._server.issued(self._sender, verb, ref, body)
        return await self._call(verb, ref, do, timeout, writes=True)

    async def _call(
        self,
        verb: str,
        ref: Ref,
        do: Callable[[], Awaitable[Any]],
        timeout: float | None,
        *,
        writes: bool = False,
    ) -> Any:
        if self._dead:
            raise asyncio.CancelledError
        strays = writes and ref.kind != BUDGET and (verb, ref.kind) != ("create", POD)
        loop, luck = asyncio.get_running_loop(), self._weather.luck(writes, strays)
        answer: asyncio.Future[Any] = loop.create_future()
        timer = loop.call_later(luck.there, self._arrive, verb, ref, do, luck, answer)
        outlived = False
        try:
            async with asyncio.timeout(timeout or TIMEOUT_S):
                return await answer
        except TimeoutError:
            outlived = luck.outlives
            raise Unavailable(f"{verb} {ref}: timeout (simulated)") from None
        except asyncio.CancelledError:
            outlived = luck.outlives
            raise
        finally:
            if not outlived:
                timer.cancel()

    def _arrive(
        self,
        verb: str,
        ref: Ref,
        do: Callable[[], Awaitable[Any]],
        luck: Luck,
        answer: asyncio.Future[Any],
    ) -> None:
        # One that was given up is nobody's any more, as one of a dead process.
        owned = not (self._dead or answer.done())
        outcome = self._outcome(verb, ref, do, luck, owned)
        said = type(outcome).__name__ if isinstance(outcome, KubeError) else "ok"
        self._server.told(
            self._sender, verb, str(ref), said + (" lost" if luck.answer_lost else "")
        )
        if luck.answer_lost:
            outcome = Unavailable(f"{verb} {ref}: connection reset (simulated)")
        asyncio.get_running_loop().call_later(luck.back, _settle, answer, outcome)

    def _outcome(
        self, verb: str, ref: Ref, do: Callable[[], Awaitable[Any]], luck: Luck, owned: bool
    ) -> Any:
        if luck.request_lost or self._is_away():
            return Unavailable(f"{verb} {ref}: connection refused (simulated)")
        if luck.refusal is not None:
            return luck.refusal()
        self._server.arriving(self._sender if owned else "")
        try:
            return _at_once(do())
        except KubeError as error:
            return error

    def _is_away(self) -> bool:
        return asyncio.get_running_loop().time() < self._weather.away_until

    async def _until(self, time: float, breaks: float) -> None:
        """Wait until then. Raises Unavailable when the connection breaks first."""
        loop = asyncio.get_running_loop()
        if (left := min(time, breaks) - loop.time()) > 0:
            await asyncio.sleep(left)
        if time > breaks:
            raise Unavailable("the connection broke (simulated)")

    async def _news(self, kind: Kind, until: float) -> bool:
        """Wait until something of the kind changes, or until then; whether it did."""
        try:
            async with asyncio.timeout_at(until):
                await self._api.changed(kind.plural)
                return True
        except TimeoutError:
            return False


def _at_once(job: Awaitable[Any]) -> Any:
    """What a coroutine comes to that never waits."""
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


def _event(change: Change, matches: Selector) -> WatchEvent | None:
    type = change.told_as(matches)
    return WatchEvent(type, json.loads(change.text)) if type else None


def _bookmark(kind: Kind, version: int) -> WatchEvent:
    meta = {"resourceVersion": str(version)}
    return WatchEvent(
        "BOOKMARK", {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta}
    )
