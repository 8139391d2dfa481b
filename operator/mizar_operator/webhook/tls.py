"""The TLS context that the webhook serves with; its certificate can change while it serves."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from cryptography import x509


class ServingTLS:
    """New connections get the certificate that was shown last; running ones go on."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._shown: bytes = b""
        self.expires: datetime | None = None

    def show(self, certificate: bytes, key: bytes) -> bool:
        """Serve with this certificate (PEM) from now on; False if that is so already.

        Raises ValueError (ssl.SSLError is one) when key and certificate don't fit.
        """
        if certificate == self._shown:
            return False
        with _in_memory(certificate + b"\n" + key) as path:
            self.context.load_cert_chain(path)
        self.expires = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
        self._shown = certificate
        return True


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """A path that OpenSSL can read, so that no key is ever written to a disk."""
    file = os.memfd_create("mizar-tls", os.MFD_CLOEXEC)
    try:
        os.write(file, data)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
