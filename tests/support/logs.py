"""Log lines of Mizar's programs, as tests look at them."""

import json
from typing import Any

import pytest

Line = dict[str, Any]

SECTION = "Mizar's "
"""Beginning of the titles of those sections of a failed test's report that say how Mizar was: its
logs, its pods."""


def lines(text: str) -> list[Line]:
    """The JSON lines of a program's output; libraries in C write what they like between them."""
    return [json.loads(one) for one in text.splitlines() if one.startswith("{")]


def logged(caplog: pytest.LogCaptureFixture) -> list[Line]:
    """What was logged in the test's own process, as dicts with the context's keys."""
    return [record.msg for record in caplog.records if isinstance(record.msg, dict)]
