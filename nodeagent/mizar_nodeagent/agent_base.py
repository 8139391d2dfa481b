"""Builds the base that all parts of the agent share: its state, as an earlier run left it, and its
connections to the kubelet, the API server and the cards."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mizar_kube import probes
from mizar_kube.client import KubeClient
from mizar_kube.logs import get_logger
from mizar_nodeagent import agent_checkpoint
from mizar_nodeagent.agent_checkpoint import Checkpoint, CheckpointFile
from mizar_nodeagent.agent_loop import Agent
from mizar_nodeagent.agent_state import AgentState
from mizar_nodeagent.boot import boot_id
from mizar_nodeagent.card_health import take_repaired
from mizar_nodeagent.cards import CardSource
from mizar_nodeagent.config import Config
from mizar_nodeagent.container import shim_install
from mizar_nodeagent.container.slots import Slots
from mizar_nodeagent.kubelet.allocated_dra_cards import AllocatedDraCards
from mizar_nodeagent.kubelet.podresources import PodResources
from mizar_nodeagent.kubelet.poller import KubeletPoller
from mizar_nodeagent.kubelet.socket_watch import KubeletSocket
from mizar_nodeagent.metrics import AnswerLatency
from mizar_nodeagent.planning.snapshot import GracePeriods
from mizar_nodeagent.pods import Key
from mizar_nodeagent.regions import usage_file

log = get_logger(__name__)

Loop = Callable[[], Coroutine[None, None, None]]
"""A coroutine function that runs until cancelled."""


@dataclass(frozen=True)
class AgentBase:
    """The shared base. `checkpoint`: the file to which `agent` saves its plans. `latencies`:
    measures how long answers to the kubelet take. `dra`: the cards of NVIDIA's DRA driver."""

    config: Config
    client: KubeClient
    cards: CardSource
    registry: probes.Registry
    state: AgentState
    slots: Slots
    checkpoint: CheckpointFile
    agent: Agent
    podresources: PodResources
    poller: KubeletPoller
    kubelet: KubeletSocket
    latencies: AnswerLatency
    dra: AllocatedDraCards


def restore(
    config: Config, client: KubeClient, cards: CardSource, grace: GracePeriods
) -> AgentBase:
    """Build the base from the state folder that an earlier run left, which is created if there is
    none. Raises ConfigRefused, OSError."""
    boot = boot_id()
    slots = _restore_slots(config, boot)
    path = config.state_dir / "checkpoint.json"
    saved = agent_checkpoint.load(path, time.monotonic(), boot)
    state, kept = AgentState(saved.carvings, saved.taken_back), CheckpointFile(path, boot, saved)
    kept.reserve()
    repaired = partial(take_repaired, config.state_dir)
    agent = Agent(
        state, cards, kept, grace=grace, repaired=repaired, ignored_xids=config.ignored_xids
    )
    _restore_cards(agent, saved)
    dra = AllocatedDraCards(client, config.node_name, config.state_dir, boot)
    podresources = PodResources(config.podresources_socket, dra=dra)
    expected = _users(slots) | saved.carvings.keys()
    poller = KubeletPoller(podresources, agent.wake, expected=expected)
    dra.changed, poller.taken = poller.poll_soon, dra.keep
    registry = probes.registry("nodeagent")
    return AgentBase(
        config=config,
        client=client,
        cards=cards,
        registry=registry,
        state=state,
        slots=slots,
        checkpoint=kept,
        agent=agent,
        podresources=podresources,
        poller=poller,
        kubelet=KubeletSocket(config.plugin_dir),
        latencies=AnswerLatency(registry),
        dra=dra,
    )


def _restore_slots(config: Config, boot: str) -> Slots:
    """Install the shim, and load the slots that an earlier run left."""
    config.state_dir.mkdir(parents=True, exist_ok=True)
    if remark := shim_install.mount_remark(config.state_dir):
        log.warning("some share containers may run without limits", error=remark)
    folder = config.state_dir / "slots"
    _trim(folder)
    shim = shim_install.install(config.shim_path, config.state_dir)
    slots = Slots(folder, shim, boot, config.shim_times)
    slots.load(time.time())
    return slots


def _restore_cards(agent: Agent, saved: Checkpoint) -> None:
    """Give the agent the cards, their faults and their health that an earlier agent knew."""
    agent.inventory.restore(
        saved.faults,
        [card for one in saved.carvings.values() for card in one.cards],
        saved.health,
    )
    known = agent.inventory.cards().values()
    agent.failed_cards.were_told((card.uuid for card in known if card.problem), faulty=saved.faults)


def _users(slots: Slots) -> set[Key]:
    """The pods whose containers have these slots."""
    owners = (one.owner for one in slots.all())
    return {(one.namespace, one.pod) for one in owners if one is not None}


def _trim(slots: Path) -> None:
    """Remove what tenants added to their usage files while no agent ran: on a disk that they have
    filled, the agent could not install its shim, and would never come to remove it."""
    for usage in slots.glob("*/usage"):
        for remove in (usage_file.truncate_excess, usage_file.remove_attributes):
            with suppress(OSError):
                remove(usage)
