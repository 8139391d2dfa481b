"""Surplus: shadow pods in use beyond what their quota allows. They are closed to new users, so that
usage eventually falls below a lowered quota, however often its tenant's pods come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from mizar_core.planning.draft import Draft
from mizar_core.planning.snapshot import Key, ShadowView


def surplus_in_use(draft: Draft, is_closed: Callable[[ShadowView], bool]) -> frozenset[Key]:
    """The shadow pods in use without which their quotas would not be overdrawn: first those that
    are closed already, so that the choice stays, then those with the fewest users, the youngest
    first. Unused ones are retired instead."""
    found: set[Key] = set()
    for quota in draft.active_quotas:
        over, cards = _profiles_over(draft, quota), _cards_over(draft, quota)
        if cards > 0 or any(one > 0 for one in over.values()):
            used = [one for one in draft.of_quota(quota) if one.held and draft.is_live(one)]
            order = sorted(used, key=lambda one: _dispensable(one, is_closed(one)))
            found |= _chosen(order, over, cards)
    return frozenset(found)


def _dispensable(shadow: ShadowView, closed: bool) -> tuple[bool, int, int, str]:
    return not closed, len(shadow.holders), -shadow.sequence, shadow.name


def _profiles_over(draft: Draft, quota: Key) -> Counter[int]:
    """How many shadow pods of each profile are too many; 0 or less where none are."""
    limits = {one.devices: one.max for one in draft.active_quotas[quota].spec.profiles}
    live = draft.usage.live.shadows
    profiles = {one.devices for one in draft.of_quota(quota)}
    return Counter({one: live[quota, one] - limits.get(one, 0) for one in profiles})


def _cards_over(draft: Draft, quota: Key) -> int:
    ceiling = draft.active_quotas[quota].spec.max_cards
    return 0 if ceiling is None else draft.usage.live.cards[quota] - ceiling


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
