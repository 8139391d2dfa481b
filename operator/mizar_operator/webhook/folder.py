"""A certificate that somebody else renews, in a folder (cert-manager's mounted Secret)."""

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from mizar_operator.webhook.tls import ServingTLS

log = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0


class Folder:
    """Serves with tls.crt and tls.key of a folder, and with what they become."""

    def __init__(self, path: Path, tls: ServingTLS) -> None:
        self._path = path
        self._tls = tls

    def problem(self) -> str | None:
        """Why API servers can't talk to us, or None."""
        return None if self._tls.expires else f"no certificate in {self._path} yet"

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What must run."""
        return [self.run()]

    async def run(self) -> None:
        """Look again and again."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Serve with what is there now; what is there not yet, or half written, waits."""
        try:
            certificate = (self._path / "tls.crt").read_bytes()
            if self._tls.show(certificate, (self._path / "tls.key").read_bytes()):
                log.info("serving with a certificate that ends %s", self._tls.expires)
        except (OSError, ValueError) as error:
            log.warning("the certificate in %s can't be used: %s", self._path, error)
