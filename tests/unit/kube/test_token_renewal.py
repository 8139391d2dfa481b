"""Tokens are renewed when they end and when the API server refuses them, and only then."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes_asyncio.client import Configuration

from mizar_kube import credentials
from mizar_kube.client import KubeClient
from mizar_kube.errors import ConfigError, Unauthorized, Unavailable
from mizar_kube.kinds import NODE, POD, Ref
from unit.kube import kubeconfigs
from unit.kube.fake_api import Answer, Asked, FakeApi, Stream, bookmark, listening, pod, status
from unit.kube.kubeconfigs import Plugin, id_token

REF = Ref(NODE, "n")
PAST, FUTURE = "2000-01-01T00:00:00Z", "2200-01-01T00:00:00Z"


def takes(token: str) -> FakeApi:
    """An API server that takes one token only."""

    def reply(asked: Asked) -> Answer:
        known = asked.headers.get("Authorization") == f"Bearer {token}"
        return Answer({}) if known else Answer(status(401, "Unauthorized"), 401)

    return FakeApi(others=reply)


async def test_a_token_file_is_read_again_when_its_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    api = takes("new")
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, {"tokenFile": "token"})
        async with await KubeClient.connect(path) as client:
            with pytest.raises(Unauthorized):
                await client.get(REF)
            (tmp_path / "token").write_text("new")
            await client.get(REF)
            await client.get(REF)
    assert len(api.asked) == 2 + 2 + 1


async def test_a_refused_watch_asks_again_too(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    api = FakeApi()
    api.watches.extend([Answer(status(401, ""), 401), Stream((bookmark(9),), end="close")])
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, {"tokenFile": "token"})
        async with await KubeClient.connect(path) as client:
            (tmp_path / "token").write_text("new")
            seen = [one.type async for one in client.watch(POD, resource_version="1")]
    assert seen == ["BOOKMARK"]
    assert api.asked[-1].headers["Authorization"] == "Bearer new"


async def test_an_id_token_that_kubectl_has_renewed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(token: str) -> Path:
        user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
        return kubeconfigs.write(tmp_path, url, user)

    monkeypatch.setattr(credentials, "RENEW_EVERY_S", 0)
    old, new, api = id_token(1 << 33), id_token(1 << 34), FakeApi()
    async with listening(api) as url, await KubeClient.connect(write(old)) as client:
        await client.get(REF)
        write(new)
        await client.get(REF)
    assert [one.headers["Authorization"] for one in api.asked] == [f"Bearer {old}", f"Bearer {new}"]


async def test_a_refused_write_is_sent_again_whole(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    api = takes("new")
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, {"tokenFile": "token"})
        async with await KubeClient.connect(path) as client:
            (tmp_path / "token").write_text("new")
            await client.create(pod("p", 1))
    assert [one.body for one in api.asked] == [pod("p", 1)] * 2


async def test_a_client_without_a_token_does_not_repeat_a_refused_request(tmp_path: Path) -> None:
    api = takes("any")
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, {})
        async with await KubeClient.connect(path) as client:
            with pytest.raises(Unauthorized):
                await client.get(REF)
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    ("ends", "asked"),
    [
        ({"expirationTimestamp": PAST}, 3),
        ({"expirationTimestamp": FUTURE}, 1),
        ({}, 1),
    ],
)
async def test_a_plugin_is_asked_again_when_its_token_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: dict[str, str], asked: int
) -> None:
    monkeypatch.setattr(credentials, "RENEW_EVERY_S", 0)
    plugin, api = Plugin(tmp_path, token="first", **ends), FakeApi()
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, plugin.user)
        async with await KubeClient.connect(path) as client:
            plugin.answers(token="second", **ends)
            await client.get(REF)
            await client.get(REF)
    assert plugin.asked == asked
    last = "second" if asked > 1 else "first"
    assert api.asked[-1].headers["Authorization"] == f"Bearer {last}"


async def test_a_token_is_loaded_once_a_minute() -> None:
    now, loads = 0.0, []

    class Source:
        async def load(self, into: Configuration, refused: bool) -> None:
            loads.append(now)

    renewal, configuration = credentials.Renewal(Source(), clock=lambda: now), Configuration()
    for moment in (0.0, 59.0, 61.0, 62.0, 120.0, 122.0):
        now = moment
        await renewal(configuration)
    assert loads == [61.0, 122.0]


async def test_calls_that_are_refused_at_once_ask_a_plugin_once(tmp_path: Path) -> None:
    plugin, api = Plugin(tmp_path, token="old"), takes("new")
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, plugin.user)
        async with await KubeClient.connect(path) as client:
            plugin.answers(token="new")
            await asyncio.gather(*(client.get(REF) for _ in range(10)))
    assert plugin.asked == 2


async def test_a_late_refusal_of_a_token_that_has_been_renewed(tmp_path: Path) -> None:
    """The call is made again with the new token, which is good."""
    renewed = asyncio.Event()

    class Late(FakeApi):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            if request.path.endswith("late"):
                await renewed.wait()
            return await super().handle(request)

    plugin, api = Plugin(tmp_path, token="old"), Late(others=takes("new").others)
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, plugin.user)
        async with await KubeClient.connect(path) as client:
            plugin.answers(token="new")
            late = asyncio.create_task(client.get(Ref(NODE, "late")))
            await client.get(REF)
            renewed.set()
            await late
    assert plugin.asked == 2


async def test_a_slow_plugin_does_not_hold_up_calls_beyond_their_time(tmp_path: Path) -> None:
    """The plugin goes on meanwhile, and its answer is used when it comes."""
    plugin, api = Plugin(tmp_path, token="old"), takes("new")
    gate = tmp_path / "gate"
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, plugin.user)
        async with await KubeClient.connect(path) as client:
            plugin.answers(token="new")
            plugin.first(f'while [ ! -e "{gate}" ]; do sleep 0.01; done')
            for _ in range(2):
                with pytest.raises(Unavailable, match="timed out"):
                    await client.get(REF, timeout=0.2)
            gate.touch()
            await client.get(REF)
    assert plugin.asked == 2


async def test_a_plugin_that_fails_later_leaves_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(credentials, "RENEW_EVERY_S", 0)
    plugin, api = Plugin(tmp_path, token="abc", expirationTimestamp=PAST), FakeApi()
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, plugin.user)
        async with await KubeClient.connect(path) as client:
            plugin.first("echo no network >&2; exit 1")
            await client.get(REF)
    assert api.asked[-1].headers["Authorization"] == "Bearer abc"
    assert "the token cannot be renewed: keeping the last one" in caplog.text
    assert "no network" in caplog.text


async def test_a_plugin_that_failed_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "RENEW_EVERY_S", 0)
    plugin, api = Plugin(tmp_path, token="old", expirationTimestamp=PAST), takes("new")
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, plugin.user)
        async with await KubeClient.connect(path) as client:
            plugin.first("exit 1")
            with pytest.raises(Unauthorized):
                await client.get(REF)
            plugin.first("")
            plugin.answers(token="new", expirationTimestamp=PAST)
            await client.get(REF)
    assert len(api.asked) == 2 + 1


async def test_a_plugin_that_fails_at_first(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    path = kubeconfigs.write(tmp_path, "http://api", plugin.user)
    plugin.first("echo please log in >&2; exit 1")
    with pytest.raises(ConfigError, match="please log in"):
        await KubeClient.connect(path)
    absent = {"command": "/absent", "apiVersion": kubeconfigs.API_VERSION}
    with pytest.raises(ConfigError, match="No such file or directory: '/absent'"):
        await KubeClient.connect(kubeconfigs.write(tmp_path, "http://api", {"exec": absent}))


async def test_credentials_that_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    class Source:
        async def load(self, into: Configuration, refused: bool) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(credentials, "_source", lambda kubeconfig: Source())
    monkeypatch.setattr(credentials, "LOAD_TIMEOUT_S", 0.01)
    with pytest.raises(ConfigError, match="no credentials after"):
        await KubeClient.connect()


async def test_a_plugin_hears_what_the_kubeconfig_says(tmp_path: Path) -> None:
    plugin, api = Plugin(tmp_path, token="abc"), FakeApi()
    plugin.first(f'echo "$NAME $1 $KUBERNETES_EXEC_INFO" >"{tmp_path}/heard"')
    user = plugin.user
    user["exec"] |= {"args": ["x"], "env": [{"name": "NAME", "value": "me"}]}
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, user)
        async with await KubeClient.connect(path) as client:
            await client.get(REF)
    heard = (tmp_path / "heard").read_text()
    assert heard.startswith("me x {")
    assert '"kind": "ExecCredential"' in heard
