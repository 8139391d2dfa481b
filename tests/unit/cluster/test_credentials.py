import base64
import ssl
import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster.credentials import Credentials, make, write_kubeconfig
from cluster.layout import Layout


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    layout = Layout("demo", tmp_path_factory.mktemp("root"))
    layout.make()
    return make(layout, ["node-1", "node-2"])


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def subject(path: Path, part: x509.ObjectIdentifier) -> list[str]:
    return [str(one.value) for one in certificate(path).subject.get_attributes_for_oid(part)]


def test_the_api_server_is_known_by_all_its_addresses(credentials: Credentials) -> None:
    names = certificate(credentials.server.cert).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    addresses = {str(one) for one in names.value.get_values_for_type(x509.IPAddress)}
    assert addresses == {"127.0.0.1", "172.20.0.1", "10.96.0.1"}
    assert "kubernetes.default.svc" in names.value.get_values_for_type(x509.DNSName)


def test_kubelets_are_what_the_node_authorizer_knows(credentials: Credentials) -> None:
    pair = credentials.node("node-2")
    assert subject(pair.cert, NameOID.COMMON_NAME) == ["system:node:node-2"]
    assert subject(pair.cert, NameOID.ORGANIZATION_NAME) == ["system:nodes"]
    usages = certificate(pair.cert).extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert ExtendedKeyUsageOID.SERVER_AUTH in usages.value


@pytest.mark.parametrize("client", ["kube-scheduler", "kube-proxy", "kube-controller-manager"])
def test_components_are_nobody_special(credentials: Credentials, client: str) -> None:
    cert = credentials.folder / f"{client}.crt"
    assert subject(cert, NameOID.COMMON_NAME) == [f"system:{client}"]
    assert subject(cert, NameOID.ORGANIZATION_NAME) == []


def test_keys_are_for_root_only(credentials: Credentials) -> None:
    secrets = [*credentials.folder.glob("*.key"), *credentials.folder.glob("*.kubeconfig")]
    assert secrets
    assert {stat.S_IMODE(one.stat().st_mode) for one in secrets} == {0o600}


def test_openssl_takes_the_authority_and_a_pair(credentials: Credentials) -> None:
    context = ssl.create_default_context(cafile=str(credentials.ca.cert))
    context.load_cert_chain(credentials.admin.cert, credentials.admin.key)


def test_a_kubeconfig_has_everything_in_it(credentials: Credentials, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    ca, admin = credentials.ca.cert, credentials.admin
    write_kubeconfig(file, "demo", "https://127.0.0.1:1", ca, admin)
    config = yaml.safe_load(file.read_text())
    cluster = config["clusters"][0]["cluster"]
    assert cluster["server"] == "https://127.0.0.1:1"
    assert base64.b64decode(cluster["certificate-authority-data"]) == ca.read_bytes()
    assert config["current-context"] == "mizar-demo"
