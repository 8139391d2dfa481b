"""Tolerations of shadow pods, by Kubernetes' own rules.

Kubernetes would refuse every shadow pod whose toleration breaks a rule, so the pool is refused
instead.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from mizar_core.field_types import Text
from mizar_core.model_base import Model
from mizar_core.names import LABEL_VALUE, QUALIFIED_NAME, is_label_value, is_qualified_name
from mizar_core.schema import rule, rules

NO_KEY = "a toleration without a key must have operator Exists: it then tolerates every taint"
BAD_KEY = "key must be a taint key, such as nvidia.com/gpu"
NO_VALUE = "with operator Exists there must be no value: leave it out, or write operator Equal"
BAD_VALUE = "value must be a taint value: letters and digits, with -, _ and . between them"
NO_SECONDS = "tolerationSeconds needs effect NoExecute: set the effect or leave the seconds out"
_RULES = (
    rule(
        "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
        NO_KEY,
    ),
    rule(f"!has(self.key) || self.key == '' || self.key.matches('^{QUALIFIED_NAME}$')", BAD_KEY),
    rule(
        "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
        NO_VALUE,
    ),
    rule(f"!has(self.value) || self.value.matches('^{LABEL_VALUE}$')", BAD_VALUE),
    rule(
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        NO_SECONDS,
    ),
)


class Toleration(Model):
    """A taint that the pool's shadow pods tolerate, as in a pod's spec."""

    model_config = ConfigDict(json_schema_extra=rules(*_RULES))

    key: Text | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: Text | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(strict=True)] | None = None

    @model_validator(mode="after")
    def _sound(self) -> Toleration:
        for wrong, sentence in (
            (not self.key and self.operator != "Exists", NO_KEY),
            (self.key and not is_qualified_name(self.key), BAD_KEY),
            (self.operator == "Exists" and self.value, NO_VALUE),
            (not is_label_value(self.value or ""), BAD_VALUE),
            (self.toleration_seconds is not None and self.effect != "NoExecute", NO_SECONDS),
        ):
            if wrong:
                raise ValueError(sentence)
        return self
