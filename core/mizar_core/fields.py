"""The types of the models' fields, with their bounds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from mizar_core.names import LABEL_MAX, PREFIX_MAX, is_dns_subdomain
from mizar_core.quantities import MAX_SCALING, parse_quantity, parse_scaling
from mizar_core.schema import immutable, rule, rules

DEVICES_MAX: Final = 256
CARDS_MAX: Final = 16

_RESOURCE_PART = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

INT_OR_STRING: Final[dict[str, Any]] = {"x-kubernetes-int-or-string": True}


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


def _resource(value: str) -> None:
    domain, _, name = value.partition("/")
    if not is_dns_subdomain(domain) or not _RESOURCE_PART.fullmatch(name):
        raise ValueError(f"'{value}' is no extended resource such as nvidia.com/gpu")
    if domain.endswith("kubernetes.io"):
        raise ValueError(f"'{value}' belongs to Kubernetes: name a device plugin's resource")


_QUANTITY_RULE = rule(
    "type(self) == int ? self > 0"
    " : isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
    "is no amount of memory: write one above zero, such as 8Gi or 500Mi",
)
_SCALING_RULE = rule(
    r"string(self).matches('^[0-9]{1,2}([.][0-9]{1,4})?$')"
    f" && double(string(self)) > 0.0 && double(string(self)) <= {MAX_SCALING}.0",
    f'is no scaling: write a number above 0 and at most {MAX_SCALING}, such as "1" or "1.5"',
)
_RESOURCE_RULE = rule(
    "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')"
    " && !self.contains('kubernetes.io/')",
    "must be an extended resource with one slash, such as nvidia.com/gpu",
)
_PREFIX_RULES = rules(
    rule(
        "self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
        "([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)+$')",
        "resourcePrefix must be a DNS name with a dot, in lower case, such as mizar.share",
    ),
    rule(
        "!self.contains('kubernetes.io') && !self.startsWith('requests.')",
        "resourcePrefix must not contain kubernetes.io nor begin with requests.,"
        " which belong to Kubernetes: use a DNS name of your own",
    ),
    immutable("resourcePrefix", "make another GPUPool with the new prefix and move quotas to it"),
)

Count = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Devices = Annotated[int, Field(strict=True, ge=1, le=DEVICES_MAX)]
Cards = Annotated[int, Field(strict=True, ge=1, le=CARDS_MAX)]
Seconds = Annotated[int, Field(strict=True, ge=0, le=7 * 24 * 3600)]
Text = Annotated[str, StringConstraints(strict=True, max_length=253)]
Name = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=253)]
LabelText = Annotated[str, StringConstraints(strict=True, max_length=LABEL_MAX)]
LabelName = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=LABEL_MAX)]
LabelMap = Annotated[dict[str, LabelText], Field(max_length=64)]

Quantity = Annotated[
    str,
    BeforeValidator(_text),
    StringConstraints(strict=True, min_length=1, max_length=32),
    _checked(_positive),
    Field(json_schema_extra=rules(_QUANTITY_RULE, **INT_OR_STRING)),
]
Scaling = Annotated[
    str,
    BeforeValidator(_text),
    StringConstraints(strict=True, min_length=1, max_length=8),
    _checked(parse_scaling),
    Field(json_schema_extra=rules(_SCALING_RULE, **INT_OR_STRING)),
]
Prefix = Annotated[
    str,
    StringConstraints(strict=True, min_length=3, max_length=PREFIX_MAX),
    _checked(_prefix),
    Field(json_schema_extra=_PREFIX_RULES),
]
ResourceName = Annotated[
    str,
    StringConstraints(strict=True, min_length=3, max_length=253),
    _checked(_resource),
    Field(json_schema_extra=rules(_RESOURCE_RULE)),
]
