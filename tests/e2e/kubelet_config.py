"""Changes the configuration of a node's kubelet while a test runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from cluster import Cluster
from cluster.cluster import Node
from cluster.layout import Layout


@contextmanager
def kubelet_with(on: Cluster, node: Node, **settings: object) -> Iterator[None]:
    """Inside, the node's kubelet runs with these settings as well, fields of its
    KubeletConfiguration; afterwards as before."""
    config = Layout(on.name).node(node.name).config / "kubelet.yaml"
    before = config.read_text()
    config.write_text(yaml.safe_dump(yaml.safe_load(before) | settings))
    try:
        on.restart_kubelet(node.name)
        yield
    finally:
        config.write_text(before)
        on.restart_kubelet(node.name)
