"""The base of all API models: camelCase in JSON, frozen in Python, times in whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """Base of every part of an API object.

    Unknown fields are dropped, not refused: a newer API server may send some. Numbers and
    strings are strict: `"2"` is no number, since the API server would not have let it through.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )

    @classmethod
    def from_dict(cls, body: Any) -> Self:
        """The model in JSON as the API server sends it (camelCase). Raises
        pydantic.ValidationError."""
        return cls.model_validate(body)

    def to_dict(self) -> dict[str, Any]:
        """The model as JSON for the API server: camelCase, without fields that are None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def changed(self, **fields: Any) -> Self:
        """A copy with some fields replaced (by their Python names), validated again."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**values, **fields})


def _to_seconds(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(microsecond=0)


def format_time(time: datetime) -> str:
    """The time as RFC 3339 text in UTC and whole seconds, as Kubernetes writes times."""
    return _to_seconds(time).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """The time, in UTC, in an RFC 3339 text. Raises ValueError if it is none or names no time
    zone."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"'{text}' names no time zone: write it as 2025-01-31T12:00:00Z")
    return time.astimezone(UTC)


Time = Annotated[
    AwareDatetime,
    AfterValidator(_to_seconds),
    PlainSerializer(format_time, return_type=str, when_used="json"),
    Field(json_schema_extra={"format": "date-time"}),
]
