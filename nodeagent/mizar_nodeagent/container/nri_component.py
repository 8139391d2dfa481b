"""The runtime component: gives containers their cards when the container runtime creates them.

The runtime asks the agent after it has applied the pod, its image and the answer to Allocate, so a
tenant cannot override the agent's changes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from mizar_core.errors import DeviceIDRefused, MizarError
from mizar_core.names import ANNOTATION_CARDS
from mizar_kube.logs import get_logger
from mizar_nodeagent.container import card_access, shim_mounts
from mizar_nodeagent.container.access_choice import AccessChoice
from mizar_nodeagent.container.device_nodes import Minors, minors_of
from mizar_nodeagent.container.missed_containers import MissedContainers
from mizar_nodeagent.container.nri_adjustment import adjustment
from mizar_nodeagent.container.nri_grants import Grants, is_annotated
from mizar_nodeagent.container.slots import Slot
from mizar_nodeagent.errors import ContainerRefused
from mizar_nodeagent.proto import nri_pb2 as pb

log = get_logger(__name__)

RUNNING = (pb.CONTAINER_CREATED, pb.CONTAINER_PAUSED, pb.CONTAINER_RUNNING)
"""States of containers that have not ended."""


@dataclass
class Counts:
    """Numbers of containers, for metrics. `given`: they got their cards. `refused`: the agent
    refused them. `missed`: they were created without asking the agent."""

    given: int = 0
    refused: int = 0
    missed: int = 0


@dataclass
class RuntimeComponent:
    """Answers the runtime's questions about containers. `minors`: returns the minor numbers of
    cards' device nodes. `missed`: takes the containers that the runtime created without asking."""

    grants: Grants
    access: AccessChoice
    minors: Minors
    missed: MissedContainers
    counts: Counts = field(default_factory=Counts)
    _reported: set[str] = field(default_factory=set)

    async def create(self, pod: pb.PodSandbox, container: pb.Container) -> pb.ContainerAdjustment:
        """The changes to a container that is about to be created; none if Mizar gave it no device,
        or gave it its cards by the answer of Allocate, as with a runtime that would drop what NRI
        gives. Raises MizarError if the container must not be created."""
        if not is_annotated(container):
            return pb.ContainerAdjustment()
        names = {"namespace": pod.namespace, "pod": pod.name, "container": container.name}
        try:
            if not self._is_by_nri(pod, container):
                return pb.ContainerAdjustment()
            adjust = await self._adjust(pod, container)
        except MizarError as error:
            self.counts.refused += 1
            log.warning("a container was refused", error=error, **names)
            raise
        self.counts.given += 1
        log.info(
            "a container was given its cards", card=adjust.annotations[ANNOTATION_CARDS], **names
        )
        return adjust

    def look(self, pods: Sequence[pb.PodSandbox], containers: Sequence[pb.Container]) -> None:
        """Have the containers killed that the runtime created without asking the agent. `pods`,
        `containers`: all that the runtime has now. A container that was found before is not killed
        again."""
        by_id = {pod.id: pod for pod in pods}
        self._reported &= {container.id for container in containers}
        for container in containers:
            if container.id in self._reported:
                continue
            pod = by_id.get(container.pod_sandbox_id)
            if pod is None or container.state not in RUNNING:
                continue
            if _was_not_asked_for(pod, container):
                # Mizar gives a container devices of exactly one resource: one whose annotations
                # name other devices was given none by Mizar.
                with suppress(ContainerRefused, DeviceIDRefused):
                    slots = self.grants.slots_of(pod, container)
                    for slot in [one for one in slots if one.by_nri][:1]:
                        self._reported.add(container.id)
                        self._miss(slot, pod, container)

    def _is_by_nri(self, pod: pb.PodSandbox, container: pb.Container) -> bool:
        """Whether NRI gives the container its cards. It does so even if new containers no longer
        get theirs by NRI: otherwise nothing would give this one its cards, and a variable of its
        image would give it others. Raises MizarError."""
        if not self.access.by_nri and not self.grants.any_by_nri(pod):
            return False
        slots = self.grants.slots_of(pod, container)
        if self.access.by_nri:
            # The kubelet repeats its first answer, which gives the cards by CDI and sets variables
            # that a plugin cannot take away.
            return not slots or not all(slot.by_cdi for slot in slots)
        return not slots or any(slot.by_nri for slot in slots)

    async def _adjust(self, pod: pb.PodSandbox, container: pb.Container) -> pb.ContainerAdjustment:
        self.access.check_admitted_by_nri()
        granted = self.grants.of(pod, container)
        if granted.limited:
            _check_shim(container, granted.slots)
        way = self.access.given_by_nri
        minors: dict[str, int] = {}
        if card_access.names_device_nodes(way, self.access.config):
            minors = await minors_of(self.minors, granted.uuids)
        parts = self.access.parts(way, granted.uuids, minors)
        return adjustment(container, granted.uuids, parts, self._stat)

    def _stat(self, node: Path) -> os.stat_result:
        return self.access.config.seen(node).stat()

    def _miss(self, slot: Slot, pod: pb.PodSandbox, container: pb.Container) -> None:
        assert slot.owner is not None
        self.counts.missed += 1
        log.error("a container was created without asking the agent", **slot.names)
        self.missed.add(container.id, pod.uid, replace(slot.owner, container=container.name))


def _was_not_asked_for(pod: pb.PodSandbox, container: pb.Container) -> bool:
    # CRI-O passes the pod's annotations, which its tenant writes, on to its containers. A tenant
    # who guesses the agent's value has a container of its own killed, and gains nothing.
    given = container.annotations.get(ANNOTATION_CARDS)
    return is_annotated(container) and given in (None, pod.annotations.get(ANNOTATION_CARDS))


def _check_shim(container: pb.Container, slots: Sequence[Slot]) -> None:
    """Raise ContainerRefused unless the container has the files of one of these slots mounted, from
    which it gets its limits."""
    mounted = [(one.destination, one.source, "ro" in one.options) for one in container.mounts]
    problems = [shim_mounts.missing(slot, mounted) for slot in slots]
    if all(problems):
        raise ContainerRefused(
            f"container {container.name} would run without its limits: {problems[-1]} in it, "
            "although Mizar told the kubelet to mount its own file there; look for a volume of the "
            "pod, or another NRI plugin, that mounts something else at that path"
        )
