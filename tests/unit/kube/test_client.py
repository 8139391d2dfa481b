"""The client: what it sends, and which error each refusal becomes."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client import Configuration
from yarl import URL

from mizar_kube import api_calls
from mizar_kube import client as client_module
from mizar_kube.client import KubeClient
from mizar_kube.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    NotServed,
    Unauthorized,
    Unavailable,
    error_from_status,
)
from mizar_kube.kinds import GPU_POOL, NODE, POD, SHADOW_POD, Ref
from unit.kube.fake_api import (
    GONE_EVENT,
    Answer,
    Asked,
    FakeApi,
    Stream,
    bookmark,
    event,
    listing,
    pod,
    serving,
    status,
)

REF = Ref(POD, "p", "ns")


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (400, "BadRequest", BadRequest),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (404, "", NotServed),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (418, "", KubeError),
    ],
)
async def test_refusals_are_typed(code: int, reason: str, error: type[KubeError]) -> None:
    api = FakeApi(others=lambda asked: Answer(status(code, reason, "no, since"), code))
    async with serving(api) as client:
        with pytest.raises(error, match=r"GET /api/v1/namespaces/ns/pods/p: no, since") as caught:
            await client.get(REF)
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.reason) == (code, reason)


async def test_says_how_long_to_wait() -> None:
    api = FakeApi(others=lambda asked: Answer(status(429, ""), 429, {"Retry-After": "7"}))
    async with serving(api) as client:
        with pytest.raises(Unavailable) as caught:
            await client.get(REF)
    assert caught.value.retry_after == 7


@pytest.mark.parametrize("details", ["x", [{"a": 1}], [], None, {"causes": ["x"]}, {"causes": "x"}])
def test_the_details_of_a_proxys_answer_may_be_anything(details: Any) -> None:
    error = error_from_status(503, {"message": "no upstream", "details": details}, "GET pods")
    assert isinstance(error, Unavailable) and not error.causes


async def test_error_pages_that_are_no_status_are_errors_too() -> None:
    api = FakeApi(others=lambda asked: Answer("a proxy's page", 502))
    async with serving(api) as client:
        with pytest.raises(Unavailable, match="HTTP 502"):
            await client.get(REF)


async def test_nobody_listens() -> None:
    async with KubeClient(Configuration("http://127.0.0.1:1")) as client:
        with pytest.raises(Unavailable, match="no answer"):
            await client.get(REF)


async def test_every_call_times_out() -> None:
    api = FakeApi(others=lambda asked: Stream())
    async with serving(api) as client:
        with pytest.raises(Unavailable, match="timed out"):
            await client.get(REF, timeout=0.05)


async def test_what_every_call_says_of_itself() -> None:
    api = FakeApi()
    async with serving(api) as client:
        await client.get(REF)
    headers = api.asked[0].headers
    assert headers["Accept-Encoding"] == "identity"
    assert headers["Accept"] == "application/json"
    assert headers["User-Agent"].startswith("mizar/")


async def test_verbs() -> None:
    api = FakeApi()
    shadow = {
        "apiVersion": "mizar.share/v1alpha1",
        "kind": "ShadowPod",
        "metadata": {"name": "s", "namespace": "ns"},
    }
    async with serving(api) as client:
        await client.create(pod("p", 1), field_manager="m")
        await client.replace(shadow, subresource="status")
        await client.patch_merge(Ref(NODE, "n"), {"a": 1}, subresource="status")
        await client.patch_json(Ref(GPU_POOL, "g"), [{"op": "test", "path": "/a", "value": 1}])
        await client.apply(shadow, field_manager="m", subresource="status")
        await client.delete(Ref(SHADOW_POD, "s", "ns"), uid="u", grace_seconds=0)
    sent = [(one.method, one.path, one.query) for one in api.asked]
    crds = "/apis/mizar.share/v1alpha1"
    assert sent == [
        ("POST", "/api/v1/namespaces/ns/pods", {"fieldManager": "m"}),
        ("PUT", f"{crds}/namespaces/ns/shadowpods/s/status", {}),
        ("PATCH", "/api/v1/nodes/n/status", {}),
        ("PATCH", f"{crds}/gpupools/g", {}),
        (
            "PATCH",
            f"{crds}/namespaces/ns/shadowpods/s/status",
            {"fieldManager": "m", "force": "true"},
        ),
        ("DELETE", f"{crds}/namespaces/ns/shadowpods/s", {}),
    ]
    assert [one.headers["Content-Type"] for one in api.asked if one.method == "PATCH"] == [
        "application/merge-patch+json",
        "application/json-patch+json",
        "application/apply-patch+yaml",
    ]
    assert api.asked[-1].body == {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 0}
    assert {one.headers["Authorization"] for one in api.asked} == {"Bearer t"}


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {}),
        ({"uid": "u"}, {"preconditions": {"uid": "u"}}),
        (
            {"uid": "u", "grace_seconds": 0},
            {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 0},
        ),
    ],
)
async def test_an_eviction_is_asked_for_with_its_options(
    given: dict[str, Any], options: dict[str, Any]
) -> None:
    api = FakeApi()
    async with serving(api) as client:
        await client.evict(Ref(POD, "p", "ns"), **given)
    (asked,) = api.asked
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/ns/pods/p/eviction")
    assert asked.body["metadata"] == {"name": "p", "namespace": "ns"}
    assert asked.body["deleteOptions"] == options


async def test_lists_all_pages_and_names_the_items() -> None:
    api = FakeApi()
    api.lists.extend([listing(7, pod("a", 1), more="next"), listing(7, pod("b", 2))])
    async with serving(api) as client:
        found = await client.list(POD, label_selector="x=y", field_selector="spec.nodeName=n")
    assert [one["metadata"]["name"] for one in found.items] == ["a", "b"]
    assert {(one["apiVersion"], one["kind"]) for one in found.items} == {("v1", "Pod")}
    assert found.resource_version == "7"
    wanted = {"labelSelector": "x=y", "fieldSelector": "spec.nodeName=n", "limit": "500"}
    assert [one.query for one in api.asked] == [wanted, wanted | {"continue": "next"}]


async def test_a_read_that_may_be_of_a_moment_ago_asks_for_any_version() -> None:
    api = FakeApi(others=lambda asked: Answer({"metadata": {}}))
    async with serving(api) as client:
        await client.get(Ref(POD, "a", "ns"))
        await client.get(Ref(POD, "a", "ns"), cached=True)
    assert [asked.query for asked in api.asked] == [{}, {"resourceVersion": "0"}]


async def test_of_large_objects_it_asks_for_fewer_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "PAGE_BYTES", 4000)

    def answer(asked: Asked) -> Answer:
        start, many = int(asked.query.get("continue") or 0), int(asked.query["limit"]) or 40
        # The last one alone is larger than a page may be.
        sizes = [900 if at < 39 else 5000 for at in range(start, min(start + many, 40))]
        items = [pod(f"p{start + at}", 1, text="x" * size) for at, size in enumerate(sizes)]
        return listing(7, *items, more=str(start + many) if start + many < 40 else "")

    for page_size in (500, 0):
        api = FakeApi(others=answer)
        async with serving(api) as client:
            pages = [one async for one in client.list_pages(POD, page_size=page_size)]
        names = [one["metadata"]["name"] for page in pages for one in page.items]
        assert names == [f"p{at}" for at in range(40)]
        limits = [one.query["limit"] for one in api.asked]
        assert limits[:6] == [str(page_size), "125", "31", "7", "1", "2"]
        assert max(len(page.items) for page in pages) > 1


async def test_watch_gives_whole_lines_only() -> None:
    two = b'{"type":"MODIFIED","object":{"metadata":{"name":"b"}}}\n{"type":"DEL'
    steps = (event("ADDED", pod("a", 2)), two)
    api = FakeApi()
    api.watches.append(Stream(steps, end="cut"))
    seen = []
    async with serving(api) as client:
        with pytest.raises(Unavailable, match="no answer"):
            async for one in client.watch(POD, "ns", resource_version="1"):
                seen.append((one.type, one.object["metadata"]["name"]))
    assert seen == [("ADDED", "a"), ("MODIFIED", "b")]
    assert api.asked[0].query["resourceVersion"] == "1"
    assert api.asked[0].query["allowWatchBookmarks"] == "true"


async def test_watch_ends_quietly_when_the_server_ends_it() -> None:
    api = FakeApi()
    api.watches.append(Stream((bookmark(9),), end="close"))
    async with serving(api) as client:
        seen = [one async for one in client.watch(POD, resource_version="1")]
    assert [one.type for one in seen] == ["BOOKMARK"]


async def test_watch_from_a_forgotten_version() -> None:
    api = FakeApi()
    api.watches.extend([Stream((GONE_EVENT,)), Answer(status(410, "Gone"), 410)])
    async with serving(api) as client:
        for _ in range(2):
            with pytest.raises(Gone):
                await anext(client.watch(POD, resource_version="1"))


async def test_a_quiet_watch_ends_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "WATCH_SLACK_S", 0.05)
    api = FakeApi()
    async with serving(api) as client:
        with pytest.raises(Unavailable, match="timed out"):
            await anext(client.watch(POD, resource_version="1", timeout_seconds=0))


async def test_a_watch_without_a_bookmark_ends_long_before_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "WATCH_QUIET_S", 0.05)
    api = FakeApi()
    async with serving(api) as client:
        with pytest.raises(Unavailable, match="timed out"):
            await anext(client.watch(POD, resource_version="1", timeout_seconds=3600))


async def test_a_watch_that_never_begins_ends_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_calls, "HEAD_TIMEOUT_S", 0.05)

    ended = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with KubeClient(Configuration(f"http://127.0.0.1:{port}")) as client:
            with pytest.raises(Unavailable, match="timed out"):
                await anext(client.watch(POD, resource_version="1"))
        await ended.wait()


def probed(port: int) -> list[bool]:
    """For each connection to a local port, whether its kernel probes a silent peer (proc(5))."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established, keepalive = "01", "02"
    to_port = (row for row in rows if row[2] == f"0100007F:{port:04X}" and row[3] == established)
    # The kernel may list a connection twice while other programs open and close theirs.
    return [row[5].startswith(keepalive) for row in {row[1]: row for row in to_port}.values()]


async def test_a_watch_notices_that_its_peer_is_gone() -> None:
    api = FakeApi()
    api.watches.append(Stream((bookmark(9),)))
    async with serving(api) as client:
        port = URL(client.configuration.host).port
        async with aclosing(client.watch(POD, resource_version="1")) as events:
            await anext(events)
            assert probed(port) == [True]


async def test_watch_line_that_is_no_json() -> None:
    api = FakeApi()
    api.watches.append(Stream((b"not json\n",)))
    async with serving(api) as client:
        with pytest.raises(Unavailable, match="did not send JSON"):
            await anext(client.watch(POD, resource_version="1"))
