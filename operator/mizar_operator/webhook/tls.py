"""The TLS context that the webhook serves with; its certificate can change while it serves."""

import os
import ssl
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
        # In memory, so that no key is ever written to a disk.
        with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as file:
            file.write(certificate + b"\n" + key)
            self.context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        self.expires = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
        self._shown = certificate
        return True
