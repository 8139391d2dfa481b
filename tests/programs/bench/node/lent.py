"""Cards that are all lent, on a node of simulated cards: each has an owner that sleeps and a
borrower. Only their slots exist, no programs."""

from __future__ import annotations

from pathlib import Path

from bench.node.node import CARDS, TENANT, Node, until
from mizar_core.models import Spot
from mizar_core.names import SPOT_RESOURCE
from mizar_core.spot_rules import SpotRule, SpotRules
from unit.nodeagent.fake_kubelet import Allocated, KubePod
from unit.nodeagent.makers import share_object

RULES = SpotRules(rules=(SpotRule(pool="default", spot=Spot(enabled=True, idle_after_seconds=1)),))
AGREES = {"mizar.share/low-power": "true"}


async def lend_all(made: Node) -> list[Path]:
    """Start the agent and lend all cards. Returns the usage files of the borrowers."""
    made.start_agent(namespace="mizar")
    await made.agent.wait_ready()
    (resource,) = {made.add_shadow(1, "None") for _ in range(CARDS)}
    await until(made.is_serving, "the shadow pods to serve")
    for number in range(CARDS):
        await _start(made, f"owner-{number}", resource, AGREES)
    made.api.rules = RULES.to_json()
    healthy = made.kubelet.healthy
    await until(lambda: len(healthy(SPOT_RESOURCE)) == CARDS, "the cards to be lendable")
    borrowers = [await _start(made, f"spot-{number}", SPOT_RESOURCE) for number in range(CARDS)]
    return [_usage(one) for one in borrowers]


async def _start(
    made: Node, name: str, resource: str, annotations: dict[str, str] | None = None
) -> Allocated:
    """Start a pod with one device, and return what its container gets."""
    body = share_object(name, TENANT, resource)
    body["metadata"]["annotations"] = annotations or {}
    made.api.put_pod(body)
    pod = KubePod(TENANT, name, body["metadata"]["uid"])
    await made.admit(pod, resource)
    return await made.start(pod, resource)


def _usage(held: Allocated) -> Path:
    (found,) = (one for one in held.answer.mounts if one.container_path == "/run/mizar/usage")
    return Path(found.host_path)
