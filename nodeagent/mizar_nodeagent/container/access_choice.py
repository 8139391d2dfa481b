"""How containers of this node get their cards: by what Allocate answers, or by NRI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mizar_core.names import EventReason
from mizar_nodeagent.config import CardAccess, Strategy, Way
from mizar_nodeagent.container.slots import Slot
from mizar_nodeagent.errors import NotYet, StartRefused


class Runtime(Protocol):
    """The connection to the container runtime, as far as it matters here."""

    @property
    def problem(self) -> str:
        """Why the runtime does not ask the agent; empty while it does."""
        ...


class AccessChoice:
    """`runtime`: None where NRI is not used."""

    def __init__(self, config: CardAccess, runtime: Runtime | None = None) -> None:
        self.config = config
        self.runtime = runtime

    @property
    def strategy(self) -> Strategy:
        """How new containers get their cards."""
        return self.config.strategy

    @property
    def by_nri(self) -> bool:
        """Whether new containers get their cards by NRI, and none by the answer of Allocate."""
        return self.strategy == "NRI"

    @property
    def answered(self) -> Way | None:
        """What Allocate answers: None for no card."""
        return None if self.strategy == "NRI" else self.strategy

    @property
    def given(self) -> Way:
        """What a container is given, by Allocate or by NRI."""
        return self.config.nri_gives if self.strategy == "NRI" else self.strategy

    @property
    def problem(self) -> str:
        """Why no container can get a card now, as a sentence; empty if they can."""
        if self.by_nri and self.runtime and self.runtime.problem:
            return (
                "the container runtime does not ask Mizar before it makes containers, so none gets "
                f"a card: {self.runtime.problem}"
            )
        return ""

    def check(self, slots: Iterable[Slot]) -> None:
        """A container must not start where nobody would give it its card, or keep others from it.
        Raises NotYet, StartRefused."""
        if self.by_nri or any(slot.by_nri for slot in slots):
            if self.runtime is None:
                raise StartRefused(
                    "the pod got its devices when cards came by NRI, which cardAccess.strategy "
                    f"{self.strategy} does not use: delete the pod, and a new one gets them",
                    EventReason.NO_CARD_ACCESS,
                )
            if self.runtime.problem:
                raise NotYet(
                    "its card comes by NRI, and the container runtime does not ask Mizar now: "
                    f"{self.runtime.problem}"
                )
