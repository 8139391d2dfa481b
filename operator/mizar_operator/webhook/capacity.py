"""Whether a GPUQuota fits its pool, and a GPUPool its quotas. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.quantities import parse_scaling
from mizar_core.validation import (
    Problem,
    check_pool_among,
    check_quota_against_pool,
    check_quota_among,
)


@dataclass(frozen=True)
class Findings:
    """Sentences: problems refuse the object, warnings are shown to the user."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def review_quota(quota: GPUQuota, pools: Iterable[GPUPool], others: Iterable[GPUQuota]) -> Findings:
    """`pools` are all that there are, `others` the quotas of the quota's namespace."""
    named = {pool.metadata.name: pool for pool in pools}
    among = check_quota_among(quota, others, named)
    pool = named.get(quota.spec.pool)
    if pool is None:
        missing = f"GPUPool '{quota.spec.pool}' doesn't exist yet: nothing happens until it does"
        return Findings(_sentences(among), (missing,))
    return Findings(_sentences([*check_quota_against_pool(quota, pool), *among]))


def review_pool(
    pool: GPUPool, old: GPUPool | None, pools: Iterable[GPUPool], quotas: Iterable[GPUQuota]
) -> Findings:
    """`old` is the pool before an update, `quotas` all that there are.

    A change is refused if it breaks a quota that was right before.
    """
    broken = [
        sentence
        for quota in sorted(quotas, key=_place)
        if quota.spec.pool == pool.metadata.name
        for sentence in _newly_broken(quota, pool, old)
    ]
    return Findings((*_sentences(check_pool_among(pool, pools)), *broken), _idle(pool))


def _idle(pool: GPUPool) -> tuple[str, ...]:
    """What the pool says and nobody heeds, unless a quota asks for it."""
    if pool.spec.isolation.compute != "None" or parse_scaling(pool.spec.core_scaling) == 1:
        return ()
    return ("coreScaling changes nothing while isolation.compute is None, as it is in the pool",)


def _newly_broken(quota: GPUQuota, pool: GPUPool, old: GPUPool | None) -> list[str]:
    before = set(check_quota_against_pool(quota, old)) if old else set()
    place = "/".join(_place(quota))
    return [
        f"GPUQuota {place} would not fit any more ({problem}): change that quota first"
        for problem in check_quota_against_pool(quota, pool)
        if old is not None and problem not in before
    ]


def _place(quota: GPUQuota) -> tuple[str, str]:
    return quota.metadata.namespace or "", quota.metadata.name


def _sentences(problems: Iterable[Problem]) -> tuple[str, ...]:
    return tuple(map(str, problems))
