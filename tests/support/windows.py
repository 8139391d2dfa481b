"""Reading back what the shim is told of windows."""

from mizar_core.windows import BITS, VALID, Window

_MASK = (1 << BITS) - 1


def window_of(word: int) -> Window | None:
    """What a word says; None for "at any time", and for a word that says nothing."""
    window = Window(word & _MASK, word >> BITS & _MASK, word >> 2 * BITS & _MASK)
    valid = word >> 3 * BITS == VALID >> 3 * BITS
    return window if valid and window.start + window.length <= window.period else None
