"""The types of the models' fields, with their bounds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from mizar_core.names import (
    DNS_SUBDOMAIN,
    EXTENDED_RESOURCE,
    FOREIGN_DOMAINS,
    LABEL_MAX,
    LABEL_VALUE,
    PHYSICAL_RESOURCE,
    PREFIX_MAX,
    QUALIFIED_NAME,
    WHOLE_CARDS,
    alias_problem,
    is_dns_label,
    is_dns_subdomain,
    is_foreign,
    is_label_value,
    is_qualified_name,
)
from mizar_core.quantities import COUNT_MAX, MAX_SCALING, parse_quantity, parse_scaling
from mizar_core.schema import Rule, immutable, is_scaling, rule, rules

DEVICES_MAX: Final = 256
"""The most virtual devices of a shadow pod, all of its cards together."""
CARDS_MAX: Final = 16
"""The most cards of a shadow pod."""

MEMORY_MIN: Final = 64 << 20
"""The least memory of a device, in bytes: a CUDA program's context alone takes more on any card."""

_TOO_LITTLE = "is too little memory for any CUDA program to start: write 64Mi or more"
_NO_NAME = "is not a valid object name: write lower case letters, digits, - and ."
_NO_NAMESPACE = "is not a valid namespace name: write lower case letters, digits and -"
_NO_NODE_LABEL = "is not valid on a node: write it as kubectl get nodes --show-labels prints it"
_NO_NAMESPACE_LABEL = (
    "is not valid on a namespace: write it as kubectl get namespaces --show-labels prints it"
)
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


def _enough(value: str) -> None:
    if parse_quantity(value) < MEMORY_MIN:
        raise ValueError(f"'{value}' {_TOO_LITTLE}")


def _prefix(value: str) -> None:
    if not is_dns_subdomain(value) or "." not in value:
        raise ValueError(f"'{value}' is not a DNS name such as mizar.share")
    if "kubernetes.io" in value or value.startswith("requests."):
        raise ValueError(f"'{value}' belongs to Kubernetes: use a DNS name of your own")
    if is_foreign(value):
        raise ValueError(f"'{value}' belongs to another device plugin: use a DNS name of your own")


def _resource(value: str) -> None:
    domain, _, name = value.partition("/")
    if not is_dns_subdomain(domain) or not _RESOURCE_PART.fullmatch(name):
        raise ValueError(f"'{value}' is not an extended resource such as nvidia.com/gpu")
    if domain.endswith("kubernetes.io") or domain.startswith("requests."):
        raise ValueError(f"'{value}' belongs to Kubernetes: name a device plugin's resource")


def _alias(value: str) -> None:
    if problem := alias_problem(value):
        raise ValueError(f"'{value}' {problem}: choose another name")


def _namespace(value: str) -> None:
    if not is_dns_label(value):
        raise ValueError(f"'{value}' {_NO_NAMESPACE}")


def _object_name(value: str) -> None:
    if not is_dns_subdomain(value):
        raise ValueError(f"'{value}' {_NO_NAME}")


def _labels(problem: str) -> AfterValidator:
    def run(labels: dict[str, str]) -> dict[str, str]:
        for key, value in labels.items():
            if not (is_qualified_name(key) and is_label_value(value)):
                raise ValueError(f"'{key}: {value}' {problem}")
        return labels

    return AfterValidator(run)


def _labels_rule(problem: str) -> Rule:
    return rule(
        f"self.all(k, k.matches('^{QUALIFIED_NAME}$') && self[k].matches('^{LABEL_VALUE}$'))",
        f"a label {problem}",
    )


