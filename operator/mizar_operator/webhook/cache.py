"""The webhook's cache of pools and quotas, which informers keep current, and its live reads of
them.

Until the cache is filled, reviewer.py raises NotReady for pods and templates, and server.py answers
them with status 503.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.names import PHYSICAL_RESOURCE
from mizar_kube.client import KubeClient
from mizar_kube.errors import NotFound
from mizar_kube.informer import Informer, Timing, Watched
from mizar_kube.kinds import GPU_POOL, GPU_QUOTA, Kind, Object, Ref
from mizar_kube.logs import get_logger
from mizar_kube.store import Key, key_of
from mizar_operator.webhook.resource_names import VisiblePools
from mizar_operator.webhook.spot_review import Borrower

log = get_logger(__name__)

ASK_AGAIN_S = 5.0
"""Most seconds between two requests to an API server that does not answer. They are few: a webhook
that starts at such a time reviews no pods until it has its copies and its certificate."""
READ_TIMEOUT_S = 2.0
"""Timeout of a live read, in seconds: the API server gives up its own request after a few."""


@dataclass(frozen=True)
class QuotaCopy:
    """The parts of a quota that admission needs: its pool, and how many cards its namespace may
    borrow."""

    pool: str
    spot_max: int


@dataclass(frozen=True)
class QuotasRead:
    """Quotas as the API server has them, and the (namespace, name) of those that this version
    cannot read."""

    quotas: tuple[GPUQuota, ...]
    unreadable: tuple[Key, ...] = ()


class Cache:
    """Copies of all pools and quotas. `tasks()` must run for them to stay current; `clock` counts
    seconds."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        timing = Timing(max_delay=ASK_AGAIN_S)
        self._pools: Informer[GPUPool] = Informer(
            client, Watched(GPU_POOL), GPUPool.from_dict, timing
        )
        self._quotas: Informer[QuotaCopy] = Informer(client, Watched(GPU_QUOTA), quota_copy, timing)
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """The informers that hold the copies, for health probes."""
        return self._pools, self._quotas

    @property
    def synced(self) -> bool:
        """Whether every informer has listed its kind once."""
        return all(one.synced.is_set() for one in self.informers)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """The tasks that keep the copies current."""
        return [one.run() for one in self.informers]

    def pools(self, namespace: str, names: Iterable[str] = ()) -> VisiblePools:
        """All pools as the namespace sees them, from the copies. `names`: as of VisiblePools."""
        own = [quota.pool for quota in self._quotas_of(namespace)]
        unreadable = (name for _, name in self._pools.unreadable)
        return VisiblePools(self._pools.values(), namespace, own, names, unreadable)

    def borrower(self, namespace: str, names: Iterable[str] = ()) -> Borrower:
        """How many cards the namespace may borrow, from the copies. `names`: as of VisiblePools."""
        most = sum(quota.spot_max for quota in self._quotas_of(namespace))
        whole_cards = {pool.spec.physical_resource for pool in self._pools.values()}
        return Borrower(namespace, most, whole_cards | {PHYSICAL_RESOURCE, *names})

    def _quotas_of(self, namespace: str) -> list[QuotaCopy]:
        return [quota for (where, _), quota in self._quotas.items() if where == namespace]

    async def refresh(self, asked_at: float) -> None:
        """Read all pools and quotas from the API server, unless that was done after `asked_at`.

        The watch brings changes within milliseconds, but a pod that is made right after its pool
        can be faster. Raises KubeError.
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
        """The time to pass to `refresh`, in seconds of its clock."""
        return self._clock()

    async def read_pools(self) -> list[GPUPool]:
        """All pools as the API server has them now. Raises KubeError."""
        listing = await self._client.list(GPU_POOL, timeout=READ_TIMEOUT_S)
        pools = [pool_or_none(obj) for obj in listing.items if _stays(obj)]
        return [pool for pool in pools if pool is not None]

    async def find(self, kind: Kind, name: str) -> Object | None:
        """The cluster-wide object of that kind and name as the API server has it now; None if there
        is none. Raises KubeError."""
        try:
            return await self._client.get(Ref(kind, name), timeout=READ_TIMEOUT_S)
        except NotFound:
            return None

    async def read_quotas(self, namespace: str | None) -> QuotasRead:
        """The quotas of a namespace, or of all, as the API server has them now. Raises
        KubeError."""
        listing = await self._client.list(GPU_QUOTA, namespace, timeout=READ_TIMEOUT_S)
        staying = {key_of(obj): quota_or_none(obj) for obj in listing.items if _stays(obj)}
        return QuotasRead(
            tuple(quota for quota in staying.values() if quota is not None),
            tuple(sorted(key for key, quota in staying.items() if quota is None)),
        )


def quota_copy(quota: Object) -> QuotaCopy:
    """The copy of a quota."""
    spec = quota["spec"]
    return QuotaCopy(str(spec["pool"]), int((spec.get("spot") or {}).get("max") or 0))


def pool_or_none(obj: Object | None) -> GPUPool | None:
    """The pool in an object of the API server; None without an object, and for one that was stored
    under older rules, since its invalid fields must not prevent its repair."""
    try:
        return None if obj is None else GPUPool.from_dict(obj)
    except ValidationError as error:
        log.warning("cannot read a pool", pool=obj and obj["metadata"]["name"], error=error)
        return None


def quota_or_none(obj: Object) -> GPUQuota | None:
    """The quota in an object of the API server; None for one that was stored under other rules than
    this version's, which must not prevent its repair, nor changes of anything else."""
    try:
        return GPUQuota.from_dict(obj)
    except ValidationError as error:
        namespace, name = key_of(obj)
        log.warning("cannot read a quota", namespace=namespace, quota=name, error=error)
        return None


def _stays(obj: Object) -> bool:
    return "deletionTimestamp" not in obj["metadata"]
