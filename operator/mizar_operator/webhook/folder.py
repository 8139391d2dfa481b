"""A certificate that somebody else renews, in a folder (cert-manager's mounted Secret)."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from mizar_kube.logs import get_logger
from mizar_operator.webhook.tls import ServingTLS

log = get_logger(__name__)

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
                log.info("certificate in use", expires=self._tls.expires)
        except (OSError, ValueError) as error:
            log.warning("the certificate cannot be used", path=self._path, error=error)
