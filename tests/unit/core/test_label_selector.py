"""Selectors of labels, which select as Kubernetes' own do."""

from typing import Any

import pytest
from pydantic import ValidationError

from mizar_core.models.label_selector import LabelRequirement, LabelSelector

LABELS = {"gpu": "true", "team": "a"}


def one(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, True),
        ({"matchLabels": {"gpu": "true"}}, True),
        ({"matchLabels": {"gpu": "false"}}, False),
        ({"matchLabels": {"gpu": "true", "zone": "x"}}, False),
        ({"matchExpressions": [one("team", "In", "a", "b")]}, True),
        ({"matchExpressions": [one("team", "In", "b")]}, False),
        ({"matchExpressions": [one("zone", "In", "a")]}, False),
        ({"matchExpressions": [one("team", "NotIn", "b")]}, True),
        ({"matchExpressions": [one("team", "NotIn", "a")]}, False),
        ({"matchExpressions": [one("zone", "NotIn", "a")]}, True),
        ({"matchExpressions": [one("team", "Exists")]}, True),
        ({"matchExpressions": [one("zone", "Exists")]}, False),
        ({"matchExpressions": [one("zone", "DoesNotExist")]}, True),
        ({"matchExpressions": [one("team", "DoesNotExist")]}, False),
        ({"matchExpressions": [one("team", "Exists"), one("zone", "Exists")]}, False),
        (
            {"matchLabels": {"gpu": "true"}, "matchExpressions": [one("team", "NotIn", "a")]},
            False,
        ),
    ],
)
def test_what_is_selected(selector: dict[str, Any], selected: bool) -> None:
    assert LabelSelector.from_dict(selector).matches(LABELS) is selected


@pytest.mark.parametrize(
    "wrong",
    [
        one("team", "In"),
        one("team", "NotIn"),
        one("team", "Exists", "a"),
        one("team", "DoesNotExist", "a"),
        one("a b", "Exists"),
        one("team", "In", "a b"),
        one("team", "Like", "a"),
    ],
)
def test_what_is_no_requirement(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LabelRequirement.from_dict(wrong)
