"""Quantities as Kubernetes reads them, case by case."""

import pytest

from mizar_core.errors import QuantityRefused
from mizar_core.quantities import (
    parse_bytes,
    parse_quantity,
    parse_scaling,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1", 1),
        ("+1", 1),
        ("-1", -1),
        (7, 7),
        ("1k", 1000),
        ("1Ki", 1024),
        ("16Gi", 17179869184),
        ("1.5Gi", 1610612736),
        (".5Ki", 512),
        ("5.", 5),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e6", 12_000_000),
        ("1e-3", 1),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("100m", 1),
        ("1500m", 2),
        ("1u", 1),
        ("1n", 1),
        ("81559Mi", 85520809984),
    ],
)
def test_bytes(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Gi",
        "1 Gi",
        " 1",
        "1\n",
        "1GiB",
        "1gi",
        "1KI",
        "1K",
        "1ki",
        "0x10",
        "1e",
        "1e+",
        ".",
        "NaN",
        "inf",
        "1_000",
        "1,5",
        "--1",
        "1e999",
        "٣",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(QuantityRefused, match="write a number with Mi, Gi"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["1", "1.5", "0.0001", "16", "16.0", 2])
def test_scalings(text: str | int) -> None:
    assert 0 < parse_scaling(text) <= 16


@pytest.mark.parametrize("text", ["0", "0.0", "-1", "17", "16.1", "1e1", "1.", ".5", "abc", ""])
def test_other_scalings_are_refused(text: str) -> None:
    with pytest.raises(QuantityRefused, match="more than 0 and at most 16"):
        parse_scaling(text)
