"""Creates the default pool, which quotas name unless they say otherwise. Only the leader does so.

The chart cannot create it: the webhook, which checks pools, does not answer yet when helm applies
objects. And once the pool exists it belongs to its administrators, so no upgrade may reset it.
"""

from __future__ import annotations

import asyncio

from mizar_core.names import API_VERSION, DEFAULT_POOL, FIELD_MANAGER_OPERATOR
from mizar_kube.client import KubeClient
from mizar_kube.errors import AlreadyExists, Forbidden, Invalid, KubeError
from mizar_kube.kinds import Object
from mizar_kube.logs import get_logger

log = get_logger(__name__)

RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0
"""Seconds between tries: at first, and at most."""


async def ensure(client: KubeClient, spec: Object) -> None:
    """Create the default pool with this spec unless there is one. Tries until the API server has
    created it, has one already, or refuses it."""
    delay = RETRY_FIRST_S
    while True:
        try:
            await client.create(default_pool(spec), field_manager=FIELD_MANAGER_OPERATOR)
            log.info("default pool created", pool=DEFAULT_POOL)
            return
        except AlreadyExists:
            return
        except (Forbidden, Invalid) as refused:
            # Another pool may conflict with it, permanently.
            log.warning("the default pool is refused", pool=DEFAULT_POOL, error=refused)
            return
        except KubeError as error:
            log.info("the default pool could not be created", pool=DEFAULT_POOL, error=error)
        await asyncio.sleep(delay)
        delay = min(2 * delay, RETRY_MOST_S)


def default_pool(spec: Object) -> Object:
    """The manifest of the default pool with this spec."""
    meta = {"name": DEFAULT_POOL}
    return {"apiVersion": API_VERSION, "kind": "GPUPool", "metadata": meta, "spec": spec}
