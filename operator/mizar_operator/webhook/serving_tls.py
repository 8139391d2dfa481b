"""The TLS context that the webhook serves with; its certificate can change while it serves."""

from __future__ import annotations

import os
import ssl
from datetime import datetime, timedelta

from cryptography import x509


class ServingTLS:
    """The TLS context and its certificate: new connections get the one that was set last, open ones
    keep theirs. `expires`: when it expires; None before there is one. `lifetime`: how long it is
    valid in all."""

    def __init__(self) -> None:
        self.context = _context()
        self._used: bytes = b""
        self.expires: datetime | None = None
        self.lifetime = timedelta(0)

    def use(self, certificate: bytes, key: bytes) -> bool:
        """Serve with this certificate (PEM) from now on; False if it is in use already.

        Raises ValueError or OSError (ssl.SSLError is one) when key and certificate don't fit; the
        certificate in use stays then.
        """
        if certificate == self._used:
            return False
        parsed = x509.load_pem_x509_certificate(certificate)
        expires = parsed.not_valid_after_utc
        # In memory, so that no key is ever written to a disk.
        with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as file:
            file.write(certificate + b"\n" + key)
            # A context has lost its old certificate by the time that loading a new one fails.
            for context in (_context(), self.context):
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        self.expires, self._used = expires, certificate
        self.lifetime = expires - parsed.not_valid_before_utc
        return True


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
