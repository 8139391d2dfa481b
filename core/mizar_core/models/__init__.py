"""The three kinds of Mizar's API, as the API server stores them.

CEL rules beside the fields validate each object alone; `mizar_core.validation` validates objects
against each other.
"""

from __future__ import annotations

from mizar_core.models.default_quota import DefaultQuota
from mizar_core.models.gpupool import (
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
from mizar_core.models.gpuquota import (
    GPUQuota,
    GPUQuotaStatus,
    ProfileStatus,
    SpotStatus,
    default_quota_spec,
    idle_timeout_of,
    isolation_of,
)
from mizar_core.models.isolation import (
    ComputeMode,
    Isolation,
    IsolationOverride,
    MemoryMode,
)
from mizar_core.models.profile_quota import ProfileQuota
from mizar_core.models.shadowpod import (
    CardStatus,
    DeviceStatus,
    Holder,
    Phase,
    ShadowPod,
    ShadowPodStatus,
)

__all__ = [
    "BUILT_IN_PROFILES",
    "CardCounts",
    "CardStatus",
    "ComputeMode",
    "DefaultQuota",
    "DeviceStatus",
    "GPUPool",
    "GPUPoolSpec",
    "GPUPoolStatus",
    "GPUQuota",
    "GPUQuotaStatus",
    "Holder",
    "Isolation",
    "IsolationOverride",
    "MemoryMode",
    "ModelCounts",
    "Phase",
    "Profile",
    "ProfileQuota",
    "ProfileStatus",
    "ShadowPod",
    "ShadowPodStatus",
    "ShareVariables",
    "Spot",
    "SpotStatus",
    "Tenancy",
    "default_quota_spec",
    "idle_timeout_of",
    "isolation_of",
]
