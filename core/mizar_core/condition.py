"""Conditions, as in every Kubernetes API: their transition time changes only with their status."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field

from mizar_core.model_base import Model, Time

Status = Literal["True", "False", "Unknown"]

MESSAGE_MAX: Final = 4096
"""The most characters of a condition's message."""


class Condition(Model):
    """One observation about an object."""

    type: Annotated[str, Field(strict=True, min_length=1, max_length=316)]
    status: Status
    reason: Annotated[str, Field(strict=True, min_length=1, max_length=256)]
    message: Annotated[str, Field(strict=True, max_length=MESSAGE_MAX)] = ""
    last_transition_time: Time


def find_condition(conditions: Iterable[Condition], type: str) -> Condition | None:
    """The condition of that type; None if the conditions have none."""
    return next((one for one in conditions if one.type == type), None)


def set_condition(
    conditions: Iterable[Condition],
    type: str,
    status: Status | bool,
    reason: str,
    message: str,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions, sorted by type, with the one of this type set. The message is cut off after
    MESSAGE_MAX characters.

    `last_transition_time` is `now` if the status changed, else what it was.
    """
    known = {one.type: one for one in conditions}
    wanted: Status = status if isinstance(status, str) else ("True" if status else "False")
    before = known.get(type)
    unchanged = before is not None and before.status == wanted
    known[type] = Condition(
        type=str(type),
        status=wanted,
        reason=str(reason),
        message=message[:MESSAGE_MAX],
        last_transition_time=before.last_transition_time if before and unchanged else now,
    )
    return tuple(known[key] for key in sorted(known))
