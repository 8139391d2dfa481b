"""Events as tests read them."""

import json
from dataclasses import dataclass
from typing import Any

from support.kube import Kube


@dataclass
class Answer:
    """What kubectl printed."""

    stdout: str


class Server:
    """Answers everything with these events."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = list(events)

    def kubectl(self, *args: str, input: str | None = None, check: bool = True) -> Answer:
        return Answer(json.dumps({"items": self._events}))


def event(reason: str, name: str = "a", **times: str | None) -> dict[str, Any]:
    made = {"creationTimestamp": "2026-01-01T00:00:09Z"}
    return {"reason": reason, "involvedObject": {"name": name}, "metadata": made, **times}


def test_events_come_in_order_of_time_whatever_their_names() -> None:
    kube = Kube(
        Server(
            event("Last"),
            event("Other", "b"),
            event("Second", eventTime=None, firstTimestamp="2026-01-01T00:00:02Z"),
            event("First", eventTime="2026-01-01T00:00:01.500000Z"),
        )
    )
    assert [reason for reason, _ in kube.events("t", "a")] == ["First", "Second", "Last"]
