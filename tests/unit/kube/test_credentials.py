"""Where the client finds its API server, and what kubeconfigs and service accounts say of it."""

import asyncio
import subprocess
import threading
from pathlib import Path
from ssl import SSLContext
from typing import Any

import pytest
from kubernetes_asyncio.client import Configuration

from mizar_kube import credentials
from mizar_kube.client import KubeClient
from mizar_kube.errors import ConfigError, Unavailable
from mizar_kube.kinds import NODE, Ref
from support.waiting import PATIENCE_S, until
from unit.kube import kubeconfigs
from unit.kube.conftest import Authority
from unit.kube.fake_api import FakeApi, listening
from unit.kube.kubeconfigs import Plugin, coded, id_token

NODE_REF = Ref(NODE, "n")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on the machine that runs the tests names a cluster."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path / "account")


async def authorization(kubeconfig: Path | str | None, api: FakeApi) -> str | None:
    """The header that an API server sees."""
    async with await KubeClient.connect(kubeconfig) as client:
        await client.get(NODE_REF)
    return api.asked[-1].headers.get("Authorization")


async def test_a_token_and_an_authority_in_the_file(
    tmp_path: Path, authority: Authority, tls: SSLContext
) -> None:
    api, trust = FakeApi(), {"certificate_authority_data": coded(authority.certificate)}
    async with listening(api, tls) as url:
        path = kubeconfigs.write(tmp_path, f"{url}/", {"token": "abc"}, **trust)
        assert await authorization(path, api) == "Bearer abc"
        nobody = kubeconfigs.write(tmp_path, url, {"token": "abc"})
        with pytest.raises(Unavailable, match="certificate"):
            await authorization(nobody, api)


async def test_what_a_certificate_is_checked_for(
    tmp_path: Path, authority: Authority, tls: SSLContext
) -> None:
    trust = {"certificate_authority_data": coded(authority.certificate)}
    api = FakeApi()
    async with listening(api, tls) as url:
        named = kubeconfigs.write(tmp_path, url, {}, **trust, tls_server_name="api")
        await authorization(named, api)
        other = kubeconfigs.write(tmp_path, url, {}, **trust, tls_server_name="other")
        with pytest.raises(Unavailable, match="other"):
            await authorization(other, api)
        careless = kubeconfigs.write(tmp_path, url, {}, insecure_skip_tls_verify=True)
        assert await authorization(careless, api) is None


async def test_files_beside_it(
    tmp_path: Path, authority: Authority, mutual_tls: SSLContext
) -> None:
    authority.write(tmp_path, "ca")
    authority.sign("user").write(tmp_path, "user")
    (tmp_path / "token").write_text("from a file\n")
    user = {"client-certificate": "user.crt", "client-key": "user.key", "tokenFile": "token"}
    api = FakeApi()
    async with listening(api, mutual_tls) as url:
        path = kubeconfigs.write(tmp_path, url, user, certificate_authority="ca.crt")
        assert await authorization(path, api) == "Bearer from a file"


async def test_a_client_certificate_in_the_file(
    tmp_path: Path, authority: Authority, mutual_tls: SSLContext
) -> None:
    signed = authority.sign("user")
    user = {
        "client-certificate-data": coded(signed.certificate),
        "client-key-data": coded(signed.key),
    }
    api, trust = FakeApi(), {"certificate_authority_data": coded(authority.certificate)}
    async with listening(api, mutual_tls) as url:
        assert await authorization(kubeconfigs.write(tmp_path, url, user, **trust), api) is None
        without = kubeconfigs.write(tmp_path, url, {"token": "abc"}, **trust)
        with pytest.raises(Unavailable):
            await authorization(without, api)


async def test_a_client_certificate_of_a_plugin(
    tmp_path: Path, authority: Authority, mutual_tls: SSLContext
) -> None:
    signed = authority.sign("user")
    plugin = Plugin(
        tmp_path,
        clientCertificateData=signed.certificate.decode(),
        clientKeyData=signed.key.decode(),
    )
    api, trust = FakeApi(), {"certificate_authority_data": coded(authority.certificate)}
    async with listening(api, mutual_tls) as url:
        path = kubeconfigs.write(tmp_path, url, plugin.user, **trust)
        assert await authorization(path, api) is None


