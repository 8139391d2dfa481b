"""GPUQuota: how many shadow pods and cards of a pool a namespace may have, and how many it may
borrow."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from mizar_core.condition import Condition
from mizar_core.field_types import DEVICES_MAX, Count, Devices, Generation, LabelName, Seconds
from mizar_core.model_base import Model, Time
from mizar_core.models.gpupool import GPUPool, GPUPoolSpec
from mizar_core.models.isolation import Isolation, IsolationOverride
from mizar_core.models.meta import ObjectMeta
from mizar_core.models.profile_quota import ProfileQuota
from mizar_core.names import API_VERSION, DEFAULT_POOL, ApiVersion
from mizar_core.schema import SHORT_NAME, immutable, list_map, rule, rules

_GRANTS = rule(
    "self.profiles.size() > 0 || has(self.spot)",
    "the quota grants nothing: list the profiles that the namespace may use in profiles, or say in "
    "spot.max how many cards it may borrow, or both",
)
_POOL = immutable("pool", "make another GPUQuota for the other pool and delete this one")


class SpotQuota(Model):
    """What the namespace may borrow."""

    max: Count
    """Cards that the namespace's spot pods may have at the same time."""


class GPUQuotaSpec(Model):
    """What the namespace may take of the pool."""

    model_config = ConfigDict(json_schema_extra=rules(_GRANTS))

    pool: Annotated[LabelName, Field(json_schema_extra=rules(_POOL))] = DEFAULT_POOL
    """The GPUPool's name."""

    profiles: Annotated[
        tuple[ProfileQuota, ...],
        Field(max_length=16, json_schema_extra=list_map("devices")),
    ] = ()
    """The profiles that the namespace may use, and how many shadow pods of each. May be empty if
    `spot` is set: the namespace then only borrows cards."""

    max_cards: Count | None = None
    """Cards that all shadow pods together may hold; unlimited by default."""

    spot: SpotQuota | None = None
    """Cards of idle owners that the namespace may borrow; none by default."""

    isolation: IsolationOverride | None = None
    """Overrides of the pool's isolation."""

    idle_timeout_seconds: Seconds | None = None
    """Seconds after which an idle shadow pod is deleted and its cards are free again; by default as
    in the pool."""

    @model_validator(mode="after")
    def _grants(self) -> GPUQuotaSpec:
        if not self.profiles and self.spot is None:
            raise ValueError("neither profiles nor spot.max: it grants nothing")
        return self

    def profile(self, devices: int) -> ProfileQuota | None:
        """The quota of the profile of that many devices; None if it has none."""
        return next((one for one in self.profiles if one.devices == devices), None)


class ProfileStatus(Model):
    """Devices of one profile."""

    devices: Devices
    ready: Annotated[int, Field(strict=True)] = 0
    """Free devices minus those that share pods wait for; may be negative."""

    pipelining: Count = 0
    """Devices of shadow pods that are being created or are starting."""

    in_use: Count = 0
    """Devices that containers hold."""

    waiting: Count = 0
    """Devices that share pods wait for."""

    shadow_pods: Count = 0
    """Shadow pods of the profile."""


class SpotStatus(Model):
    """What the namespace borrows."""

    in_use: Count = 0
    """Cards that its spot pods have or were promised."""

    waiting: Count = 0
    """Cards that its spot pods wait for."""

    recent_card_seconds: Annotated[int, Field(strict=True, ge=0, le=10**12)] = 0
    """Card-seconds borrowed recently, as of `countedAt`: a second of a borrowed card counts half
    after an hour. Namespaces with fewer go first."""

    counted_at: Time | None = None
    """When `recentCardSeconds` was counted."""


class GPUQuotaStatus(Model):
    """What the namespace has. Numbers of devices are sums over all profiles."""

    # Any number of profiles may have been replaced by others while pods used them.
    profiles: Annotated[
        tuple[ProfileStatus, ...],
        Field(max_length=DEVICES_MAX, json_schema_extra=list_map("devices")),
    ] = ()
    ready: Annotated[int, Field(strict=True)] = 0
    """Free devices minus those that share pods wait for; may be negative."""

    pipelining: Count = 0
    """Devices of shadow pods that are being created or are starting."""

    in_use: Count = 0
    """Devices that containers hold."""

    waiting: Count = 0
    """Devices that share pods wait for, including those of profiles that no quota of the namespace
    has."""

    cards: Count = 0
    """Cards that the shadow pods hold or wait for."""

    spot: SpotStatus | None = None
    """What the namespace borrows; unset while its quota permits none and it borrows none."""

    next_sequence: Annotated[int, Field(strict=True, ge=0)] = 0
    """The number from which the name of the next shadow pod is derived."""

    observed_generation: Generation | None = None
    conditions: Annotated[
        tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))
    ] = ()


class GPUQuota(Model):
    """A namespace's right to shadow pods of a pool."""

    model_config = ConfigDict(json_schema_extra=rules(SHORT_NAME))

    api_version: ApiVersion = API_VERSION
    kind: Literal["GPUQuota"] = "GPUQuota"
    metadata: ObjectMeta = ObjectMeta()
    spec: GPUQuotaSpec
    status: GPUQuotaStatus = GPUQuotaStatus()


def isolation_of(pool: GPUPoolSpec, quota: GPUQuotaSpec) -> Isolation:
    """The isolation of a quota's containers: the pool's, with the quota's overrides."""
    return pool.isolation.overridden_by(quota.isolation)


def idle_timeout_of(pool: GPUPoolSpec, quota: GPUQuotaSpec) -> int:
    """Seconds after which a quota's idle shadow pod is reaped."""
    own = quota.idle_timeout_seconds
    return pool.idle_timeout_seconds if own is None else own


def default_quota_spec(pool: GPUPool) -> GPUQuotaSpec | None:
    """The spec of the GPUQuota that a namespace without one gets of the pool; None if it gets
    none."""
    default = pool.spec.default_quota
    if default is None:
        return None
    return GPUQuotaSpec(
        pool=pool.metadata.name,
        profiles=default.profiles,
        max_cards=default.max_cards,
        isolation=default.isolation,
        idle_timeout_seconds=default.idle_timeout_seconds,
    )
