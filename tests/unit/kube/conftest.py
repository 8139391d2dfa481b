"""A certificate authority for tests that need one, and what it signs."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from ssl import CERT_REQUIRED, PROTOCOL_TLS_SERVER, SSLContext

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

LOOPBACK = [x509.IPAddress(ipaddress.ip_address(one)) for one in ("127.0.0.1", "::1")]


@dataclass(frozen=True)
class Signed:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """The paths of the certificate and the key, in files of their own."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.write_bytes(self.key)
        return certificate, key


class Authority(Signed):
    """A certificate authority that no system trusts."""

    def sign(self, name: str, *addresses: x509.GeneralName) -> Signed:
        """A certificate for that name, good for these addresses."""
        issuer = x509.load_pem_x509_certificate(self.certificate)
        return _signed(name, issuer, self.key, x509.SubjectAlternativeName(addresses))


def _signed(
    name: str, issuer: x509.Certificate | None, by: bytes, extension: x509.ExtensionType
) -> Signed:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer = load_pem_private_key(by, None) if by else key
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(extension, critical=True)
        .sign(signer, SHA256())
    )
    return Signed(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


@pytest.fixture(scope="session")
def authority() -> Authority:
    """The authority of API servers and their users."""
    made = _signed("test", None, b"", x509.BasicConstraints(ca=True, path_length=None))
    return Authority(made.certificate, made.key)


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> SSLContext:
    """The TLS context of a server on a loopback address that is also called `api`."""
    signed = authority.sign("server", *LOOPBACK, x509.DNSName("api"))
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed.write(tmp_path, "server"))
    return context


@pytest.fixture
def mutual_tls(tls: SSLContext, authority: Authority) -> SSLContext:
    """The same for a server that demands certificates of its clients."""
    tls.load_verify_locations(cadata=authority.certificate.decode())
    tls.verify_mode = CERT_REQUIRED
    return tls
