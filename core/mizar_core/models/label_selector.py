"""Selectors of labels, by Kubernetes' own rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from mizar_core.field_types import LabelText, Name, NamespaceLabels
from mizar_core.model_base import Model
from mizar_core.names import LABEL_VALUE, QUALIFIED_NAME, is_label_value, is_qualified_name
from mizar_core.schema import LIST_ATOMIC, rule, rules

BAD_KEY = "key must be a label key, such as kubernetes.io/metadata.name"
BAD_VALUE = "values must be label values: letters and digits, with -, _ and . between them"
VALUES = "with operator In or NotIn there must be values, with Exists or DoesNotExist none"

_HAS_VALUES = "has(self.values) && self.values.size() > 0"
_RULES = (
    rule(f"self.key.matches('^{QUALIFIED_NAME}$')", BAD_KEY),
    rule(f"!has(self.values) || self.values.all(v, v.matches('^{LABEL_VALUE}$'))", BAD_VALUE),
    rule(f"(self.operator in ['In', 'NotIn']) == ({_HAS_VALUES})", VALUES),
)


class LabelRequirement(Model):
    """A requirement on one label, as in Kubernetes' selectors."""

    model_config = ConfigDict(json_schema_extra=rules(*_RULES))

    key: Name
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[
        tuple[LabelText, ...], Field(max_length=64, json_schema_extra=LIST_ATOMIC)
    ] = ()

    @model_validator(mode="after")
    def _sound(self) -> LabelRequirement:
        for wrong, sentence in (
            (not is_qualified_name(self.key), BAD_KEY),
            (not all(map(is_label_value, self.values)), BAD_VALUE),
            ((self.operator in ("In", "NotIn")) != bool(self.values), VALUES),
        ):
            if wrong:
                raise ValueError(sentence)
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets the requirement. An object without the label
        meets NotIn, as in Kubernetes."""
        if self.operator in ("Exists", "DoesNotExist"):
            return (self.key in labels) == (self.operator == "Exists")
        return (labels.get(self.key) in self.values) == (self.operator == "In")


class LabelSelector(Model):
    """Labels that an object must have, all of them; without any, every object does."""

    match_labels: NamespaceLabels = Field(default_factory=dict)
    """Labels with their values."""

    match_expressions: Annotated[
        tuple[LabelRequirement, ...], Field(max_length=32, json_schema_extra=LIST_ATOMIC)
    ] = ()
    """Requirements on labels."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return self.match_labels.items() <= labels.items() and all(
            one.matches(labels) for one in self.match_expressions
        )
