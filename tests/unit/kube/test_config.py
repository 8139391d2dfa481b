"""Where the client finds its API server, and how it keeps its token fresh."""

from pathlib import Path

import pytest

from mizar_kube import config
from mizar_kube.access import Access, ConfigError, TokenFile

ENVIRONMENT = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path, ca_pem: bytes) -> Path:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_bytes(ca_pem)
    return tmp_path


def test_in_cluster(account: Path) -> None:
    access = config.in_cluster(ENVIRONMENT, account)
    assert access.server == "https://10.0.0.1:443"
    assert access.tokens(False) == "Bearer secret"


def test_in_cluster_by_ipv6(account: Path) -> None:
    environment = ENVIRONMENT | {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert config.in_cluster(environment, account).server == "https://[fd00::1]:443"


def test_outside_of_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a kubeconfig"):
        config.in_cluster({}, tmp_path)
    with pytest.raises(ConfigError, match="is missing"):
        config.in_cluster(ENVIRONMENT, tmp_path)


def test_the_token_is_read_again_when_old_or_refused(account: Path) -> None:
    now = 0.0
    tokens = TokenFile(account / "token", clock=lambda: now)
    assert tokens() == "Bearer secret"
    (account / "token").write_text("renewed")
    assert tokens() == "Bearer secret"
    assert tokens(True) == "Bearer renewed"
    (account / "token").write_text("once more")
    now = 61.0
    assert tokens() == "Bearer once more"


def test_no_way_to_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set KUBECONFIG"):
        config.find(environ={"HOME": str(tmp_path)})


def test_where_it_looks(account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "from_kubeconfig", lambda path: Access(f"file {path}"))
    monkeypatch.setattr(config, "in_cluster", lambda environ: Access("pod"))
    home = tmp_path / ".kube" / "config"
    home.parent.mkdir()
    home.touch()
    environment = {"HOME": str(tmp_path)}
    assert config.find(environ=environment).server == f"file {home}"
    assert config.find(environ=environment | ENVIRONMENT).server == "pod"
    named = environment | ENVIRONMENT | {"KUBECONFIG": "/named"}
    assert config.find(environ=named).server == "file /named"
    assert config.find("/given", environ=named).server == "file /given"
