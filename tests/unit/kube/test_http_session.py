"""Connections for code that speaks HTTP over them itself, as Kopf does: they have the same
configuration."""

from pathlib import Path
from ssl import SSLContext

import aiohttp
import pytest

from mizar_kube import credentials
from mizar_kube.http_session import session
from unit.kube import kubeconfigs
from unit.kube.conftest import Authority
from unit.kube.fake_api import FakeApi, listening
from unit.kube.kubeconfigs import coded


async def test_a_session_has_all_that_the_kubeconfig_says(
    tmp_path: Path, authority: Authority, mutual_tls: SSLContext
) -> None:
    signed = authority.sign("user")
    user = {
        "client-certificate-data": coded(signed.certificate),
        "client-key-data": coded(signed.key),
        "tokenFile": "token",
    }
    (tmp_path / "token").write_text("abc")
    cluster = {"certificate_authority_data": coded(authority.certificate)}
    api = FakeApi()
    async with listening(api, mutual_tls) as url:
        path = kubeconfigs.write(tmp_path, url, user, **cluster, tls_server_name="api")
        async with (
            session(await credentials.configuration(path)) as http,
            http.get(url) as response,
        ):
            assert response.status == 200
        assert api.asked[0].headers["Authorization"] == "Bearer abc"
        other = kubeconfigs.write(tmp_path, url, user, **cluster, tls_server_name="other")
        async with session(await credentials.configuration(other)) as http:
            with pytest.raises(aiohttp.ClientConnectorCertificateError, match="other"):
                await http.get(url)


async def test_a_session_goes_through_the_proxy(tmp_path: Path) -> None:
    proxy = FakeApi()
    async with listening(proxy) as address:
        far = "http://example.invalid:6443"
        path = kubeconfigs.write(tmp_path, far, {}, proxy_url=str(address))
        async with (
            session(await credentials.configuration(path)) as http,
            http.get(f"{far}/x") as response,
        ):
            assert response.status == 200
    assert proxy.asked[0].headers["Host"] == "example.invalid:6443"
