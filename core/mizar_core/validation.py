"""Validation of quotas and pools against each other, for the webhook and the operator.

The API server itself refuses an object that is wrong on its own (see `schema`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mizar_core.models import (
    GPUPool,
    GPUPoolSpec,
    GPUQuota,
    ProfileQuota,
    default_quota_spec,
    isolation_of,
)
from mizar_core.names import tenant_of, tenant_problem


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of one field, with a sentence that says what to do."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def check_quota_against_pool(quota: GPUQuota, pool: GPUPool) -> list[Problem]:
    """The problems of a quota with its pool; empty if there are none."""
    return [
        *_check_namespace(quota, pool),
        *_check_profiles(quota, pool),
        *_check_ceiling(quota, pool),
        *_check_isolation(quota, pool),
    ]


def check_quota_among(
    quota: GPUQuota, others: Iterable[GPUQuota], pools: Mapping[str, GPUPool]
) -> list[Problem]:
    """A problem for each profile whose resource another quota of the same namespace already
    offers."""
    rivals = [other for other in others if _same_resources(quota, other, pools)]
    return [
        Problem(
            f"spec.profiles[{at}].devices",
            f"the quota '{other.metadata.name}' of this namespace already offers"
            f" gpu.{wanted.devices} of pool '{other.spec.pool}': change that quota instead",
        )
        for at, wanted in enumerate(quota.spec.profiles)
        for other in sorted(rivals, key=lambda one: one.metadata.name)
        if other.spec.profile(wanted.devices)
    ]


def check_pool_among(pool: GPUPool, others: Iterable[GPUPool]) -> list[Problem]:
    """A problem for each pool whose resource names could be mixed up with this pool's.

    Two PerNamespace pools may have one prefix, since `check_quota_among` keeps them apart.
    """
    return [
        Problem(
            "spec.resourcePrefix",
            f"'{pool.spec.resource_prefix}' would be mixed up with '{other.spec.resource_prefix}'"
            f" of pool '{other.metadata.name}': give each pool a different resourcePrefix",
        )
        for other in sorted(others, key=lambda one: one.metadata.name)
        if other.metadata.name != pool.metadata.name and _same_names(pool.spec, other.spec)
    ]


def check_default_quota(pool: GPUPool) -> list[Problem]:
    """The problems of the pool's default quota with the pool itself."""
    spec = default_quota_spec(pool)
    if spec is None:
        return []
    quota = GPUQuota(spec=spec)
    found = (*_check_profiles(quota, pool), *_check_ceiling(quota, pool))
    return [
        Problem(one.field.replace("spec.", "spec.defaultQuota.", 1), one.message)
        for one in (*found, *_check_isolation(quota, pool))
    ]


def check_aliases(
    pool: GPUPool,
    others: Iterable[GPUPool],
    permitted: Collection[str],
    known: Collection[str] = (),
) -> list[Problem]:
    """The problems of the names that the pool has for profiles and sizes, except those `known`
    before: those that the installation does not permit, and those that another pool has. Several
    pools may have a size of the same name, since a namespace's quota decides between them."""
    rest = [one for one in others if one.metadata.name != pool.metadata.name]
    aliases = {name: one.metadata.name for one in rest for name in one.spec.aliases}
    names = {name: one.metadata.name for one in rest for name in one.spec.names}
    fields = [
        *(
            (f"spec.profiles[{at}].alias", one.alias, names)
            for at, one in enumerate(pool.spec.profiles)
        ),
        *((f"spec.sizes[{at}].name", one.name, aliases) for at, one in enumerate(pool.spec.sizes)),
    ]
    return [
        Problem(field, problem)
        for field, name, taken in fields
        if name and name not in known and (problem := _name_problem(name, taken, permitted))
    ]


def _name_problem(name: str, taken: Mapping[str, str], permitted: Collection[str]) -> str:
    if name not in permitted:
        return (
            f"Mizar was installed without the name '{name}': add it to webhook.resourceNames of"
            " its chart first"
        )
    if name in taken:
        return f"pool '{taken[name]}' already uses the name '{name}': choose another one"
    return ""


def _same_resources(quota: GPUQuota, other: GPUQuota, pools: Mapping[str, GPUPool]) -> bool:
    mine, theirs = quota.metadata, other.metadata
    if mine.namespace != theirs.namespace or mine.name == theirs.name:
        return False
    prefixes = [
        pools[name].spec.resource_prefix if name in pools else name
        for name in (quota.spec.pool, other.spec.pool)
    ]
    return prefixes[0] == prefixes[1]


def _same_names(one: GPUPoolSpec, other: GPUPoolSpec) -> bool:
    if one.resource_prefix == other.resource_prefix:
        return "Shared" in (one.tenancy, other.tenancy)
    if one.tenancy == other.tenancy:
        return False
    shared, own = (one, other) if one.tenancy == "Shared" else (other, one)
    return tenant_of(shared.resource_prefix, own.resource_prefix) is not None


def _check_namespace(quota: GPUQuota, pool: GPUPool) -> list[Problem]:
    if pool.spec.tenancy == "Shared":
        return []
    problem = tenant_problem(quota.metadata.namespace or "")
    return [Problem("metadata.namespace", problem)] if problem else []


def _check_profiles(quota: GPUQuota, pool: GPUPool) -> list[Problem]:
    known = ", ".join(str(one.devices) for one in pool.spec.profiles)
    return [
        Problem(
            f"spec.profiles[{at}].devices",
            f"pool '{pool.metadata.name}' has no profile of {wanted.devices} devices:"
            f" choose among {known}, or add the profile to the pool",
        )
        for at, wanted in enumerate(quota.spec.profiles)
        if pool.spec.profile(wanted.devices) is None
    ]


def _check_ceiling(quota: GPUQuota, pool: GPUPool) -> list[Problem]:
    ceiling = quota.spec.max_cards
    if ceiling is None:
        return []
    warm = sum(one.min * _cards(one, pool) for one in quota.spec.profiles)
    if warm > ceiling:
        sentence = f"the profiles' min keep {warm} cards, more than maxCards {ceiling}"
        return [Problem("spec.maxCards", f"{sentence}: lower min or raise maxCards")]
    return [
        Problem(
            "spec.maxCards",
            f"{ceiling} cards are too few for a shadow pod of {one.devices} devices, which holds"
            f" {_cards(one, pool)}: raise maxCards or leave the profile out",
        )
        for one in quota.spec.profiles
        if one.max > 0 and _cards(one, pool) > ceiling
    ]


def _cards(wanted: ProfileQuota, pool: GPUPool) -> int:
    profile = pool.spec.profile(wanted.devices)
    return profile.cards if profile else 0


def _check_isolation(quota: GPUQuota, pool: GPUPool) -> list[Problem]:
    isolation = isolation_of(pool.spec, quota.spec)
    contradiction = isolation.contradiction or isolation.above(pool.spec.memory_scaling)
    if contradiction is None:
        return []
    return [
        Problem("spec.isolation", f"with what pool '{pool.metadata.name}' says, {contradiction}")
    ]
