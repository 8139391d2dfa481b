"""The certificates of a cluster: one authority, made anew for each cluster.

Every component has a client certificate of its own whose subject is what Kubernetes' built-in
roles and the node authorizer know: nothing but the administrator and the API server's client to
the kubelets is in system:masters.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = datetime.timedelta(days=365)
BACKDATE = datetime.timedelta(hours=1)
_USAGES = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority; its own certificate is `file` in `folder`, like those it issues."""

    def __init__(self, folder: Path, file: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(f"mizar-cluster-{file}", ())
        self._certificate = self._build(self._name, self._key).sign(self._key, hashes.SHA256())
        self.pair = self._write(file, self._certificate, self._key)

    def issue(
        self,
        file: str,
        common_name: str,
        organizations: Sequence[str] = (),
        names: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> Pair:
        """A certificate for a client, and for a server if names or addresses are given."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._build(_subject(common_name, organizations), key, is_ca=False)
        usages = _USAGES if names or addresses else _USAGES[:1]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        return self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def _build(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, is_ca: bool = True
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder(issuer_name=self._name, subject_name=subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(now + VALIDITY)
            .add_extension(x509.BasicConstraints(is_ca, None), critical=True)
            .add_extension(_key_usage(is_ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(authority_key, critical=False)
        )

    def _write(
        self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> Pair:
        pair = Pair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_key(pair.key, key)
        return pair


def signing_key(folder: Path) -> tuple[Path, Path]:
    """A new key for service account tokens: (private, public) PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / "service-account.key", folder / "service-account.pub"
    write_key(private, key)
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key that only root can read."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _subject(common_name: str, organizations: Sequence[str]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
