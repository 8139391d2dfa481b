"""Evaluates observations of a card: how soon it became lendable, and for how much of its idle time
it was lent. Pure; times are seconds of CLOCK_MONOTONIC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Look:
    """The state of a card at a moment. `lendable`: the kubelet has its spot device as healthy.
    `lent`: a process other than the owner's has memory there."""

    at: float
    lendable: bool
    lent: bool


@dataclass(frozen=True)
class Sleep:
    """The time between an owner's last kernel and its next one, or the end of the measurement."""

    begun: float
    ended: float


def lendable_after(looks: Sequence[Look], begun: float) -> float | None:
    """Seconds from the moment at which the owner fell asleep until its card became lendable; None
    if it did not."""
    came = (after.at for before, after in pairwise(looks) if after.lendable > before.lendable)
    return next((at - begun for at in came if at >= begun), None)


def lent_seconds(looks: Sequence[Look], sleep: Sleep) -> float:
    """Seconds of the sleep in which the card was lent; it counts as lent between two looks if both
    found it lent."""
    return sum(
        max(0.0, min(after.at, sleep.ended) - max(before.at, sleep.begun))
        for before, after in pairwise(looks)
        if before.lent and after.lent
    )


def lent_percent(
    cards: Sequence[tuple[Sequence[Look], Sequence[Sleep]]], idle_after: float
) -> float:
    """Percent of the lendable time in which the cards were lent. That time is what their owners
    slept beyond `idle_after`. Raises ValueError if there was none."""
    lent = idle = 0.0
    for looks, sleeps in cards:
        for one in sleeps:
            rest = Sleep(one.begun + idle_after, one.ended)
            idle += max(0.0, rest.ended - rest.begun)
            lent += lent_seconds(looks, rest)
    if not idle:
        raise ValueError("no owner slept for long enough to lend its card")
    return 100 * lent / idle
