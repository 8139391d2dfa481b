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
import re
import time
from collections.abc import Callable

from prometheus_client import Gauge

from mizar_core.names import FIELD_MANAGER_OPERATOR
from mizar_kube.client import KubeClient
from mizar_kube.errors import AlreadyExists, Forbidden, Invalid, KubeError
from mizar_kube.kinds import Object
from mizar_kube.logs import get_logger
from mizar_operator.crd_check import lacking_fields
from mizar_operator.default_pool import default_pool

log = get_logger(__name__)

RETRY_FIRST_S, RETRY_MOST_S = 0.2, 2.0
"""Seconds between tries: at first, and at most."""
NAMED = 3
"""The most lacking fields that the problem names."""
ASKED_AGAIN_S = 60.0
"""Seconds between two checks whether the API server still reaches the webhook, once it has. That is
often enough for an alert: a firewall or a CA bundle that somebody changes stays changed."""
ANSWERS = (AlreadyExists, Invalid, Forbidden)
"""Errors of a dry run that reached the webhook. Forbidden comes from a policy, which is evaluated
after the webhook; or from missing permissions, so that the webhook cannot be asked at all."""
ASKS_ALSO_THE_MUTATING: dict[str, object] = {"memoryScaling": 1 << 63}
"""The spec of a pool whose dry run shows whether the API server reaches the mutating webhook. That
is checked apart from the validating one: each kind has a configuration of its own, and so its own
certificate authorities, which cert-manager sets one after the other. Pods go through the mutating
one, but of pools only those that have values other than text.

This pool is never created: API servers read so large a whole number as a fraction, which the
webhook lets pass and the schema refuses. API servers check the type of most fields before the
webhook, and log an error each time, but not of this one, whose schema is int-or-string."""
NOT_REACHED = re.compile(r'calling webhook "[a-z]+\.mizar\.share"')
"""Part of the API server's message when it has got no answer from Mizar's webhook."""
POOL_WITHIN_S = 30.0
"""Seconds that readiness waits for the default pool. The leader creates it, and during an upgrade
the leader may be a replica of the previous version, which ends only when this one is ready."""

_OLDER = (
    "the CRDs of Mizar in the cluster are older than this operator and lack {}: "
    "kubectl apply --server-side --force-conflicts --filename charts/mizar/crds"
)


class Readiness:
    """Checks readiness by reading the CRDs' schemas, and by dry runs that create pools. After one
    success the operator stays ready: from then on, only the metric `reached` shows whether the API
    server still reaches the webhook, since another replica of the operator would not help.
    `makes_pool`: whether the operator creates the default pool. `clock` counts seconds."""

    def __init__(
        self,
        client: KubeClient,
        makes_pool: bool,
        reached: Gauge,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reached = reached
        self._client = client
        self._makes_pool = makes_pool
        self._clock = clock
        self._began = clock()
        self._reached_before = False
        self._problem: str | None = "whether the API server reaches the webhook was not checked yet"

    def problems(self) -> list[str]:
        """Why the operator is not ready, as sentences; empty if it is."""
        return [self._problem] if self._problem else []

    async def run(self) -> None:
        """Wait until nothing is missing, and then keep the metric current, for ever."""
        await self.wait()
        while True:
            await asyncio.sleep(ASKED_AGAIN_S)
            await self._ask_again()

    async def _ask_again(self) -> None:
        """Try the webhook once more. An error that is not about a webhook, such as an API server
        that is away, says nothing."""
        error = await self._dry_run()
        if error is None or isinstance(error, ANSWERS):
            self._tell(None)
        elif NOT_REACHED.search(str(error)):
            self._tell(error)

    def _tell(self, error: KubeError | None) -> None:
        if error is not None and self._reached_before:
            log.warning("the API server does not reach the webhook any more", error=error)
        self._reached_before = error is None
        self._reached.set(error is None)

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
        error = await self._dry_run()
        if error is not None and not isinstance(error, ANSWERS):
            return f"the API server does not reach the webhook: {error}"
        self._tell(None)
        missing = self._makes_pool and error is None
        if missing and self._clock() - self._began < POOL_WITHIN_S:
            return "there is no default pool yet"
        return None

    async def _dry_run(self) -> KubeError | None:
        """The error of two dry runs. The first goes through the mutating webhook; its error is
        returned if it did not reach that. The second creates the default pool; its error is
        returned otherwise, and is None if there is no such pool yet."""
        error = await self._try(ASKS_ALSO_THE_MUTATING)
        if error is not None and not isinstance(error, ANSWERS):
            return error
        return await self._try({})

    async def _try(self, spec: Object) -> KubeError | None:
        try:
            await self._client.create(
                default_pool(spec), field_manager=FIELD_MANAGER_OPERATOR, dry_run=True
            )
        except KubeError as error:
            return error
        return None
