"""Divides a node's simulated cards by MIG, as `nvidia-smi mig` does, while a test runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from cluster.cluster import Node
from simgpu.machine import Machine
from support.kube import Kube
from support.waiting import wait_for

CARDS = "nvidia.com/gpu"


def offered(kube: Kube, node: Node, resource: str) -> int:
    """How many of the resource the node has to give."""
    found = kube.get("node", node.name)
    assert found is not None
    return int(found["status"]["allocatable"].get(resource, 0))


@contextmanager
def divided(
    kube: Kube, node: Node, strategy: Literal["single", "mixed"], *sizes: Sequence[str]
) -> Iterator[list[str]]:
    """Divide the node's cards, in order, into instances of these sizes, which NVIDIA's plugin
    announces; gives the instances' UUIDs. At the end the cards are whole again."""
    with Machine(node.simgpu_dir) as machine:
        cards = [card.uuid for card in machine.cards]
        machine.mig_strategy = strategy
        try:
            made = [
                one
                for card, own in zip(cards, sizes, strict=False)
                for one in divide(machine, card, *own)
            ]
            if strategy == "single":
                wait_for("MIG devices", lambda: offered(kube, node, CARDS) == len(made))
            for size in {one for own in sizes for one in own} if strategy == "mixed" else ():
                wait_for(f"MIG devices {size}", lambda s=size: offered(kube, node, by_size(s)))  # type: ignore[misc]
            yield made
        finally:
            machine.mig_strategy = "none"
            for card in cards:
                divide(machine, card)
            wait_for("whole cards", lambda: offered(kube, node, CARDS) == len(cards))


def divide(machine: Machine, card: str, *sizes: str) -> list[str]:
    """Divide a card, or make it whole again, once nothing uses it: the node agent may just be
    measuring what a context costs."""

    def attempt() -> tuple[list[str]]:
        try:
            return (machine.divide(card, *sizes),)
        except ValueError as in_use:
            raise AssertionError(str(in_use)) from in_use

    (made,) = wait_for(f"{card} to be divided", attempt)
    return made


def by_size(size: str) -> str:
    """The resource of MIG devices of that size, by strategy mixed."""
    return f"nvidia.com/mig-{size}"