_NAMESPACE_RULE = rule("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", _NO_NAMESPACE)
_OBJECT_RULE = rule(f"self.matches('^{DNS_SUBDOMAIN}$')", _NO_NAME)
# Kubernetes 1.30 estimates the cost of a rule on an int-or-string field by the largest possible
# request, whatever the maxLength: these two are just within its budget for a pool's 15 profiles.
_QUANTITY_RULE = rule(
    "type(self) in [int] ? self > 0"
    " : isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
    "is not an amount of memory: write one above zero, such as 8Gi or 500Mi",
)
_ENOUGH_RULE = rule(
    f"type(self) in [int] ? self <= 0 || self >= {MEMORY_MIN}"
    " : !isQuantity(self) || [quantity(self)].all(q, !q.isGreaterThan(quantity('0'))"
    f" || !q.isLessThan(quantity('{MEMORY_MIN}')))",
    _TOO_LITTLE,
)
_SCALING_RULE = rule(
    f"{is_scaling('self')}"
    f" && double(string(self)) > 0.0 && double(string(self)) <= {MAX_SCALING}.0",
    f'is not a scaling: write a number above 0 and at most {MAX_SCALING}, such as "1" or "1.5"',
)
_RESOURCE_RULE = rule(
    f"self.matches('^{EXTENDED_RESOURCE}$')"
    " && !self.contains('kubernetes.io/') && !self.startsWith('requests.')",
    "must be an extended resource with one slash, such as nvidia.com/gpu",
)
_PHYSICAL = immutable("physicalResource", "make another GPUPool and move quotas to it")
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
    rule(
        f"!{list(FOREIGN_DOMAINS)}.exists(d, self == d || self.endsWith('.' + d))",
        "is in the domain of another device plugin, whose resources would be mixed up with the"
        " pool's: use a DNS name of your own, such as mizar.share",
    ),
    immutable("resourcePrefix", "make another GPUPool with the new prefix and move quotas to it"),
)

_ALIAS_RULES = rules(
    rule(
        f"self.matches('^{EXTENDED_RESOURCE}$')"
        " && !self.contains('kubernetes.io') && !self.startsWith('requests.')",
        "must be an extended resource with one slash, such as nvidia.com/vgpu",
    ),
    rule(
        f"self != '{PHYSICAL_RESOURCE}' && !{list(WHOLE_CARDS)}.exists(w, self.startsWith(w))",
        "is NVIDIA's own name for whole cards or their instances: choose another name,"
        " such as nvidia.com/vgpu",
    ),
    rule(
        "!self.matches('/gpu[.][1-9][0-9]{0,3}$') && !self.startsWith('mizar.spot/')",
        "is a name that Mizar uses for other resources: choose another one",
    ),
)

Count = Annotated[int, Field(strict=True, ge=0, le=COUNT_MAX)]
Generation = Annotated[int, Field(strict=True, ge=0)]
"""An object's metadata.generation, which grows with every change of its spec, without bound."""
Devices = Annotated[int, Field(strict=True, ge=1, le=DEVICES_MAX)]
Cards = Annotated[int, Field(strict=True, ge=1, le=CARDS_MAX)]
Seconds = Annotated[int, Field(strict=True, ge=0, le=7 * 24 * 3600)]
Text = Annotated[str, StringConstraints(strict=True, max_length=253)]
Name = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=253)]
LabelText = Annotated[str, StringConstraints(strict=True, max_length=LABEL_MAX)]
LabelName = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=LABEL_MAX)]
NamespaceName = Annotated[
    str,
    StringConstraints(strict=True, min_length=1, max_length=LABEL_MAX),
    _checked(_namespace),
    Field(json_schema_extra=rules(_NAMESPACE_RULE)),
]
ObjectName = Annotated[
    str,
    StringConstraints(strict=True, min_length=1, max_length=253),
    _checked(_object_name),
    Field(json_schema_extra=rules(_OBJECT_RULE)),
]
NodeSelector = Annotated[
    dict[str, LabelText],
    Field(max_length=64, json_schema_extra=rules(_labels_rule(_NO_NODE_LABEL))),
    _labels(_NO_NODE_LABEL),
]
NamespaceLabels = Annotated[
    dict[str, LabelText],
    Field(max_length=64, json_schema_extra=rules(_labels_rule(_NO_NAMESPACE_LABEL))),
    _labels(_NO_NAMESPACE_LABEL),
]

Memory = Annotated[
    str,
    BeforeValidator(_text),
    StringConstraints(strict=True, min_length=1, max_length=32),
    _checked(_enough),
    Field(json_schema_extra=rules(_QUANTITY_RULE, _ENOUGH_RULE, **INT_OR_STRING)),
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
    Field(json_schema_extra=rules(_RESOURCE_RULE, _PHYSICAL)),
]
Alias = Annotated[
    str,
    StringConstraints(strict=True, min_length=3, max_length=253),
    _checked(_alias),
    Field(json_schema_extra=_ALIAS_RULES),
]
