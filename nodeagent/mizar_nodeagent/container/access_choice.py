"""Decides how containers of this node get their cards: by the answer to Allocate, or by NRI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from mizar_core.names import EventReason
from mizar_kube.logs import get_logger
from mizar_nodeagent import mig
from mizar_nodeagent.config import CardAccess, Strategy, Way
from mizar_nodeagent.container import card_access, cdi_files
from mizar_nodeagent.container.access_doubts import NONE
from mizar_nodeagent.container.auto_strategy import Discovery
from mizar_nodeagent.container.device_nodes import Minors, minors_of
from mizar_nodeagent.container.slots import Slot
from mizar_nodeagent.errors import CardsUnknown, NotYet, StartRefused
from mizar_nodeagent.mig import Instance
from mizar_nodeagent.proto import deviceplugin_pb2 as pb

log = get_logger(__name__)

CONNECTED_WITHIN_S: Final = 5.0
"""Seconds to wait for the container runtime. The kubelet waits 30 s for PreStartContainer, and some
10 s before it tries again."""
_CDI: Final = frozenset[Way](("CDI", "CDIAnnotations"))
"""The ways in which the container runtime reads CDI files."""


class Runtime(Protocol):
    """The part of the connection to the container runtime that AccessChoice uses."""

    @property
    def problem(self) -> str:
        """Why the runtime does not call the agent; empty while it does."""
        ...

    @property
    def connections(self) -> int:
        """How often the runtime was connected to."""
        ...

    @property
    def is_foreign(self) -> bool:
        """Whether another runtime than the kubelet's was at the socket last."""
        ...

    async def wait(self, within: float) -> None:
        """Wait until there is no problem, `within` seconds at most."""
        ...


