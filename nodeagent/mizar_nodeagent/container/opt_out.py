"""Containers that opt out of the shim, and so of their limits, where pool and quota permit it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mizar_core.names import ANNOTATION_WITHOUT_LIMITS
from mizar_nodeagent.container.limits import DeviceGroup
from mizar_nodeagent.pods import Pod

REFUSED: Final = (
    f"container {{}} has limits although the pod's {ANNOTATION_WITHOUT_LIMITS} names it: opting "
    "out requires isolation.mayOptOut in the GPUQuota or its pool"
)
"""A sentence for a container that asks to opt out where that is not permitted; its name goes into
the braces."""
NO_MORE: Final = (
    "isolation.mayOptOut is no longer true: this container stays without limits until it restarts; "
    "delete the pod to enforce them now"
)
"""A sentence for a container that has opted out where that is no longer permitted."""


def wants_out(pod: Pod | None, container: str) -> bool:
    """Whether the pod says that this container wants no limits."""
    return pod is not None and container in pod.without_limits


def may_opt_out(groups: Iterable[DeviceGroup]) -> bool:
    """Whether opting out is permitted for all devices of a container."""
    return all(carving.carve.isolation.may_opt_out for carving, _ in groups)
