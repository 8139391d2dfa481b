"""Runs the demo: `python -m demo [--keep]`."""

import argparse
import sys

import cluster.mizar
from cluster import ClusterSpec
from cluster.binaries.progress import Progress
from cluster.local_provider import LocalProvider
from demo.lending import Lending
from demo.narrator import Narrator
from demo.story import Story
from support.kube import Kube

NEXT = """
Where to go next
  make up      keep such a cluster to play with
  examples/    one capability each: deployments, tenants, several cards
  README.md    how to install Mizar on a cluster with real cards
"""


def main() -> int:
    """Start a cluster, show the demo on it, and remove it."""
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    keep = parser.parse_args().keep
    tell, spec = Narrator(), ClusterSpec(name="demo")
    cluster_ = None
    try:
        with tell.step("A real Kubernetes on this machine, with simulated cards") as step:
            cluster_ = LocalProvider().up(spec, Progress())
            step.seen = f"{spec.nodes} node with {spec.cards} cards of {spec.card_memory_mib} MiB"
        with tell.step("Install Mizar with its Helm chart") as step:
            cluster.mizar.install(cluster_, Progress())
            step.seen = "operator, webhook and node agent are ready"
        tell.act("Act 1: pods share a card")
        Story(Kube(cluster_), tell, spec.nodes * spec.cards).play()
        tell.act("Act 2: a card works while its owner sleeps")
        Lending(Kube(cluster_), tell).play()
    finally:
        if cluster_ is not None and not keep:
            cluster_.down()
    tell.table()
    tell.console.print(NEXT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
