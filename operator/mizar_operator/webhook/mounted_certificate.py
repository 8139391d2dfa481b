"""A certificate in files that another program renews (cert-manager's mounted Secret)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from mizar_kube.logs import get_logger
from mizar_operator.webhook.serving_tls import ServingTLS

log = get_logger(__name__)

LOOK_EVERY_S = 10.0
"""Seconds between two looks at the certificate's files."""


class CertificateFiles:
    """Serves with tls.crt and tls.key of a folder, and follows their changes."""

    def __init__(self, path: Path, tls: ServingTLS) -> None:
        self._path = path
        self._tls = tls

    def problem(self) -> str | None:
        """Why API servers cannot connect to the webhook; None if they can."""
        return None if self._tls.expires else f"no certificate in {self._path} yet"

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """The task that follows the files."""
        return [self.run()]

    async def run(self) -> None:
        """Look at the files every LOOK_EVERY_S seconds, for ever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Serve with the files as they are now; files that are missing or half written wait for
        the next look."""
        try:
            certificate = (self._path / "tls.crt").read_bytes()
            if self._tls.use(certificate, (self._path / "tls.key").read_bytes()):
                log.info("certificate in use", expires=self._tls.expires)
        except (OSError, ValueError) as error:
            log.warning("the certificate cannot be used", path=self._path, error=error)
