"""Default quotas: a namespace without a GPUQuota gets a pool's default one as soon as a share pod
waits there for a profile that it allows. From then on, it is a GPUQuota like any other."""

from __future__ import annotations

from collections.abc import Iterator

from mizar_core.models import DefaultQuota, GPUPool
from mizar_core.names import parse_resource
from mizar_core.planning.actions import CreateQuota
from mizar_core.planning.draft import Draft
from mizar_core.planning.quotas import resource_of
from mizar_core.planning.snapshot import THE_QUOTA_ITSELF, ShareView


def grant_default_quotas(draft: Draft) -> None:
    """Plan a GPUQuota for each namespace that has none and that a pool has a default quota for."""
    for share in sorted(_without_quota(draft), key=lambda one: one.key):
        pool = pool_for(draft, share)
        if pool is not None and share.namespace not in draft.granted:
            key = share.namespace, pool.metadata.name
            if (key, THE_QUOTA_ITSELF) not in draft.refused:
                draft.grant(CreateQuota(key, pool.metadata.name))


def _without_quota(draft: Draft) -> Iterator[ShareView]:
    """Share pods that wait in namespaces without a quota. A quota that is being deleted still
    counts as one."""
    for resource in draft.resources():
        for share in draft.waiting(resource):
            if share.namespace not in draft.quotas_by_namespace:
                yield share


def pool_for(draft: Draft, share: ShareView) -> GPUPool | None:
    """The first pool, by name, whose default quota the share pod's namespace may have, and which
    allows what the pod requests; None if there is none."""
    found = (pool for pool, default in _offers(draft, share) if _may(draft, share, default))
    return next(found, None)


def why_no_default(draft: Draft, share: ShareView) -> str:
    """Why the share pod's namespace gets no default quota, as the end of a sentence; empty if no
    pool has one for what the pod requests."""
    for pool, default in _offers(draft, share):
        name = pool.metadata.name
        if message := draft.refused.get(((share.namespace, name), THE_QUOTA_ITSELF)):
            return f"; the API server refuses the default quota of pool {name}: {message}"
        if share.namespace in draft.namespaces and not _may(draft, share, default):
            return (
                f"; the default quota of pool {name} does not apply to it, by its namespaceSelector"
            )
    return ""


def _offers(draft: Draft, share: ShareView) -> Iterator[tuple[GPUPool, DefaultQuota]]:
    """The pools whose default quota allows what the share pod requests."""
    parsed = parse_resource(share.resource)
    devices = parsed.profile if parsed else 0
    for _, pool in sorted(draft.pools.items()):
        default = pool.spec.default_quota
        if default is None or resource_of(pool.spec, share.namespace, devices) != share.resource:
            continue
        if pool.spec.profile(devices) and any(one.devices == devices for one in default.profiles):
            yield pool, default


def _may(draft: Draft, share: ShareView, default: DefaultQuota) -> bool:
    labels = draft.namespaces.get(share.namespace)
    return labels is not None and default.namespace_selector.matches(labels)
