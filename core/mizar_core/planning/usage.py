"""How much of each quota is used, and what it still allows."""

from __future__ import annotations

from collections import Counter

from mizar_core.planning.offers import Offer
from mizar_core.planning.snapshot import Key, ShadowView
from mizar_core.planning.stages import Stage
from mizar_core.planning.words import counted


class Tally:
    """Shadow pods per (quota, profile), and cards per quota."""

    def __init__(self) -> None:
        self.shadows: Counter[tuple[Key, int]] = Counter()
        self.cards: Counter[Key] = Counter()

    def copy(self) -> Tally:
        """One that counts on by itself."""
        made = Tally()
        made.shadows, made.cards = self.shadows.copy(), self.cards.copy()
        return made

    def add(self, shadow: ShadowView, by: int) -> None:
        """Count a shadow pod in (by=1) or out (by=-1)."""
        self.count(shadow.quota_key, shadow.devices, shadow.cards, by)

    def count(self, quota: Key, devices: int, cards: int, by: int = 1) -> None:
        """Count so many shadow pods of a profile in."""
        self.shadows[quota, devices] += by
        self.cards[quota] += by * cards

    def is_full(self, offer: Offer) -> bool:
        """Whether there are as many of the profile as the quota allows, whatever its cards."""
        return self.shadows[offer.shape] >= offer.limits.max

    def refusal(self, offer: Offer) -> str | None:
        """Why the quota does not allow one more of these; None if it does."""
        limits, ceiling = offer.limits, offer.quota.spec.max_cards
        if self.is_full(offer):
            return (
                f"quota {offer.key[1]} allows {counted(limits.max, 'shadow pod')} of profile "
                f"{limits.devices}"
            )
        if ceiling is not None and self.cards[offer.key] + offer.profile.cards > ceiling:
            return f"quota {offer.key[1]} allows {counted(ceiling, 'card')}"
        return None


class Usage:
    """`existing` counts every shadow pod there is; `live` those that are to stay.

    New ones must fit beside all that exist. A drain may be cancelled, and `min` is met, by what
    is live.
    """

    def __init__(self) -> None:
        self.existing = Tally()
        self.live = Tally()

    def add(self, shadow: ShadowView, stage: Stage, *, live: bool, by: int = 1) -> None:
        """Count a shadow pod in or out."""
        if stage is not Stage.GONE:
            self.existing.add(shadow, by)
        if live:
            self.live.add(shadow, by)
