"""A real Kubernetes on one machine, for the demo, the tests and the benchmarks."""

from cluster.cluster import Cluster, Node
from cluster.errors import ClusterError
from cluster.spec import ClusterSpec

__all__ = ["Cluster", "ClusterError", "ClusterSpec", "Node"]
