"""What a node agent counts, read on its node: also while the API server is away."""

import sys
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from cluster import Cluster
from cluster.cluster import Node
from e2e.components import component_pods
from support.kube import Kube, is_ready
from support.waiting import wait_for

READS = """
import http.client, sys
asked = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=10)
asked.request("GET", "/metrics")
print(asked.getresponse().read().decode())
"""


@dataclass(frozen=True)
class AgentMetrics:
    """The metrics of the agent on a node. `address`: its pod's; `port`: that of its metrics."""

    cluster: Cluster
    node: Node
    address: str
    port: int

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels; 0 if there is none."""
        command = [sys.executable, "-c", READS, self.address, str(self.port)]
        page = self.cluster.exec_on_node(self.node.name, command).stdout
        return sum(
            one.value
            for family in text_string_to_metric_families(page)
            for one in family.samples
            if one.name == name and labels.items() <= one.labels.items()
        )


def agent_metrics(kube: Kube, cluster: Cluster, node: Node) -> AgentMetrics:
    """The metrics of the agent that runs on the node, until it is started anew."""

    def find() -> AgentMetrics | None:
        for pod in component_pods(kube, "nodeagent"):
            if pod["spec"].get("nodeName") == node.name and is_ready(pod):
                (port,) = pod["spec"]["containers"][0]["ports"]
                address = pod["status"]["podIP"]
                return AgentMetrics(cluster, node, address, port["containerPort"])
        return None

    return wait_for(f"the node agent of {node.name}", find)
