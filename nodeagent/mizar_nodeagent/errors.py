"""The node agent's exceptions, with one base class. Their messages say what a person can do."""

from __future__ import annotations

from mizar_core.errors import MizarError


class AgentError(MizarError):
    """Base class: the node agent refuses something or cannot do it."""


class ConfigRefused(AgentError):
    """A setting names something that cannot be used."""


class OverridesRefused(AgentError):
    """The overrides for this node cannot be used; the message names each key that is wrong."""


class KubeletAway(AgentError):
    """The kubelet does not answer (on the socket that the message names); it may come back."""


class RuntimeAway(AgentError):
    """The container runtime does not accept the agent's NRI connection, has ended it, or does not
    answer; the agent connects again."""


class RuntimeRefused(AgentError):
    """The container runtime broke NRI's protocol, or refused a request of the agent."""


class ContainerRefused(AgentError):
    """The container runtime must not create a container, which would have no card, another
    container's card, or no limits. The kubelet tries again."""


class CardsUnknown(AgentError):
    """The cards or their device nodes are not known now, in most cases since NVML does not answer;
    the agent tries again later."""


class AllocationRefused(AgentError):
    """The kubelet's Allocate names devices that cannot be given: the pod fails for good."""


class NotYet(AgentError):
    """The container cannot start now; the kubelet tries again."""


class StartRefused(AgentError):
    """The container must not start: it would break an invariant. The kubelet tries again. `reason`:
    the reason of the event on its pod."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class RegionDamaged(AgentError):
    """A limits or usage file has another size, version or checksum than expected."""


class RegionUnserved(RegionDamaged):
    """A container's files are of a version that this agent does not serve, and left alone."""
