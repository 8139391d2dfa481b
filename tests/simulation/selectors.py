"""Label and field selectors, as far as the operator uses them."""

from __future__ import annotations

import re
from collections.abc import Callable

from mizar_kube.kinds import Object

Selector = Callable[[Object], bool]

_TERM = re.compile(r"(?P<not>!?)(?P<key>[^=!, ]+)(?:(?P<op>!?==?)(?P<value>[^,]*))?$")


def selector(labels: str, fields: str) -> Selector:
    """Whether an object matches both; ValueError for what is not understood."""
    wanted_labels = [_term(one) for one in labels.split(",") if one]
    wanted_fields = [_term(one) for one in fields.split(",") if one]

    def matches(obj: Object) -> bool:
        found = obj["metadata"].get("labels") or {}
        return all(_holds(found.get(key), op, value) for key, op, value in wanted_labels) and all(
            _holds(_field(obj, key), op, value) for key, op, value in wanted_fields
        )

    return matches


def _term(text: str) -> tuple[str, str, str]:
    found = _TERM.match(text)
    if found is None:
        raise ValueError(f"what does the selector {text!r} mean?")
    operator = {"": "exists", "=": "=", "==": "=", "!=": "!="}[found["op"] or ""]
    return found["key"], "absent" if found["not"] else operator, found["value"] or ""


def _holds(value: str | None, operator: str, wanted: str) -> bool:
    if operator in ("exists", "absent"):
        return (value is not None) == (operator == "exists")
    return (value == wanted) == (operator == "=")


def _field(obj: Object, path: str) -> str:
    for step in path.split("."):
        obj = obj.get(step) or {}
    return str(obj) if obj else ""
