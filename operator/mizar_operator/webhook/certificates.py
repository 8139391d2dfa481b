"""The webhook's certificate authority and serving certificate: made, read, renewed. No I/O."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = timedelta(days=3 * 365)
SERVING_LIFE = timedelta(days=90)
# Clocks of API servers may be behind ours.
SKEW = timedelta(hours=1)
# API servers learn of a new authority within seconds; nothing is signed by it before this time.
PROPAGATION = timedelta(hours=1)

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Bundle:
    """What all replicas share: the authorities that are trusted, newest first, and what they sign.

    `ca_key` belongs to the newest authority; `certificate` may still be signed by an older one.
    """

    authorities: tuple[x509.Certificate, ...]
    ca_key: Key
    certificate: x509.Certificate
    key: Key

    @property
    def ca_pem(self) -> bytes:
        """What API servers must trust."""
        return b"".join(one.public_bytes(Encoding.PEM) for one in self.authorities)

    @property
    def certificate_pem(self) -> bytes:
        """What the webhook shows."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The serving certificate's key."""
        return _key_pem(self.key)

    def to_secret(self) -> dict[str, str]:
        """The data of a Secret."""
        files = {
            "ca.crt": self.ca_pem,
            "ca.key": _key_pem(self.ca_key),
            "tls.crt": self.certificate_pem,
            "tls.key": self.key_pem,
        }
        return {name: base64.b64encode(data).decode() for name, data in files.items()}


def from_secret(data: dict[str, str]) -> Bundle | None:
    """The bundle in a Secret's data; None when it is empty, broken or doesn't fit together."""
    try:
        files = {name: base64.b64decode(value) for name, value in data.items()}
        authorities = tuple(x509.load_pem_x509_certificates(files["ca.crt"]))
        bundle = Bundle(
            authorities,
            _load_key(files["ca.key"]),
            x509.load_pem_x509_certificate(files["tls.crt"]),
            _load_key(files["tls.key"]),
        )
    except (KeyError, ValueError, TypeError):
        return None
    return bundle if _fits(bundle) else None


def renewed(bundle: Bundle | None, dns_name: str, now: datetime) -> Bundle | None:
    """The bundle to put in place of this one; None while this one will do.

    An authority is renewed after two thirds of its life and trusted for a while before it signs,
    so that at every moment API servers trust what every replica shows.
    """
    if bundle is None or not _trusted(bundle.authorities, now):
        return fresh(dns_name, now)
    if _old(bundle.authorities[0], now):
        authority, ca_key = _authority(now)
        trusted = (authority, *_trusted(bundle.authorities, now))
        return Bundle(trusted, ca_key, bundle.certificate, bundle.key)
    if _must_sign(bundle, dns_name, now):
        certificate, key = _serving(bundle.authorities[0], bundle.ca_key, dns_name, now)
        return Bundle(_trusted(bundle.authorities, now), bundle.ca_key, certificate, key)
    return None


def fresh(dns_name: str, now: datetime) -> Bundle:
    """A new authority and a certificate for `dns_name`, signed by it."""
    authority, ca_key = _authority(now)
    return Bundle((authority,), ca_key, *_serving(authority, ca_key, dns_name, now))


def _trusted(
    authorities: Iterable[x509.Certificate], now: datetime
) -> tuple[x509.Certificate, ...]:
    return tuple(one for one in authorities if one.not_valid_after_utc > now)


def _must_sign(bundle: Bundle, dns_name: str, now: datetime) -> bool:
    shown, newest = bundle.certificate, bundle.authorities[0]
    if _dns_names(shown) != [dns_name] or shown.not_valid_after_utc <= now:
        return True
    known = now - newest.not_valid_before_utc >= SKEW + PROPAGATION
    return (not _signed_by(shown, newest) and known) or (_old(shown, now) and known)


def _old(certificate: x509.Certificate, now: datetime) -> bool:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= start + (end - start) * 2 / 3


def _fits(bundle: Bundle) -> bool:
    pairs = ((bundle.authorities[0], bundle.ca_key), (bundle.certificate, bundle.key))
    same = all(one.public_key() == key.public_key() for one, key in pairs)
    return same and any(_signed_by(bundle.certificate, one) for one in bundle.authorities)


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _dns_names(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return names.value.get_values_for_type(x509.DNSName)


def _authority(now: datetime) -> tuple[x509.Certificate, Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own, so that API servers can tell old and new apart.
    name = _name(f"mizar-webhook-ca-{int(now.timestamp())}")
    builder = _builder(name, name, key, now, now + CA_LIFE).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return _usage(builder, "key_cert_sign", "crl_sign").sign(key, SHA256()), key


def _serving(
    authority: x509.Certificate, ca_key: Key, dns_name: str, now: datetime
) -> tuple[x509.Certificate, Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + SERVING_LIFE, authority.not_valid_after_utc)
    builder = (
        # A common name holds 64 characters; only the alternative name counts.
        _builder(_name(dns_name[:64]), authority.subject, key, now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(dns_name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    return _usage(builder, "digital_signature").sign(ca_key, SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(builder: x509.CertificateBuilder, *uses: str) -> x509.CertificateBuilder:
    every = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return builder.add_extension(
        x509.KeyUsage(**{use: use in uses for use in every}), critical=True
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _load_key(pem: bytes) -> Key:
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not one of ours")
    return key