class AccessChoice:
    """The choice among the ways to give containers their cards. `runtime`: None if NRI is not used.
    `instance_of`: returns the place of the MIG device with this UUID; None for a whole card.
    `minors`: returns the minor numbers of cards' device nodes; without it, those in CDI files are
    not checked. `cdi_names`: returns the names of the CDI devices by which NVIDIA's DRA driver
    gives the card with this UUID to the containers of a claim. `doubts`: problems with the chosen
    way, as of the last look at the node.
    `cdi_dropped`: a sentence if the container runtime drops CDI devices that are given by NRI.
    `works_beside_cdi`: NRI can give cards without CDI, as the node's files show or as is
    configured."""

    def __init__(
        self,
        config: CardAccess,
        runtime: Runtime | None = None,
        instance_of: Callable[[str], Instance | None] = lambda uuid: None,
        minors: Minors | None = None,
        cdi_names: Callable[[str], Collection[str]] = lambda uuid: (),
    ) -> None:
        self.config = config
        self.runtime = runtime
        self._instance_of = instance_of
        self._minors = minors
        self._cdi_names = cdi_names
        self._found = Discovery(nri=False, way="EnvVar")
        self.doubts = NONE
        self.cdi_dropped = ""
        self.works_beside_cdi = False

    @property
    def may_use_nri(self) -> bool:
        """Whether the agent must connect to the container runtime by NRI."""
        return self.config.strategy in ("NRI", "Auto")

    @property
    def looks(self) -> bool:
        """Whether the choice depends on what is found on the node."""
        return self.config.strategy == "Auto" or (
            self.config.strategy == "NRI" and self.config.nri_gives == "Auto"
        )

    def settle(self, found: Discovery) -> None:
        """Use the ways that the node was found to support. After the agent's start this happens
        only if nothing better than EnvVar was found (see AccessWatch): a rewritten file or a
        restarted runtime must not change how containers get their cards."""
        self._found = found
        log.info("the way by which containers get their cards was chosen", access=self.describe())

    @property
    def found(self) -> Discovery:
        """The ways that the node was found to support."""
        return self._found

    @property
    def strategy(self) -> Strategy:
        """How new containers get their cards. With Auto, the answer stays NRI once the agent has
        been connected to the kubelet's runtime; until then, it is not NRI while another runtime is
        at the socket. It is never NRI while the runtime would drop what NRI gives."""
        if self.config.strategy != "Auto":
            return self.config.strategy
        asked = self.runtime is not None and self.runtime.connections > 0
        foreign = self.runtime is not None and self.runtime.is_foreign
        nri = asked or (self._found.nri and not foreign)
        return "NRI" if nri and not self._is_dropped else self._found.way

    @property
    def _way_of_nri(self) -> Way:
        """The way in which NRI is to give a container its card."""
        return self._found.way if self.config.nri_gives == "Auto" else self.config.nri_gives

    @property
    def _is_dropped(self) -> bool:
        """Whether NRI is to give cards by CDI, and the runtime would drop these."""
        return bool(self.cdi_dropped) and self._way_of_nri == "CDI"

    @property
    def by_nri(self) -> bool:
        """Whether new containers get their cards by NRI, and none by the answer of Allocate."""
        return self.strategy == "NRI"

    @property
    def given_by_nri(self) -> Way:
        """The way in which NRI gives a container its card. Where the runtime would drop CDI
        devices, it is another one, unless CDI is configured."""
        if self._is_dropped and self.config.nri_gives == "Auto":
            return self._found.beside_cdi
        return self._way_of_nri

    @property
    def ways_beside_cdi(self) -> frozenset[Way]:
        """All ways but CDI in which NRI can give a container its card."""
        first = self._found.beside_cdi if self.config.nri_gives == "Auto" else self.config.nri_gives
        return frozenset((first, *self.config.also)) - {"CDI"}

    @property
    def answers_cdi(self) -> bool:
        """Whether the answer to Allocate names CDI devices."""
        return self.answered is not None and not _CDI.isdisjoint(self.ways)

    @property
    def answered(self) -> Way | None:
        """The way in which the answer to Allocate gives the card; None if it gives none."""
        strategy = self.strategy
        return None if strategy == "NRI" else strategy

    @property
    def names_device_nodes(self) -> bool:
        """Whether the answer to Allocate names the cards' device nodes."""
        return card_access.names_device_nodes(self.answered, self.config)

    def add_cards(
        self, answer: pb.ContainerAllocateResponse, uuids: Sequence[str], minors: Mapping[str, int]
    ) -> None:
        """Add to the answer to Allocate the parts that give a container these cards. `minors`:
        minor numbers of the cards' device nodes by UUID, if the answer names them. Raises
        CardsUnknown if the device nodes of a MIG device cannot be found."""
        card_access.add_parts(answer, self.parts(self.answered, uuids, minors))

    def parts(
        self, way: Way | None, uuids: Sequence[str], minors: Mapping[str, int]
    ) -> card_access.Parts:
        """The parts that give a container these cards in this way; see `card_access.parts`. Raises
        CardsUnknown if the device nodes of a MIG device, or a claim's CDI device, cannot be
        found."""
        claimed = {} if _CDI.isdisjoint((way, *self.config.also)) else self._claimed(uuids)
        found = card_access.parts(way, uuids, minors, self.config, claimed=claimed)
        return card_access.with_nodes(found, self._capability_nodes(minors), self.config)

    def _claimed(self, uuids: Collection[str]) -> dict[str, str]:
        """The names of the CDI devices that NVIDIA's DRA driver has made for claims on these cards,
        by UUID; none if containers get their cards otherwise. Raises CardsUnknown if one has
        none."""
        kind = self.config.cdi_kind
        if not cdi_files.is_by_claims(self.config):
            return {}
        names = {uuid: self._cdi_names(uuid) for uuid in uuids}
        found = {
            uuid: name for uuid in uuids for name in names[uuid] if name.startswith(f"{kind}=")
        }
        if missing := sorted(set(uuids) - found.keys()):
            raise CardsUnknown(
                f"the kubelet names no CDI device of the kind {kind} (cardAccess.cdiKind) for card "
                f"{missing[0]}: it names {' and '.join(names[missing[0]]) or 'no claim of it'}"
            )
        return found

    def _capability_nodes(self, minors: Mapping[str, int]) -> Iterator[str]:
        """Names, below /dev, of the device nodes that MIG devices need besides their card's. Raises
        CardsUnknown if they cannot be found."""
        for uuid, minor in minors.items():
            if instance := self._instance_of(uuid):
                yield from mig.capability_nodes(instance, minor, self.config.mig_minors)
            elif uuid.startswith(mig.PREFIX):
                raise CardsUnknown(
                    f"NVML has not reported since the agent's start where MIG device {uuid} is, so "
                    "its device nodes are not known: see nvidia-smi -L on the node"
                )

    @property
    def lacking(self) -> str:
        """A sentence that says which containers do not get their card, or which device nodes
        containers should get and do not; empty if there are none."""
        if self.doubts.warning:
            return self.doubts.warning
        access = self.config
        if not card_access.names_device_nodes(self.given, access):
            return ""
        missing = card_access.missing_nodes(access)
        if not missing:
            return ""
        return (
            f"containers get their cards by {self.describe()}, but go without device nodes that "
            f"are not in {access.dev_root} (cardAccess.devRoot) on the node: {', '.join(missing)}"
        )

    @property
    def given(self) -> Way:
        """The way in which Allocate or NRI gives a container its card."""
        strategy = self.strategy
        return self.given_by_nri if strategy == "NRI" else strategy

    @property
    def ways(self) -> frozenset[Way]:
        """All ways in which a container is given its card."""
        return frozenset((self.given, *self.config.also))

    def describe(self) -> str:
        """The choice in words, for logs and people."""
        given = " and ".join(dict.fromkeys((self.given, *self.config.also)))
        return f"NRI, which gives {given}" if self.by_nri else given

    @property
    def problem(self) -> str:
        """A sentence that says why no container can get a card now; empty if containers can."""
        return self.runtime_problem or self.dropped or self.doubts.problem

    @property
    def dropped(self) -> str:
        """A sentence that says that the runtime drops the cards that NRI gives, and what to do;
        empty if it does not."""
        if not self.by_nri or not self._is_dropped or self.ways != {"CDI"}:
            return ""
        return (
            f"{self.cdi_dropped}, so no container gets its card: set nodeagent.cardAccess.strategy "
            "to CDI or Auto, or nriGives to another way than CDI, or upgrade the container runtime"
        )

    @property
    def runtime_problem(self) -> str:
        """A sentence that says why the container runtime gives no card by NRI; empty if it does, or
        does not have to."""
        if self.by_nri and self.runtime and self.runtime.problem:
            return (
                "the container runtime is not connected to Mizar by NRI, so no container gets its "
                f"card: {self.runtime.problem}"
            )
        return ""

    async def check(self, slots: Iterable[Slot], uuids: Collection[str] = ()) -> None:
        """Refuse the start of a container that would not get its card, or would get others too.
        Waits up to CONNECTED_WITHIN_S for a runtime that restarts. `slots`, `uuids`: the
        container's slots and the UUIDs of its cards. Raises NotYet, StartRefused."""
        slots = tuple(slots)
        admitted_by_nri = any(slot.by_nri for slot in slots)
        if self.by_nri or admitted_by_nri:
            await self._check_runtime()
        # Only now: the runtime tells its version when it is connected.
        if admitted_by_nri:
            self.check_admitted_by_nri()
        if self.dropped:
            raise NotYet(self.dropped)
        if not _CDI.isdisjoint(self._ways_of(slots)):
            await self._check_cdi_files(uuids)

    def check_admitted_by_nri(self) -> None:
        """Check that a container whose card Allocate did not give, since NRI was to give it, still
        gets it by NRI. Where Auto has given up NRI because the runtime drops CDI, it does if
        another way works. Raises StartRefused."""
        if not self.by_nri and not self.works_beside_cdi:
            since = f", since {self.cdi_dropped}" if self.cdi_dropped else ""
            raise _admitted_by_nri(f"which is not used now{since}")

    def _ways_of(self, slots: Sequence[Slot]) -> frozenset[Way]:
        """All ways in which the container of these slots is given its card."""
        keeps_nri = bool(slots) and all(slot.by_nri for slot in slots)
        return self.ways_beside_cdi if keeps_nri and not self.by_nri else self.ways

    async def _check_runtime(self) -> None:
        """Check that the container runtime asks the agent. Raises NotYet, StartRefused."""
        if self.runtime is None:
            raise _admitted_by_nri(f"which cardAccess.strategy {self.strategy} does not use")
        await self.runtime.wait(CONNECTED_WITHIN_S)
        if self.runtime.problem:
            raise NotYet(
                "it gets its card by NRI, but the container runtime is not connected to Mizar: "
                f"{self.runtime.problem}"
            )

    async def _check_cdi_files(self, uuids: Collection[str]) -> None:
        """Check that CDI files name these cards, and for each its own device node. Raises
        NotYet."""
        try:
            claimed = self._claimed(uuids)
        except CardsUnknown as error:
            raise NotYet(str(error)) from error
        await asyncio.to_thread(cdi_files.check_named, self.config, uuids, claimed)
        named = await asyncio.to_thread(cdi_files.minors_of_nodes, self.config, uuids, claimed)
        if not named or self._minors is None:
            return
        try:
            now = await minors_of(self._minors, named)
        except CardsUnknown as error:
            raise NotYet(str(error)) from error
        remedy = cdi_files.NEW_CLAIM if claimed else cdi_files.WRITE_ANEW
        cdi_files.check_minors(named, now, remedy)


def _admitted_by_nri(why_not_now: str) -> StartRefused:
    return StartRefused(
        f"the pod was admitted while containers got cards by NRI, {why_not_now}: delete the pod, "
        "so that a new one gets its cards",
        EventReason.NO_CARD_ACCESS,
    )
