"""Quantities, and what Kubernetes makes of the same text."""

from hypothesis import given
from hypothesis import strategies as st

from mizar_core.quantities import parse_bytes, parse_quantity

SUFFIXES = ["", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]


@given(st.decimals(0, 999, places=3), st.sampled_from(SUFFIXES))
def test_a_suffix_is_a_factor(number: object, suffix: str) -> None:
    unit = parse_quantity(f"1{suffix}")
    assert parse_quantity(f"{number:f}{suffix}") == parse_quantity(f"{number:f}") * unit


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(SUFFIXES))
def test_order_is_kept(one: int, other: int, suffix: str) -> None:
    assert (one <= other) == (parse_bytes(f"{one}{suffix}") <= parse_bytes(f"{other}{suffix}"))
