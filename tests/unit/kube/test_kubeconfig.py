"""What kubeconfig files say, in all the ways that they say it."""

import base64
import json
from pathlib import Path
from ssl import CERT_NONE, CERT_REQUIRED, SSLContext
from typing import Any

import pytest
import yaml

from mizar_kube.access import ConfigError
from mizar_kube.kubeconfig import ExecPlugin, from_kubeconfig
from unit.kube.conftest import Authority

Section = dict[str, Any]


def write(folder: Path, cluster: Section, user: Section, name: str = "kubeconfig") -> Path:
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://example:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / name
    path.write_text(yaml.safe_dump(body))
    return path


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_token_and_an_authority_in_the_file(tmp_path: Path, authority: Authority) -> None:
    cluster = {
        "certificate-authority-data": coded(authority.certificate),
        "tls-server-name": "api",
        "proxy-url": "http://proxy:3128",
    }
    access = from_kubeconfig(write(tmp_path, cluster, {"token": "abc"}))
    assert access.server == "https://example:6443"
    assert (access.server_hostname, access.proxy) == ("api", "http://proxy:3128")
    assert access.tokens(False) == "Bearer abc"
    assert isinstance(access.ssl, SSLContext)
    assert access.ssl.verify_mode is CERT_REQUIRED
    assert len(access.ssl.get_ca_certs()) == 1


def test_files_beside_it(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "user.key").write_bytes(authority.key)
    (tmp_path / "token").write_text("from a file\n")
    user = {
        "client-certificate": "ca.crt",
        "client-key": "user.key",
        "tokenFile": "token",
    }
    access = from_kubeconfig(write(tmp_path, {"certificate-authority": "ca.crt"}, user))
    assert access.tokens(False) == "Bearer from a file"


def test_a_client_certificate_in_the_file(tmp_path: Path, authority: Authority) -> None:
    user = {
        "client-certificate-data": coded(authority.certificate),
        "client-key-data": coded(authority.key),
    }
    access = from_kubeconfig(write(tmp_path, {"insecure-skip-tls-verify": True}, user))
    assert access.tokens(False) is None
    assert isinstance(access.ssl, SSLContext)
    assert access.ssl.verify_mode is CERT_NONE


def test_several_files(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("current-context: c\n")
    write(tmp_path, {}, {"token": "abc"}, "second")
    assert from_kubeconfig(f"{first}:{second}").tokens(False) == "Bearer abc"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "no context called ''"),
        ("current-context: x", "no context called 'x'"),
        ("nonsense", "is no kubeconfig"),
        ("[", "cannot read"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        from_kubeconfig(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the kubeconfig"):
        from_kubeconfig(tmp_path / "absent")
    user = {"client-certificate": "absent"}
    with pytest.raises(ConfigError, match="cannot read client-certificate"):
        from_kubeconfig(write(tmp_path, {}, user))


class TestExecPlugin:
    def plugin(self, folder: Path, status: Section, **spec: Any) -> Section:
        """A program that prints a credential and counts how often it is asked."""
        program = folder / "plugin"
        answer = json.dumps({"kind": "ExecCredential", "status": status})
        program.write_text(f"#!/bin/sh\necho asked >> {folder}/asked\ncat <<'E'\n{answer}\nE\n")
        program.chmod(0o755)
        return {"command": "./plugin", "apiVersion": "client.authentication.k8s.io/v1", **spec}

    def asked(self, folder: Path) -> int:
        return len((folder / "asked").read_text().splitlines())

    def test_is_asked_again_when_its_token_ends_or_is_refused(self, tmp_path: Path) -> None:
        now = 0.0
        status = {"token": "abc", "expirationTimestamp": "1970-01-01T01:00:00Z"}
        plugin = ExecPlugin(self.plugin(tmp_path, status), tmp_path, clock=lambda: now)
        assert plugin(False) == plugin(False) == "Bearer abc"
        assert self.asked(tmp_path) == 1
        assert plugin(True) == "Bearer abc"
        assert self.asked(tmp_path) == 2
        now = 3595.0
        plugin(False)
        assert self.asked(tmp_path) == 3

    def test_may_give_a_certificate(self, tmp_path: Path, authority: Authority) -> None:
        status = {
            "clientCertificateData": authority.certificate.decode(),
            "clientKeyData": authority.key.decode(),
        }
        user = {"exec": self.plugin(tmp_path, status)}
        access = from_kubeconfig(write(tmp_path, {}, user))
        assert access.tokens(False) is None

    def test_hears_what_the_kubeconfig_says(self, tmp_path: Path) -> None:
        program = tmp_path / "plugin"
        program.write_text('#!/bin/sh\nprintf \'{"status":{"token":"%s-%s"}}\' "$NAME" "$1"\n')
        program.chmod(0o755)
        spec = {"command": "./plugin", "args": ["x"], "env": [{"name": "NAME", "value": "me"}]}
        assert ExecPlugin(spec, tmp_path)(False) == "Bearer me-x"

    def test_that_fails(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"exec plugin .*/absent fails"):
            ExecPlugin({"command": "./absent"}, tmp_path)(False)
