"""Surplus: shadow pods in use beyond what their quota allows. They are closed to new users, so that
usage eventually falls below a lowered quota, however often its tenant's pods come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from mizar_core.models import GPUQuota
from mizar_core.planning.draft import Draft
from mizar_core.planning.quotas import ShadowCount
from mizar_core.planning.snapshot import Key, ShadowView, quota_key


def surplus_in_use(draft: Draft, is_closed: Callable[[ShadowView], bool]) -> frozenset[Key]:
    """The shadow pods in use without which their quotas would not be overdrawn: first those that
    are closed already, so that the choice stays, then those with the fewest users, the youngest
    first. Unused ones are retired instead."""
    found, live = set[Key](), draft.usage.live
    for quota in overdrawn(draft.active_quotas.values(), live):
        key = quota_key(quota)
        used = [one for one in draft.of_quota(key) if one.held and draft.is_live(one)]
        order = sorted(used, key=lambda one: _dispensable(one, is_closed(one)))
        found |= _chosen(order, _profiles_over(quota, live), _cards_over(quota, live))
    return frozenset(found)


def overdrawn(quotas: Iterable[GPUQuota], count: ShadowCount) -> list[GPUQuota]:
    """Those of the quotas that do not allow as many shadow pods or cards as are counted, by
    namespace and name."""
    found = (one for one in quotas if _cards_over(one, count) > 0 or _has_profile_over(one, count))
    return sorted(found, key=quota_key)


def _has_profile_over(quota: GPUQuota, count: ShadowCount) -> bool:
    return any(over > 0 for over in _profiles_over(quota, count).values())


def _dispensable(shadow: ShadowView, closed: bool) -> tuple[bool, int, int, str]:
    return not closed, len(shadow.holders), -shadow.sequence, shadow.name


def _profiles_over(quota: GPUQuota, count: ShadowCount) -> Counter[int]:
    """How many shadow pods of each profile are too many; 0 or less where none are."""
    limits = {one.devices: one.max for one in quota.spec.profiles}
    found = count.shadows(quota_key(quota))
    return Counter({devices: n - limits.get(devices, 0) for devices, n in found.items()})


def _cards_over(quota: GPUQuota, count: ShadowCount) -> int:
    ceiling = quota.spec.max_cards
    return 0 if ceiling is None else count.cards[quota_key(quota)] - ceiling


def _chosen(order: Sequence[ShadowView], over: Counter[int], cards: int) -> set[Key]:
    chosen = set[Key]()
    for shadow in order:
        if over[shadow.devices] > 0:
            over[shadow.devices] -= 1
            cards -= shadow.cards
            chosen.add(shadow.key)
    for shadow in order:
        if cards > 0 and shadow.key not in chosen:
            cards -= shadow.cards
            chosen.add(shadow.key)
    return chosen


def is_too_many(shadow: ShadowView, quota: GPUQuota, count: ShadowCount) -> bool:
    """Whether the quota does not allow as many shadow pods of this profile, or cards, as are
    counted."""
    return _profiles_over(quota, count)[shadow.devices] > 0 or _cards_over(quota, count) > 0
