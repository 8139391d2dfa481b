"""How long the node agent took for its answers to the kubelet, from its log."""

from support.kube import Kube
from support.logs import lines

NAMESPACE, SELECTOR = "mizar-system", "app.kubernetes.io/component=nodeagent"


def durations_ms(kube: Kube) -> dict[str, list[float]]:
    """Milliseconds of every answer since the agents started, by the call's name.

    From the call's arrival in the agent to its answer: the gRPC transport is not in it.
    """
    log = kube.run("logs", f"--namespace={NAMESPACE}", f"--selector={SELECTOR}", "--tail=-1")
    taken: dict[str, list[float]] = {}
    for said in lines(log):
        if said["event"] == "answered":
            taken.setdefault(said["call"], []).append(float(said["duration_ms"]))
    return taken