async def test_a_plugin_that_takes_long_to_start_stops_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that starts a program waits until the kernel has opened the program's file. That
    may take long on a network file system; here it takes until the event loop lets it go on."""
    starts, opened = threading.Event(), threading.Event()
    start = subprocess.Popen

    def start_slowly(*args: Any, **more: Any) -> Any:
        starts.set()
        assert opened.wait(PATIENCE_S), "nobody else ran while the plugin was started"
        return start(*args, **more)

    monkeypatch.setattr(subprocess, "Popen", start_slowly)
    plugin, api = Plugin(tmp_path, token="abc"), FakeApi()
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, plugin.user)
        asking = asyncio.create_task(authorization(path, api))
        await until(starts.is_set)
        opened.set()
        assert await asking == "Bearer abc"


async def test_a_plugin_that_hangs_is_not_started_again(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, token="abc")
    (tmp_path / "before").write_text("while ! test -e go; do sleep 0.05; done\n")
    source = credentials.Kubeconfig(
        str(kubeconfigs.write(tmp_path, "https://127.0.0.1:1", plugin.user))
    )
    given_up = asyncio.create_task(source.load(Configuration(), refused=False))
    await until(lambda: (tmp_path / "asked").exists() and plugin.asked)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    with pytest.raises(ConfigError, match="is still being loaded"):
        await source.load(Configuration(), refused=False)
    (tmp_path / "go").touch()
    await until(lambda: not source._loading)
    assert plugin.asked == 1
    found = Configuration()
    await source.load(found, refused=True)
    assert found.api_key[credentials.TOKEN] == "Bearer abc"


async def test_it_can_be_loaded_again_at_once(tmp_path: Path) -> None:
    """The thread of the earlier load may not have ended yet."""
    path = kubeconfigs.write(tmp_path, "https://127.0.0.1:1", {"token": "abc"})
    source = credentials.Kubeconfig(str(path))
    for _ in range(30):
        await source.load(Configuration(), refused=True)


async def test_several_files(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("current-context: c\n")
    api = FakeApi()
    async with listening(api) as url:
        second = kubeconfigs.write(tmp_path, url, {"token": "abc"}, "second")
        assert await authorization(f"{first}:{second}", api) == "Bearer abc"


async def test_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubeconfig's proxy counts; proxies and passwords in the environment do not."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    (tmp_path / ".netrc").write_text("default login me password secret")
    proxy, api = FakeApi(), FakeApi()
    async with listening(proxy) as address, listening(api) as url:
        user = {"token": "abc"}
        far = kubeconfigs.write(
            tmp_path, "http://example.invalid:6443", user, proxy_url=f"{address}"
        )
        assert await authorization(far, proxy) == "Bearer abc"
        assert proxy.asked[-1].headers["Host"] == "example.invalid:6443"
        near = kubeconfigs.write(tmp_path, url, user)
        assert await authorization(near, api) == "Bearer abc"


async def test_the_id_token_of_an_openid_provider(tmp_path: Path) -> None:
    token = id_token(ends=1 << 33)
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    api = FakeApi()
    async with listening(api) as url:
        path = kubeconfigs.write(tmp_path, url, user)
        assert await authorization(path, api) == f"Bearer {token}"


async def test_an_id_token_that_has_ended(tmp_path: Path) -> None:
    """It is not renewed: kubernetes-asyncio does not check to which server it sends a refresh
    token."""
    config = {
        "id-token": id_token(ends=1),
        "refresh-token": "secret",
        "idp-issuer-url": "https://127.0.0.1:1",
        "client-id": "c",
        "client-secret": "s",
    }
    user = {"auth-provider": {"name": "oidc", "config": config}}
    path = kubeconfigs.write(tmp_path, "http://127.0.0.1:1", user)
    with pytest.raises(ConfigError, match="cannot refresh without refresh-token"):
        await KubeClient.connect(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "Expected key current-context"),
        ("{current-context: x, contexts: []}", "Expected object with name x"),
        ("nonsense", "cannot use the kubeconfig .*/kubeconfig: "),
        ("[", "expected the node content"),
    ],
)
async def test_what_is_missing_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        await KubeClient.connect(path)


async def test_files_that_are_not_there_or_damaged(tmp_path: Path, authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the kubeconfig .*absent"):
        await KubeClient.connect(tmp_path / "absent")
    user = {"client-certificate": "absent", "client-key": "absent"}
    with pytest.raises(ConfigError, match=r"cannot use the kubeconfig .*/absent"):
        await KubeClient.connect(kubeconfigs.write(tmp_path, "https://api", user))
    damaged = {"client-certificate-data": coded(b"x"), "client-key-data": coded(b"y")}
    with pytest.raises(ConfigError, match="cannot use the certificates for https://api"):
        await KubeClient.connect(kubeconfigs.write(tmp_path, "https://api", damaged))


async def test_no_way_to_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="set KUBECONFIG"):
        await KubeClient.connect()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(ConfigError, match="Service host/port"):
        await KubeClient.connect()
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigError, match="Does the pod mount its token"):
        await KubeClient.connect()


async def test_where_it_looks(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def host(given: Path | None = None) -> str | None:
        return (await credentials.configuration(given)).host

    home = tmp_path / ".kube"
    home.mkdir()
    kubeconfigs.write(home, "http://home", {}, "config")
    assert await host() == "http://home"
    account(tmp_path, authority)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert await host() == "https://10.0.0.1:443"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfigs.write(tmp_path, "http://named", {}, "named")))
    assert await host() == "http://named"
    assert await host(kubeconfigs.write(tmp_path, "http://given", {}, "given")) == "http://given"


def account(folder: Path, authority: Authority) -> Path:
    """A service account's files; the token's path."""
    mounted = folder / "account"
    mounted.mkdir()
    (mounted / "ca.crt").write_bytes(authority.certificate)
    (mounted / "token").write_text("secret\n")
    return mounted / "token"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_in_a_cluster(
    tmp_path: Path,
    authority: Authority,
    tls: SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
) -> None:
    """The token is read again by later calls, also by code that asks the Configuration for it."""
    token, api = account(tmp_path, authority), FakeApi()
    async with listening(api, tls, address) as url:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", address)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(url.port))
        monkeypatch.setattr(credentials, "RENEW_EVERY_S", 0)
        async with await KubeClient.connect() as client:
            await client.get(NODE_REF)
            token.write_text("renewed\n")
            await client.get(NODE_REF)
            token.write_text("once more\n")
            header = await client.configuration.get_api_key_with_prefix(credentials.TOKEN)
    assert [one.headers["Authorization"] for one in api.asked] == [
        "Bearer secret",
        "Bearer renewed",
    ]
    assert header == "Bearer once more"
