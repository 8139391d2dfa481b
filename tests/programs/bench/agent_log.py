"""Reads from the node agent's log when it answered each call of the kubelet, and how long that
took."""

from collections.abc import Iterator
from datetime import datetime

from support.kube import Kube
from support.logs import Line, lines

NAMESPACE, SELECTOR = "mizar-system", "app.kubernetes.io/component=nodeagent"


def durations_ms(kube: Kube) -> dict[str, list[float]]:
    """Milliseconds of every answer since the agents started, by the call's name.

    The time runs from the call's arrival in the agent to its answer, without the gRPC transport.
    """
    taken: dict[str, list[float]] = {}
    for said in _answered(kube):
        taken.setdefault(said["call"], []).append(float(said["duration_ms"]))
    return taken


def answers(kube: Kube) -> dict[str, list[float]]:
    """When each answer was given (seconds since the epoch), by the call's name."""
    found: dict[str, list[float]] = {}
    for said in _answered(kube):
        found.setdefault(said["call"], []).append(
            datetime.fromisoformat(said["timestamp"]).timestamp()
        )
    return found


def _answered(kube: Kube) -> Iterator[Line]:
    log = kube.run("logs", f"--namespace={NAMESPACE}", f"--selector={SELECTOR}", "--tail=-1")
    return (said for said in lines(log) if said["event"] == "answered")
