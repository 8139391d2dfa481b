"""One tree of exceptions of the node agent. Each says what a person can do about it."""

from __future__ import annotations

from mizar_core.errors import MizarError


class AgentError(MizarError):
    """Anything that the node agent refuses or cannot do."""


class ConfigRefused(AgentError):
    """What a setting names cannot be used."""


class KubeletAway(AgentError):
    """The kubelet does not answer (on the socket that the message names); it may come back."""


class CardsUnknown(AgentError):
    """NVML cannot be asked about the cards; tried again later."""


class AllocationRefused(AgentError):
    """The kubelet asks for devices that cannot be given: the pod fails, for good."""


class NotYet(AgentError):
    """The container cannot start now; the kubelet tries again."""


class StartRefused(AgentError):
    """The container must not start: it would break an invariant. The kubelet tries again."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class RegionDamaged(AgentError):
    """A limits or usage file is not what its header says."""
