"""Runs Kopf inside the operator's process: its settings, its login, and when it may begin."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterator
from typing import Any

import kopf

from mizar_core.names import GROUP, VERSION
from mizar_kube.backoff import Backoff
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError
from mizar_kube.kinds import Kind
from mizar_kube.logs import get_logger
from mizar_operator.handlers import Memo

log = get_logger(__name__)

SERVED_FIRST_S, SERVED_MOST_S = 0.5, 10.0
"""Seconds until the API server is asked again whether it serves Mizar's kinds: at first, and at
most."""


class KopfFailed(Exception):
    """Kopf has ended unexpectedly, so nothing watches Mizar's own kinds any more."""


@kopf.on.login()
async def login(memo: Memo, **_: Any) -> kopf.AiohttpSession:
    """Kopf's login: called at the start, and again when the API server answers 401."""
    return memo.login()


@kopf.on.cleanup()
async def cleanup(memo: Memo, **_: Any) -> None:
    """Kopf's clean-up: called when it begins to end, for any reason."""
    memo.ended()


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf's settings: it writes nothing and posts no events, does not scan for kinds that come and
    go, and waits for each answer of the API server for a limited time."""
    chosen = kopf.OperatorSettings()
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    chosen.posting.loggers = False
    chosen.networking.connect_timeout = 10
    chosen.networking.request_timeout = 30
    chosen.networking.error_backoffs = EndlessBackoff()
    chosen.watching.chunk_size = 500
    chosen.watching.server_timeout = 240
    chosen.watching.client_timeout = 300
    chosen.queueing.idle_timeout = 1
    chosen.queueing.exit_timeout = 0.2
    chosen.process.ultimate_exiting_timeout = None
    return chosen


class EndlessBackoff:
    """Seconds between tries while the API server does not answer, without an end: Kopf would give a
    call up where the delays end. It iterates anew for each call."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1, 2), itertools.repeat(5))


async def served(client: KubeClient, kinds: Collection[Kind]) -> None:
    """Wait until the API server serves the kinds, which takes a second or two when they are new,
    and as long as it takes when it is away. Kopf looks only once, and would never watch a kind that
    is served later."""
    backoff = Backoff(SERVED_FIRST_S, SERVED_MOST_S)
    while True:
        try:
            found = await client.request("GET", f"/apis/{GROUP}/{VERSION}")
            missing = {one.plural for one in kinds} - {one["name"] for one in found["resources"]}
            if not missing:
                return
            log.info("waiting for the API server to serve kinds", kind=sorted(missing))
        except KubeError as error:
            log.info("waiting for the custom resources: are the CRDs applied?", error=error)
        await asyncio.sleep(backoff.next())
