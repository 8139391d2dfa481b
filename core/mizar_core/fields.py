"""The types of the models' fields, with their bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from mizar_core.names import LABEL_MAX, PREFIX_MAX, is_dns_subdomain
from mizar_core.quantities import parse_quantity, parse_scaling

DEVICES_MAX: Final = 256
CARDS_MAX: Final = 16

INT_OR_STRING: Final = {"x-kubernetes-int-or-string": True}


def _text(value: Any) -> Any:
    """A number that a person wrote without quotes, as the string that it stands for."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _checked(check: Callable[[str], object]) -> AfterValidator:
    def run(value: str) -> str:
        check(value)
        return value

    return AfterValidator(run)


def _positive(value: str) -> None:
    if parse_quantity(value) <= 0:
        raise ValueError(f"'{value}' must be more than 0")


def _prefix(value: str) -> None:
    if not is_dns_subdomain(value) or "." not in value:
        raise ValueError(f"'{value}' is no DNS name such as mizar.share")
    if "kubernetes.io" in value or value.startswith("requests."):
        raise ValueError(f"'{value}' belongs to Kubernetes: use a DNS name of your own")


Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Devices = Annotated[int, Field(strict=True, ge=1, le=DEVICES_MAX)]
Cards = Annotated[int, Field(strict=True, ge=1, le=CARDS_MAX)]
Seconds = Annotated[int, Field(strict=True, ge=0, le=7 * 24 * 3600)]
Text = Annotated[str, StringConstraints(strict=True, max_length=253)]
Name = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=253)]
LabelText = Annotated[str, StringConstraints(strict=True, max_length=LABEL_MAX)]
LabelName = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=LABEL_MAX)]
LabelMap = Annotated[dict[str, str], Field(max_length=64)]

Quantity = Annotated[
    str,
    BeforeValidator(_text),
    StringConstraints(strict=True, min_length=1, max_length=32),
    _checked(_positive),
    Field(json_schema_extra=INT_OR_STRING),
]
Scaling = Annotated[
    str,
    BeforeValidator(_text),
    StringConstraints(strict=True, min_length=1, max_length=8),
    _checked(parse_scaling),
    Field(json_schema_extra=INT_OR_STRING),
]
Prefix = Annotated[
    str, StringConstraints(strict=True, min_length=3, max_length=PREFIX_MAX), _checked(_prefix)
]
