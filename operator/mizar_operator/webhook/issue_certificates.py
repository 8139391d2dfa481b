"""Creates, reads and renews the webhook's certificate authority and serving certificate. No I/O:
self_signed_certificate.py stores them, and has the API server trust them."""

from __future__ import annotations

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
"""How long a certificate authority is valid."""
SERVING_LIFE = timedelta(days=90)
"""How long a serving certificate is valid."""
SKEW = timedelta(hours=1)
"""How far before their creation certificates become valid: clocks of API servers may be slow."""
PROPAGATION = timedelta(hours=1)
"""How long a new authority signs nothing, so that all API servers trust it by then; they learn of
it within seconds."""

Key = ec.EllipticCurvePrivateKey
"""The private key of a certificate or of an authority."""


@dataclass(frozen=True)
class Bundle:
    """The certificates and keys that all replicas share. `authorities`: those that are trusted,
    newest first.

    `ca_key` belongs to the newest authority; `certificate` may still be signed by an older one.
    """

    authorities: tuple[x509.Certificate, ...]
    ca_key: Key
    certificate: x509.Certificate
    key: Key

    @property
    def ca_pem(self) -> bytes:
        """The authorities that API servers must trust, as PEM."""
        return b"".join(one.public_bytes(Encoding.PEM) for one in self.authorities)

    @property
    def certificate_pem(self) -> bytes:
        """The serving certificate, as PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The serving certificate's key, as PEM."""
        return _key_pem(self.key)

    def to_secret(self) -> dict[str, str]:
        """The bundle as the data of a Secret, in base64."""
        files = {
            "ca.crt": self.ca_pem,
            "ca.key": _key_pem(self.ca_key),
            "tls.crt": self.certificate_pem,
            "tls.key": self.key_pem,
        }
        return {name: base64.b64encode(data).decode() for name, data in files.items()}


def from_secret(data: dict[str, str]) -> Bundle | None:
    """The bundle in a Secret's data; None when it is empty, damaged or inconsistent."""
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
    """The bundle to replace this one with; None while this one will do.

    An authority is renewed after two thirds of its life and trusted for a while before it signs, so
    that API servers trust the certificate of every replica at every moment. A certificate that is
    not valid yet, since it was made while a clock was ahead, is replaced at once: API servers
    refuse it.
    """
    if bundle is None:
        return fresh(dns_name, now)
    newest = bundle.authorities[0]
    if not _is_valid(newest, now) or _old(newest, now):
        return _with_new_authority(bundle, dns_name, now)
    if _must_sign(bundle, dns_name, now):
        certificate, key = _serving(bundle.authorities[0], bundle.ca_key, dns_name, now)
        return Bundle(_trusted(bundle.authorities, now), bundle.ca_key, certificate, key)
    return None


def fresh(dns_name: str, now: datetime) -> Bundle:
    """A new authority and a certificate for `dns_name`, signed by it."""
    authority, ca_key = _authority(now)
    return Bundle((authority,), ca_key, *_serving(authority, ca_key, dns_name, now))


def _with_new_authority(bundle: Bundle, dns_name: str, now: datetime) -> Bundle:
    """The bundle with a new authority. It keeps the serving certificate if one of the authorities
    that stay has signed it."""
    made, trusted = fresh(dns_name, now), _trusted(bundle.authorities, now)
    stays = any(_signed_by(bundle.certificate, one) for one in trusted)
    shown = bundle if stays else made
    return Bundle((*made.authorities, *trusted), made.ca_key, shown.certificate, shown.key)


def _trusted(
    authorities: Iterable[x509.Certificate], now: datetime
) -> tuple[x509.Certificate, ...]:
    return tuple(one for one in authorities if _is_valid(one, now))


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether the certificate is valid at `now`. A new one is valid even by a clock that is behind
    by less than SKEW."""
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _must_sign(bundle: Bundle, dns_name: str, now: datetime) -> bool:
    shown, newest = bundle.certificate, bundle.authorities[0]
    if _dns_names(shown) != [dns_name] or not _is_valid(shown, now):
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
    """The alternative names that a certificate is for, since API servers accept no other names. A
    certificate that was made by hand may have none."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return names.value.get_values_for_type(x509.DNSName)


def _authority(now: datetime) -> tuple[x509.Certificate, Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    # Each authority has a different name, so that API servers can tell old and new apart.
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
