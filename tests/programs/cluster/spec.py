"""The description of a cluster that is to be made."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.errors import SpecError

MAX_NODES = 64
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster: its name, its nodes, and the simulated cards on each node.

    `card_memory_mib` is in MiB. `card_model` is what becomes the node label
    nvidia.com/gpu.product: the card's name with dashes for blanks. `mizar` says whether Mizar
    is installed into it. With `api_only` there are etcd and API server and nothing else: nodes and
    pods are whatever a client writes. `cri_o`: the version of a CRI-O, such as v1.36.3, that is the
    nodes' container runtime; empty for containerd. The cards of the last `dra_nodes` nodes are
    allocated by NVIDIA's DRA driver, those of the others by its device plugin; pods request both as
    nvidia.com/gpu, for which Kubernetes 1.36 is needed. `nvidia_plugin`: the version of NVIDIA's
    own device plugin, such as v0.18.2; empty for a stand-in. Raises SpecError when it cannot be
    built.
    """

    name: str = "mizar"
    nodes: int = 1
    cards: int = 2
    card_memory_mib: int = 16384
    card_model: str = "NVIDIA-A100-SXM4-40GB"
    mizar: bool = True
    api_only: bool = False
    cri_o: str = ""
    dra_nodes: int = 0
    nvidia_plugin: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SpecError(
                f"cluster name {self.name!r}: use at most 30 lower-case letters, digits and -"
            )
        if not 1 <= self.nodes <= MAX_NODES:
            raise SpecError(f"{self.nodes} nodes: a cluster has 1 to {MAX_NODES}")
        if not 0 <= self.dra_nodes <= self.nodes:
            raise SpecError(f"{self.dra_nodes} nodes with a DRA driver: there are {self.nodes}")
        if not 0 <= self.cards <= 64:
            raise SpecError(f"{self.cards} cards: a node has 0 to 64")
        if not _LABEL.fullmatch(self.card_model):
            raise SpecError(f"card model {self.card_model!r}: it must be fit for a node label")
        if self.card_memory_mib < 64:
            raise SpecError(f"{self.card_memory_mib} MiB of card memory: at least 64")

    @property
    def card_name(self) -> str:
        """The cards' name as NVML reports it."""
        return self.card_model.replace("NVIDIA-", "NVIDIA ", 1)

    def uses_dra(self, number: int) -> bool:
        """Whether the cards of the node with this number (from 1) are allocated by DRA."""
        return number > self.nodes - self.dra_nodes

    def node_names(self) -> list[str]:
        """node-1, node-2, ...; the first one also runs the control plane."""
        return [f"node-{number}" for number in range(1, self.nodes + 1)]
