"""Names that mean a share and are none, such as mizar.share/gpu or mizar.share/gpu.02. Pure.

Kubernetes would take most of them for resources of somebody else, and the pod would wait for ever.
"""

import re
from collections.abc import Iterator

from mizar_core.names import DEFAULT_PREFIX, parse_resource, resource_name
from mizar_core.pod_requests import ResourceEntry, resource_entries
from mizar_operator.webhook.judged import PodSpec
from mizar_operator.webhook.pools import Pools, offered

_PROFILE = re.compile(r"v?gpus?[./_-]?0*([1-9][0-9]{0,3})", re.IGNORECASE)


def misspelt(pod: PodSpec, pools: Pools) -> Iterator[str]:
    """A sentence for each that an update has not left alone."""
    old = {entry.identity for entry in resource_entries(pod.old or {})}
    for entry in resource_entries(pod.spec):
        if entry.identity not in old and parse_resource(entry.key) is None:
            yield from _sentence(entry, pools)


def _sentence(entry: ResourceEntry, pools: Pools) -> Iterator[str]:
    for prefix in sorted({*pools.prefixes, DEFAULT_PREFIX}):
        rest = _below(entry.key, prefix)
        # Under a prefix of a pool's own, a company may offer things that are no GPUs.
        if rest and (prefix == DEFAULT_PREFIX or rest.lower().startswith("gpu")):
            instead = _instead(rest, prefix, pools)
            yield f"container '{entry.container}', {entry.key}: it names no profile: {instead}"


def _below(key: str, prefix: str) -> str:
    """What follows the prefix, with or without a tenant before it; empty if it is another."""
    match = re.fullmatch(rf"(?:[-a-z0-9]+\.)?{re.escape(prefix)}[./](.+)", key)
    return match[1] if match else ""


def _instead(rest: str, prefix: str, pools: Pools) -> str:
    match = pools.match(prefix, 0)
    if number := _PROFILE.fullmatch(rest):
        return f"write {resource_name(prefix, int(number[1]))}"
    if match is None:
        return f"ask for {prefix}/gpu.N, with the N of a profile of a GPUPool"
    return f"ask for one of {offered(match.pool)}"
