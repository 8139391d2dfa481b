"""Kubernetes quantities (`16Gi`, `500M`, `1e9`), the decimal strings of scalings, the unit of
compute, and counts in messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Final

from mizar_core.errors import QuantityRefused

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_BINARY: Final = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_DECIMAL_E: Final = {**_DECIMAL, "E": 18}
_NUMBER: Final = r"(?P<number>[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}))"
_QUANTITY = re.compile(
    _NUMBER + r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]?)|[eE](?P<exponent>[+-]?[0-9]{1,2}))"
)
_SCALING = re.compile(r"[0-9]{1,2}(?:\.[0-9]{1,4})?")

MAX_SCALING: Final = 16
"""The largest memoryScaling and coreScaling of a pool."""

COUNT_MAX: Final = 1_000_000
"""The largest count of devices, cards or pods in a status."""

WHOLE_CARD: Final = 10_000
"""The compute of one card, in basis points."""


def parse_quantity(text: str | int) -> Decimal:
    """The exact value of a quantity. Raises QuantityRefused if the text is not one."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise QuantityRefused(f"'{text}' is not a quantity: write a number with Mi, Gi, M or G")
    number = Decimal(match["number"])
    if match["exponent"] is not None:
        return number.scaleb(int(match["exponent"]))
    suffix = match["suffix"]
    return number * _BINARY[suffix] if suffix in _BINARY else number.scaleb(_DECIMAL_E[suffix])


def parse_bytes(text: str | int) -> int:
    """A quantity in whole bytes, a fraction rounded up as Kubernetes does. Raises
    QuantityRefused."""
    return int(parse_quantity(text).to_integral_value(ROUND_CEILING))


def parse_scaling(text: str | int) -> Decimal:
    """A scaling such as `1` or `1.5`: more than 0, at most 16, at most four decimals. Raises
    QuantityRefused if the text is not one."""
    if not _SCALING.fullmatch(str(text)) or not 0 < Decimal(str(text)) <= MAX_SCALING:
        raise QuantityRefused(
            f'\'{text}\' is not a scaling: write a number such as "1" or "1.5", '
            f"more than 0 and at most {MAX_SCALING}"
        )
    return Decimal(str(text))


def bounded(count: int) -> int:
    """The count, or COUNT_MAX if it is larger, as a status can hold it."""
    return min(count, COUNT_MAX)


def counted(count: int, noun: str) -> str:
    """A count with its noun, for messages: `1 card`, `2 cards`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def first_of(names: Sequence[str], most: int) -> str:
    """The first `most` names, for messages, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def binary(count: int) -> str:
    """Bytes for people: `20 GiB` where they are that many, else whole MiB, rounded down."""
    return f"{count >> 30} GiB" if count % (1 << 30) == 0 else f"{count >> 20} MiB"
