"""The TLS context that the webhook serves with; its certificate can change while it serves."""

import ssl
from datetime import datetime

from cryptography import x509

from mizar_kube.memory_file import memory_file


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
        with memory_file(certificate + b"\n" + key) as path:
            self.context.load_cert_chain(path)
        self.expires = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
        self._shown = certificate
        return True
