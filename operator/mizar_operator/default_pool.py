"""The pool that quotas name unless they say otherwise, made when the operator comes to lead.

Not by the chart: the webhook, which checks pools, does not answer yet when helm applies objects;
and a pool is its administrators' from then on, which no upgrade sets back.
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


async def ensure(client: KubeClient, spec: Object) -> None:
    """Have a pool of that name; one that is there stays as it is. Tries until it is answered."""
    delay = RETRY_FIRST_S
    while True:
        try:
            await client.create(default_pool(spec), field_manager=FIELD_MANAGER_OPERATOR)
            log.info("made the default pool", pool=DEFAULT_POOL)
            return
        except AlreadyExists:
            return
        except (Forbidden, Invalid) as refused:
            # A pool of others may be in its way, for good.
            log.warning("there is no default pool", pool=DEFAULT_POOL, error=refused)
            return
        except KubeError as error:
            log.info("the default pool must wait", pool=DEFAULT_POOL, error=error)
        await asyncio.sleep(delay)
        delay = min(2 * delay, RETRY_MOST_S)


def default_pool(spec: Object) -> Object:
    """The pool with this spec."""
    meta = {"name": DEFAULT_POOL}
    return {"apiVersion": API_VERSION, "kind": "GPUPool", "metadata": meta, "spec": spec}
