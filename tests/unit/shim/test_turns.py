"""Processes of a container on one card: shim/src/budget.c and turns.c, called as they are."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint64
from typing import Any

import pytest

from .slot import BUILD
from .test_bucket import FULL, MS, US, Terms, window

SPAN = 5_000 * MS


@pytest.mark.parametrize("piece", [200 * US, 1 * MS, 5 * MS])
@pytest.mark.parametrize(
    ("rate", "word"),
    [(5000, window(100_000, 0, 50_000)), (9500, window(100_000, 0, 95_000)), (9000, 0), (3000, 0)],
)
def test_two_that_always_have_work_share_what_the_container_has(
    layout: dict[str, Any], rate: int, word: int, piece: int
) -> None:
    library = ctypes.CDLL(str(BUILD / "tests" / "libpure.so"))
    did, waits = (c_uint64 * 2)(), (c_uint64 * 2)()
    terms = Terms(rate, word, 0, piece)
    library.pure_contend(byref(terms), c_uint64(piece), c_uint64(SPAN), did, waits)
    assert sum(did) == pytest.approx(SPAN * rate / FULL, rel=0.05)
    assert min(did) > 0.2 * sum(did)
    assert max(waits) < 200 * MS
