"""An API server that answers as a test tells it to, over real HTTP."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from mizar_kube.client import KubeClient
from mizar_kube.kinds import Object
from support.api_configuration import plain
from support.waiting import PATIENCE_S


@dataclass(frozen=True)
class Asked:
    """One request as the server saw it."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """A watch: events and raw bytes in turn, then `end`: "close", "cut" (no proper end), "hang"."""

    steps: tuple[Object | bytes, ...] = ()
    end: str = "hang"


Reply = Answer | Stream
Script = Callable[[Asked], Reply]


@dataclass
class FakeApi:
    """Replies to lists and watches from two queues, to anything else from `others`."""

    lists: deque[Reply] = field(default_factory=deque)
    watches: deque[Reply] = field(default_factory=deque)
    others: Script = lambda asked: Answer({})
    asked: list[Asked] = field(default_factory=list)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        asked = Asked(
            request.method,
            request.path,
            dict(request.query),
            json.loads(text) if text else None,
            dict(request.headers),
        )
        self.asked.append(asked)
        reply = self._reply(asked)
        if isinstance(reply, Answer):
            return web.json_response(reply.body, status=reply.status, headers=reply.headers)
        return await self._stream(request, reply)

    def _reply(self, asked: Asked) -> Reply:
        if asked.query.get("watch") == "true":
            return self.watches.popleft() if self.watches else Stream()
        if asked.method == "GET" and self.lists:
            return self.lists.popleft()
        return self.others(asked)

    async def _stream(self, request: web.Request, stream: Stream) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for step in stream.steps:
            data = step if isinstance(step, bytes) else json.dumps(step).encode() + b"\n"
            await response.write(data)
        if stream.end == "hang":
            await self.closing.wait()
        if stream.end == "cut" and request.transport is not None:
            request.transport.abort()
        return response

    def watches_asked(self) -> list[dict[str, str]]:
        """The queries of all watches so far."""
        return [one.query for one in self.asked if one.query.get("watch") == "true"]


@asynccontextmanager
async def listening(
    api: FakeApi, tls: SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[URL]:
    """The URL of the fake."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    server = TestServer(app, host=host)
    await server.start_server(ssl=tls)
    try:
        yield server.make_url("")
    finally:
        api.closing.set()
        await server.close()


@asynccontextmanager
async def serving(api: FakeApi) -> AsyncIterator[KubeClient]:
    """A client that talks to the fake."""
    async with listening(api) as url, KubeClient(plain(url, "t"), timeout=PATIENCE_S) as client:
        yield client


def pod(name: str, version: int, uid: str = "", **labels: str) -> Object:
    """A pod as small as can be."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels,
        },
    }


def listing(version: int, *items: Object, more: str = "") -> Answer:
    """A page of a list; `more` is the token of the next page."""
    meta = {"resourceVersion": str(version)} | ({"continue": more} if more else {})
    bare = [{key: item[key] for key in item if key not in ("apiVersion", "kind")} for item in items]
    return Answer({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": bare})


def event(kind: str, obj: Object) -> Object:
    """A watch event."""
    return {"type": kind, "object": obj}


def bookmark(version: int) -> Object:
    """A BOOKMARK."""
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def status(code: int, reason: str, message: str = "because") -> Object:
    """A Status object, as errors carry it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


GONE_EVENT = event("ERROR", status(410, "Expired", "too old resource version"))
