"""The review of GPUQuotas and GPUPools: whether a quota fits its pool and a pool its quotas, and
whether a pool's numbers are written as Kubernetes accepts them. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.quantities import parse_scaling
from mizar_core.validation import (
    Problem,
    check_aliases,
    check_default_quota,
    check_pool_among,
    check_quota_against_pool,
    check_quota_among,
)

NAMED = 3
"""The most quotas that a warning names: API servers cut long warnings."""


@dataclass(frozen=True)
class Findings:
    """The sentences of a review: problems refuse the object, warnings are shown to the user."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def warn(self, *sentences: str) -> Findings:
        """These findings with further warnings."""
        return replace(self, warnings=(*self.warnings, *sentences))


def review_quota(quota: GPUQuota, pools: Iterable[GPUPool], others: Iterable[GPUQuota]) -> Findings:
    """The problems of a quota. `pools`: all pools of the cluster. `others`: the quotas of its
    namespace."""
    named = {pool.metadata.name: pool for pool in pools}
    among = check_quota_among(quota, others, named)
    pool = named.get(quota.spec.pool)
    if pool is None:
        missing = f"GPUPool '{quota.spec.pool}' doesn't exist yet: nothing happens until it does"
        return Findings(_sentences(among), (missing,))
    return Findings(_sentences([*check_quota_against_pool(quota, pool), *among]))


def review_pool(
    pool: GPUPool,
    old: GPUPool | None,
    pools: Sequence[GPUPool],
    quotas: Iterable[GPUQuota],
    names: Collection[str] = (),
) -> Findings:
    """The problems of a pool. `old`: the pool before an update. `pools`, `quotas`: all of the
    cluster. `names`: the aliases that pools may give to profiles.

    A change is refused if it breaks a quota that was right before.
    """
    broken = [
        sentence
        for quota in sorted(quotas, key=_name)
        if quota.spec.pool == pool.metadata.name
        for sentence in _newly_broken(quota, pool, old)
    ]
    wrong = [
        *check_pool_among(pool, pools),
        *_new_aliases(pool, old, pools, names),
        *check_default_quota(pool),
    ]
    return Findings((*_sentences(wrong), *broken), _unused_scaling(pool))


def unchecked(unreadable: Collection[tuple[str, str]]) -> list[str]:
    """A warning if there are quotas that this version cannot read, so that nothing was checked
    against them. `unreadable`: their namespaces and names."""
    if not unreadable:
        return []
    names = [f"{namespace}/{name}" for namespace, name in sorted(unreadable)]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return [
        f"this version of Mizar cannot read these GPUQuotas: {', '.join(names[:NAMED])}{more}; this"
        " change was not checked against them, and share pods that wait in their namespaces get no"
        " shadow pods until they are repaired"
    ]


def _new_aliases(
    pool: GPUPool, old: GPUPool | None, pools: Sequence[GPUPool], names: Collection[str]
) -> list[Problem]:
    """The problems of the aliases and sizes that the pool did not have before: the installation may
    have lost a name since, which must not prevent other changes, nor the removal of such names one
    by one."""
    return check_aliases(pool, pools, names, old.spec.names if old else ())


def _unused_scaling(pool: GPUPool) -> tuple[str, ...]:
    """A warning where the pool's coreScaling has no effect, unless a quota limits compute."""
    if pool.spec.isolation.compute != "None" or parse_scaling(pool.spec.core_scaling) == 1:
        return ()
    return ("coreScaling changes nothing while isolation.compute is None, as it is in the pool",)


def _newly_broken(quota: GPUQuota, pool: GPUPool, old: GPUPool | None) -> list[str]:
    """A sentence for each field of the quota that fits the old pool but not the new one. Fields are
    compared, not sentences: the sentence about a field that was wrong before may change, since it
    lists what the pool has."""
    if old is None:
        return []
    wrong_before = {problem.field for problem in check_quota_against_pool(quota, old)}
    place = "/".join(_name(quota))
    return [
        f"GPUQuota {place} would not fit any more ({problem}): change that quota first"
        for problem in check_quota_against_pool(quota, pool)
        if problem.field not in wrong_before
    ]


def _name(quota: GPUQuota) -> tuple[str, str]:
    return quota.metadata.namespace or "", quota.metadata.name


def _sentences(problems: Iterable[Problem]) -> tuple[str, ...]:
    return tuple(map(str, problems))


def unquoted_numbers(pool: dict[str, Any]) -> Iterator[str]:
    """A sentence for each field of a GPUPool whose value YAML reads as a number, true or false,
    since it has no quotes.

    Kubernetes' schemas know "whole number or text", but not "number or text", and refuse the rest
    with the name of a type. Mutating webhooks see the object before that.
    """
    spec = _map(pool.get("spec"))
    for field, example in (("memoryScaling", "1.5"), ("coreScaling", "1.5")):
        yield from _number(f"spec.{field}", spec.get(field), example)
    for at, profile in enumerate(_list(spec.get("profiles"))):
        yield from _number(f"spec.profiles[{at}].memory", _map(profile).get("memory"), "8Gi")
    yield from _number("spec.spot.reserve", _map(spec.get("spot")).get("reserve"), "1Gi")
    for field, value in _texts(spec):
        yield from _text(field, value)


def _texts(spec: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of a pool in which people write text that looks like something else: labels of
    nodes and namespaces, models, values of taints."""
    for key, value in _map(spec.get("nodeSelector")).items():
        yield f"spec.nodeSelector.{key}", value
    for at, value in enumerate(_list(spec.get("cardModels"))):
        yield f"spec.cardModels[{at}]", value
    for at, one in enumerate(_list(spec.get("tolerations"))):
        yield f"spec.tolerations[{at}].value", _map(one).get("value")
    selector = _map(_map(spec.get("defaultQuota")).get("namespaceSelector"))
    for key, value in _map(selector.get("matchLabels")).items():
        yield f"spec.defaultQuota.namespaceSelector.matchLabels.{key}", value


def _number(field: str, value: Any, example: str) -> Iterator[str]:
    if isinstance(value, bool):
        said = str(value).lower()
        yield f'{field}: {said} is not a number: write one in quotes, such as "{example}"'
    elif isinstance(value, float):
        yield f'{field}: write {value} in quotes, "{value}": Kubernetes accepts no such number here'


def _text(field: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool | int | float):
        said = json.dumps(value)
        yield f'{field}: write {said} in quotes, "{said}": Kubernetes accepts only text here'


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
