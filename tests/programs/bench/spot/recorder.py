"""Observes all cards continuously, in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from bench.precedence import give_precedence
from bench.spot.stage import Owner
from bench.spot.timeline import Look
from cluster.cluster import Node
from mizar_core.names import SPOT_RESOURCE, card_of_spot_device
from mizar_nodeagent.kubelet.podresources import PodResources
from simgpu.machine import Machine

EVERY_S = 0.1
SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


class Recorder:
    """Records from its creation until `stop`, which returns the observations of each card by its
    UUID."""

    def __init__(self, node: Node, owners: Sequence[Owner]) -> None:
        context = multiprocessing.get_context("fork")
        self._end, theirs = context.Pipe()
        arguments = node, owners, theirs
        self._process = context.Process(target=_record, args=arguments, daemon=True)
        self._process.start()

    def stop(self) -> dict[str, list[Look]]:
        """Raises RuntimeError if the process ended early."""
        self._end.send(None)
        try:
            found: dict[str, list[Look]] = self._end.recv()
        except EOFError as error:
            raise RuntimeError("the cards' recorder has ended by itself") from error
        self._process.join()
        return found


def _record(node: Node, owners: Sequence[Owner], end: Connection) -> None:
    os.setsid()
    give_precedence(os.getpid())
    end.send(asyncio.run(_looks(node, owners, end)))


async def _looks(node: Node, owners: Sequence[Owner], end: Connection) -> dict[str, list[Look]]:
    found: dict[str, list[Look]] = {one.uuid: [] for one in owners}
    kubelet = PodResources(node.path(SOCKET))
    with Machine(node.simgpu_dir) as machine:
        while not end.poll():
            devices = (await kubelet.allocatable()).get(SPOT_RESOURCE, frozenset())
            lendable, at = set(map(card_of_spot_device, devices)), time.monotonic()
            for one in owners:
                pids = {each.pid for each in machine.processes(one.card).values()}
                lent = bool(pids - {one.pid, 0})
                found[one.uuid].append(Look(at, one.uuid in lendable, lent))
            await asyncio.sleep(EVERY_S)
    await kubelet.close()
    return found
