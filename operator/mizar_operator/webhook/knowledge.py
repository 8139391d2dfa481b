"""What the webhook knows of pools and quotas: copies kept by informers, and live reads."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from pydantic import ValidationError

from mizar_core.models import GPUPool, GPUQuota
from mizar_kube.client import KubeClient
from mizar_kube.errors import NotFound
from mizar_kube.informer import Informer, Watched
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, RUNTIME_CLASS, Object, Ref
from mizar_kube.logs import get_logger
from mizar_operator.webhook.pools import Pools

log = get_logger(__name__)

# Live reads are on the way of a request that the API server gives up after a few seconds.
READ_TIMEOUT_S = 2.0


class Knowledge:
    """Pools and quotas. `run()` keeps the copies current until cancelled."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._pools: Informer[GPUPool] = Informer(client, Watched(GPU_POOL), GPUPool.from_dict)
        self._quotas: Informer[str] = Informer(client, Watched(GPU_QUOTA), pool_of)
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """For health probes."""
        return self._pools, self._quotas

    @property
    def synced(self) -> bool:
        """Whether there is a copy of everything."""
        return all(one.synced.is_set() for one in self.informers)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What must run for the copies to stay current."""
        return [one.run() for one in self.informers]

    def pools(self, namespace: str) -> Pools:
        """All pools as the namespace sees them, from the copies."""
        own = [pool for (where, _), pool in self._quotas.items() if where == namespace]
        return Pools(self._pools.values(), namespace, own)

    async def refresh(self, asked_at: float) -> None:
        """Read everything from the API server, unless that was done after `asked_at`.

        The watch brings changes within milliseconds; a pod made right after its pool can be
        faster. Raises KubeError.
        """
        async with self._reading:
            if self._read_at >= asked_at:
                return
            started = self._clock()
            for kind, informer in ((GPU_POOL, self._pools), (GPU_QUOTA, self._quotas)):
                for obj in (await self._client.list(kind, timeout=READ_TIMEOUT_S)).items:
                    informer.observe(obj)
            self._read_at = started

    def now(self) -> float:
        """The clock of `refresh`, in seconds."""
        return self._clock()

    async def live_pools(self) -> list[GPUPool]:
        """All pools as the API server has them now. Raises KubeError."""
        listing = await self._client.list(GPU_POOL, timeout=READ_TIMEOUT_S)
        pools = [read_pool(obj) for obj in listing.items if _stays(obj)]
        return [pool for pool in pools if pool is not None]

    async def has_runtime_class(self, name: str) -> bool:
        """Whether the API server has it now. Raises KubeError."""
        try:
            await self._client.get(Ref(RUNTIME_CLASS, name), timeout=READ_TIMEOUT_S)
        except NotFound:
            return False
        return True

    async def live_quotas(self, namespace: str | None) -> list[GPUQuota]:
        """The quotas of a namespace, or of all, as the API server has them now."""
        listing = await self._client.list(GPU_QUOTA, namespace, timeout=READ_TIMEOUT_S)
        return [GPUQuota.from_dict(obj) for obj in listing.items if _stays(obj)]


def pool_of(quota: Object) -> str:
    """The pool that a quota names."""
    return str(quota["spec"]["pool"])


def read_pool(obj: Object | None) -> GPUPool | None:
    """A pool as the API server has it; None without one, and for one of before today's rules, which
    must not keep anybody from mending it."""
    try:
        return None if obj is None else GPUPool.from_dict(obj)
    except ValidationError as error:
        log.warning("cannot read a pool", pool=obj and obj["metadata"]["name"], error=error)
        return None


def _stays(obj: Object) -> bool:
    return "deletionTimestamp" not in obj["metadata"]
