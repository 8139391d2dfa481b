"""Checks the operator's readiness: the CRDs of Mizar's kinds are not older than the operator, the
API server reaches the webhook, and there is a default pool.

For a moment after a webhook's pod is ready, the API server's node has no route to it yet, and pods
that request shares are refused. The operator is not ready before that is over, so that
`helm install --wait` returns when the first share pods can be created.

With older CRDs it is not ready either, so that an upgrade keeps the previous operator, which
matches them, and `helm upgrade --wait` fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from mizar_core.names import FIELD_MANAGER_OPERATOR
from mizar_kube.client import KubeClient
from mizar_kube.errors import AlreadyExists, Forbidden, Invalid, KubeError
from mizar_kube.logs import get_logger
from mizar_operator.default_pool import default_pool
from mizar_operator.definitions import lacking_fields

log = get_logger(__name__)

RETRY_FIRST_S, RETRY_MOST_S = 0.2, 2.0
"""Seconds between tries: at first, and at most."""
NAMED = 3
"""The most lacking fields that the problem names."""
POOL_WITHIN_S = 30.0
"""Seconds that readiness waits for the default pool. The leader creates it, and during an upgrade
the leader may be a replica of the previous version, which ends only when this one is ready."""

_OLDER = (
    "the CRDs of Mizar in the cluster are older than this operator and lack {}: "
    "kubectl apply --server-side --force-conflicts --filename charts/mizar/crds"
)


class Readiness:
    """Checks readiness by reading the CRDs' schemas, and by a dry run that creates a pool. After
    one success it does not check again: the webhook's own probes show whether it keeps working."""

    def __init__(
        self, client: KubeClient, makes_pool: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._makes_pool = makes_pool
        self._clock = clock
        self._began = clock()
        self._problem: str | None = "whether the API server reaches the webhook was not checked yet"

    def problems(self) -> list[str]:
        """Why the operator is not ready, as sentences; empty if it is."""
        return [self._problem] if self._problem else []

    async def wait(self) -> None:
        """Return when nothing is missing. Checks five times in about the first 2 s, then less
        often, and at last every RETRY_MOST_S."""
        delay = RETRY_FIRST_S
        while problem := await self._look():
            if problem != self._problem:
                log.info("not ready yet", problem=problem)
            self._problem = problem
            await asyncio.sleep(delay)
            delay = min(1.5 * delay, RETRY_MOST_S)
        self._problem = None

    async def _look(self) -> str | None:
        if lacking := await lacking_fields(self._client):
            return _OLDER.format(", ".join(lacking[:NAMED]))
        try:
            await self._client.create(
                default_pool({}), field_manager=FIELD_MANAGER_OPERATOR, dry_run=True
            )
        except (AlreadyExists, Invalid, Forbidden):
            # Forbidden comes from a policy, which is evaluated after the webhook; or from missing
            # permissions, so that the webhook cannot be asked at all.
            return None
        except KubeError as error:
            return f"the API server does not reach the webhook: {error}"
        if self._makes_pool and self._clock() - self._began < POOL_WITHIN_S:
            return "there is no default pool yet"
        return None
