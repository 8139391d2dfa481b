"""How long the node agent took for its answers to the kubelet, from its log."""

import re

from support.kube import Kube

NAMESPACE, SELECTOR = "mizar-system", "app.kubernetes.io/component=nodeagent"
ANSWERED = re.compile(r": (\w+) answered in ([0-9.]+) ms$", re.MULTILINE)


def durations_ms(kube: Kube) -> dict[str, list[float]]:
    """Milliseconds of every answer since the agents started, by the call's name.

    From the call's arrival in the agent to its answer: the gRPC transport is not in it.
    """
    log = kube.run("logs", f"--namespace={NAMESPACE}", f"--selector={SELECTOR}", "--tail=-1")
    taken: dict[str, list[float]] = {}
    for call, milliseconds in ANSWERED.findall(log):
        taken.setdefault(call, []).append(float(milliseconds))
    return taken
