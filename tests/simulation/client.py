"""A stand-in for KubeClient in a simulated process, over a network with faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from mizar_core.names import DRA_DRIVER
from mizar_kube.client import Listing, WatchEvent
from mizar_kube.errors import Gone, Interrupted, NotFound
from mizar_kube.kinds import DEVICE_CLASS, RESOURCE_SLICE, Kind, Object, Ref, ref_of
from mizar_operator.offered_dra_cards import SERVED_AT
from simulation.fault_injection import FaultInjection
from simulation.history import Change
from simulation.network import Call, Network, Server
from simulation.selectors import Selector, selector

BOOKMARK_S = 20.0
OVERTAKEN = "an event after a later one of another kind"
T = TypeVar("T")


class SimulatedClient:
    """Has KubeClient's interface; errors are those of `mizar_kube.errors`."""

    def __init__(self, server: Server, faults: FaultInjection, sender: str) -> None:
        self._api = server.api
        self._faults = faults
        self._network = Network(server, faults, sender)
        self._server, self._sender = server, sender
        self._newest, self._overtaken = 0, False

    def cut(self) -> None:
        """The process is dead: it sends nothing any more, and hears nothing."""
        self._network.dead = True

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

    async def patch_json(
        self, ref: Ref, patch: list[Object], *, subresource: str = "", timeout: float | None = None
    ) -> Object:
        """As KubeClient.patch_json."""
        patch = json.loads(json.dumps(patch))
        body = {"patch": patch}
        return await self._write(
            "patch", ref, body, lambda: self._api.patch_json(ref, patch), timeout
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
        return await self._write(
            "apply",
            ref_of(obj),
            obj,
            lambda: self._api.apply(obj, field_manager=field_manager),
            timeout,
        )

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

    async def evict(
        self,
        ref: Ref,
        *,
        uid: str = "",
        grace_seconds: int | None = None,
        timeout: float | None = None,
    ) -> Object:
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

        async def listing() -> Listing:
            found = [one for one in self._api.all(kind) if matches(one)]
            if namespace:
                found = [one for one in found if one["metadata"].get("namespace") == namespace]
            return Listing(json.loads(json.dumps(found)), str(self._api.version))

        return await self._call("list", Ref(kind, "", namespace), listing, timeout)

    async def list_pages(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        page_size: int = 500,
        cached: bool = False,
        **selectors: Any,
    ) -> AsyncGenerator[Listing, None]:
        """As KubeClient.list_pages; all pages show the moment of the first one."""
        whole = await self.list(kind, namespace, **selectors)
        size = 1 + self._faults.random.randrange(8) if page_size else len(whole.items)
        version = int(whole.resource_version)

        async def page() -> Listing:
            if version < self._api.compacted:
                raise Gone("the continue token is too old (simulated)", status=410)
            return whole

        for start in range(0, max(1, len(whole.items)), max(1, size)):
            if start:
                await self._call("list", Ref(kind, "", namespace), page)
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

        async def begin() -> list[Change]:
            return list(self._api.since(kind, at))

        await self._call("watch", Ref(kind, "", namespace), begin)
        loop = asyncio.get_running_loop()
        breaks, ends = loop.time() + self._faults.watch_lives(), loop.time() + timeout_seconds
        marked = loop.time()
        while loop.time() < ends:
            pending = list(self._api.after(kind, at))
            for change in pending:
                await self._until(change.at + self._faults.watch_lags(), breaks)
                at = change.version
                if event := _event(change, matches):
                    self._note_order(kind, change)
                    yield event
            # Bookmarks come also while much changes that the selector leaves out.
            if pending and loop.time() >= marked + BOOKMARK_S:
                marked = loop.time()
                yield _bookmark(kind, at)
            if pending or await self._news(kind, min(breaks, ends, marked + BOOKMARK_S)):
                continue
            if loop.time() >= breaks or self._network.is_away():
                raise Interrupted("the connection broke (simulated)")
            at, marked = self._api.version, loop.time()
            yield _bookmark(kind, at)

    async def request(
        self, method: str, path: str, *, timeout: float | None = None, **_: Any
    ) -> Object:
        """Whether the kinds of DRA are served; nothing else is needed by what is simulated."""
        assert (method, path) == ("GET", SERVED_AT)

        async def served() -> Object:
            if self._api.find(DEVICE_CLASS, DRA_DRIVER) is None:
                raise NotFound("the server could not find the requested resource (simulated)")
            return {"resources": [{"name": one.plural} for one in (RESOURCE_SLICE, DEVICE_CLASS)]}

        return await self._call("get", Ref(DEVICE_CLASS, ""), served, timeout)

    def _note_order(self, kind: Kind, change: Change) -> None:
        """Tell when an event comes after a later one of another kind, for the first time."""
        if change.version < self._newest and not self._overtaken:
            self._overtaken = True
            self._server.told(self._sender, "watch", kind.plural, OVERTAKEN)
        self._newest = max(self._newest, change.version)

    async def _write(
        self,
        verb: str,
        ref: Ref,
        body: Object,
        do: Callable[[], Awaitable[Object]],
        timeout: float | None,
    ) -> Object:
        answer: Object = await self._network.write(Call(verb, ref, do, writes=True), body, timeout)
        return answer

    async def _call(
        self,
        verb: str,
        ref: Ref,
        do: Callable[[], Awaitable[T]],
        timeout: float | None = None,
    ) -> T:
        answer: T = await self._network.call(Call(verb, ref, do), timeout)
        return answer

    async def _until(self, time: float, breaks: float) -> None:
        """Wait until then. Raises Interrupted when the connection breaks first."""
        loop = asyncio.get_running_loop()
        if (left := min(time, breaks) - loop.time()) > 0:
            await asyncio.sleep(left)
        if time > breaks:
            raise Interrupted("the connection broke (simulated)")

    async def _news(self, kind: Kind, until: float) -> bool:
        """Wait until something of the kind changes, or until then; whether it did."""
        try:
            async with asyncio.timeout_at(until):
                await self._api.changed(kind.plural)
                return True
        except TimeoutError:
            return False


def _event(change: Change, matches: Selector) -> WatchEvent | None:
    type = change.told_as(matches)
    return WatchEvent(type, json.loads(change.text)) if type else None


def _bookmark(kind: Kind, version: int) -> WatchEvent:
    meta = {"resourceVersion": str(version)}
    return WatchEvent(
        "BOOKMARK", {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta}
    )
