"""How many shadow pods of a profile a namespace may have."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from mizar_core.field_types import Devices
from mizar_core.model_base import Model
from mizar_core.schema import rule_about, rules

ShadowCount = Annotated[int, Field(strict=True, ge=0, le=1000)]

_ORDERED = rule_about(
    "self.min <= self.max",
    "min %d is more than max %d: lower min or raise max",
    "self.min",
    "self.max",
)


class ProfileQuota(Model):
    """How many shadow pods of one profile the namespace may have."""

    model_config = ConfigDict(json_schema_extra=rules(_ORDERED))

    devices: Devices
    """The profile, by its number of devices; the pool must have it."""

    min: ShadowCount = 0
    """Shadow pods that are kept, even while they are idle; none by default."""

    max: ShadowCount
    """Shadow pods that may exist at the same time."""

    @model_validator(mode="after")
    def _ordered(self) -> ProfileQuota:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self
