"""The three kinds of Mizar's API, as the API server stores them.

What a single object can get wrong is said by the CEL rules beside the fields; what only two
objects together can get wrong, by `mizar_core.validation`.
"""

from __future__ import annotations

from typing import Any

from mizar_core.condition import Condition
from mizar_core.models.gpuquota import (
    GPUQuota,
    GPUQuotaSpec,
    GPUQuotaStatus,
    ProfileQuota,
    ProfileStatus,
    SpotQuota,
    SpotStatus,
    idle_timeout_of,
    isolation_of,
)
from mizar_core.models.isolation import (
    Backend,
    ComputeMode,
    Isolation,
    IsolationOverride,
    MemoryMode,
)
from mizar_core.models.meta import ObjectMeta, OwnerReference
from mizar_core.models.pool import (
    BUILT_IN_PROFILES,
    CardCounts,
    GPUPool,
    GPUPoolSpec,
    GPUPoolStatus,
    ModelCounts,
    Profile,
    ShareVariables,
    Spot,
    Tenancy,
)
from mizar_core.models.shadowpod import (
    CardStatus,
    DeviceStatus,
    Health,
    Holder,
    Phase,
    ShadowPod,
    ShadowPodSpec,
    ShadowPodStatus,
)
from mizar_core.models.toleration import Toleration

__all__ = [
    "BUILT_IN_PROFILES",
    "Backend",
    "CardCounts",
    "CardStatus",
    "ComputeMode",
    "Condition",
    "DeviceStatus",
    "GPUPool",
    "GPUPoolSpec",
    "GPUPoolStatus",
    "GPUQuota",
    "GPUQuotaSpec",
    "GPUQuotaStatus",
    "Health",
    "Holder",
    "Isolation",
    "IsolationOverride",
    "Kind",
    "MemoryMode",
    "ModelCounts",
    "ObjectMeta",
    "OwnerReference",
    "Phase",
    "Profile",
    "ProfileQuota",
    "ProfileStatus",
    "ShadowPod",
    "ShadowPodSpec",
    "ShadowPodStatus",
    "ShareVariables",
    "Spot",
    "SpotQuota",
    "SpotStatus",
    "Tenancy",
    "Toleration",
    "idle_timeout_of",
    "isolation_of",
    "parse_kind",
]

Kind = GPUPool | GPUQuota | ShadowPod

_KINDS: dict[str, type[GPUPool] | type[GPUQuota] | type[ShadowPod]] = {
    "GPUPool": GPUPool,
    "GPUQuota": GPUQuota,
    "ShadowPod": ShadowPod,
}


def parse_kind(body: dict[str, Any]) -> Kind:
    """Any of the three kinds, by its `kind`; KeyError for another, ValidationError if wrong."""
    return _KINDS[body["kind"]].from_dict(body)
