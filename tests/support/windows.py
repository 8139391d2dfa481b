"""Reads the windows that the shim is given."""

from mizar_core.time_grants import WINDOW_BITS, WINDOW_VALID, Window

_MASK = (1 << WINDOW_BITS) - 1


def window_of(word: int) -> Window | None:
    """What a word says; None for "at any time", and for a word that says nothing."""
    window = Window(word & _MASK, word >> WINDOW_BITS & _MASK, word >> 2 * WINDOW_BITS & _MASK)
    valid = word >> 3 * WINDOW_BITS == WINDOW_VALID >> 3 * WINDOW_BITS
    return window if valid and window.start + window.length <= window.period else None
