"""How containers on one card are kept apart."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from mizar_core.model_base import Model
from mizar_core.quantities import parse_scaling
from mizar_core.schema import rule, rules

MemoryMode = Literal["Hard", "Oversubscribe"]
ComputeMode = Literal["None", "Hard", "Soft", "Weighted"]
Backend = Literal["Auto", "Shim", "MPS", "None"]
Enforcement = Literal["Report", "Strict"]

NOTHING_ENFORCES = (
    "backend None enforces no limits: set compute to None, or backend to Auto or Shim"
)
ABOVE_HARD = (
    "memoryScaling above 1 allocates more memory than the card has, which isolation.memory Hard"
    " forbids: set memory to Oversubscribe, or memoryScaling to at most 1"
)
NOT_BUILT = "backend MPS is not built yet: set it to Auto or Shim"


class Isolation(Model):
    """How containers on one card are kept apart."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self.backend != 'None' || self.compute == 'None'", NOTHING_ENFORCES),
            rule("self.backend != 'MPS'", NOT_BUILT),
        )
    )

    memory: MemoryMode = "Hard"
    """Hard: a container never has more memory than its share. Oversubscribe: shares may add up
    to more than the card; allocations that do not fit go to the node's memory, except those that
    CUDA cannot place there: virtual memory management, arrays and graphs."""

    compute: ComputeMode = "None"
    """None: kernels of all containers take turns, without limits. Hard: never above the share.
    Soft: above it while others are idle, pods of the highest priority first. Weighted: in
    proportion to the shares of the busy containers."""

    backend: Backend = "Auto"
    """What enforces the limits. Auto and Shim: the shim in each container. None: nothing; the
    containers are trusted to keep them."""

    enforcement: Enforcement = "Report"
    """What happens to a process that bypasses the shim and so is not bound by its limits. Report:
    its pod gets an event and the condition mizar.share/isolation-enforced. Strict: the process is
    killed as well."""

    may_opt_out: Annotated[bool, Field(strict=True)] = False
    """Whether a pod may name containers, by the annotation mizar.share/without-limits, that run
    without the shim and so without limits."""

    def overridden_by(self, override: IsolationOverride | None) -> Isolation:
        """This isolation with a quota's overrides."""
        if override is None:
            return self
        return self.changed(**override.model_dump(exclude_none=True))

    @property
    def contradiction(self) -> str | None:
        """Why this isolation is not possible, as a sentence for users; None if it is."""
        if self.backend == "MPS":
            return NOT_BUILT
        return NOTHING_ENFORCES if self.backend == "None" and self.compute != "None" else None

    def above(self, memory_scaling: str) -> str | None:
        """Why this isolation is not possible with the pool's memory scaling, as a sentence for
        users; None if it is."""
        return ABOVE_HARD if self.memory == "Hard" and parse_scaling(memory_scaling) > 1 else None


class IsolationOverride(Model):
    """What a quota changes of its pool's isolation; fields left out stay as in the pool."""

    model_config = ConfigDict(
        json_schema_extra=rules(rule("!has(self.backend) || self.backend != 'MPS'", NOT_BUILT))
    )

    memory: MemoryMode | None = None
    """By default as in the pool."""

    compute: ComputeMode | None = None
    """By default as in the pool."""

    backend: Backend | None = None
    """By default as in the pool."""

    enforcement: Enforcement | None = None
    """By default as in the pool."""

    may_opt_out: Annotated[bool, Field(strict=True)] | None = None
    """By default as in the pool."""
