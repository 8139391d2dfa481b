"""The three kinds of Mizar's API, as the API server stores them.

What a single object can get wrong is said by the rules that `hack/gen_crds.py` adds to the
schemas; what only two objects together can get wrong, by `validation`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, computed_field, model_validator

from mizar_core.base import Model, Time
from mizar_core.conditions import Condition
from mizar_core.fields import (
    Cards,
    Count,
    Devices,
    LabelMap,
    LabelName,
    Name,
    Prefix,
    Quantity,
    Scaling,
    Seconds,
    Text,
)
from mizar_core.names import API_VERSION, DEFAULT_PREFIX, PHYSICAL_RESOURCE, ApiVersion
from mizar_core.quantities import parse_bytes

Tenancy = Literal["PerNamespace", "Shared"]
MemoryMode = Literal["Hard", "Oversubscribe"]
ComputeMode = Literal["None", "Hard", "Soft", "Weighted"]
Backend = Literal["Auto", "Shim", "MPS", "None"]
Phase = Literal["Pending", "Ready", "Draining", "Lost"]
Health = Literal["Healthy", "Unhealthy"]


class OwnerReference(Model):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Model):
    """The part of an object's metadata that Mizar reads."""

    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Profile(Model):
    """A shape of shadow pods: `devices` virtual devices over `cards` cards."""

    devices: Devices
    cards: Cards
    memory: Quantity | None = None

    @model_validator(mode="after")
    def _divides(self) -> Profile:
        if self.devices % self.cards:
            raise ValueError(f"{self.cards} cards do not divide {self.devices} devices")
        return self

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of card memory per device; None for an even share of the card."""
        return None if self.memory is None else parse_bytes(self.memory)


BUILT_IN_PROFILES = tuple(Profile(devices=n, cards=n // 2) for n in (2, 4, 8, 16))


class Isolation(Model):
    """How containers on one card are kept apart."""

    memory: MemoryMode = "Hard"
    compute: ComputeMode = "None"
    backend: Backend = "Auto"

    def overridden_by(self, override: IsolationOverride | None) -> Isolation:
        """This isolation, with what a quota says differently."""
        if override is None:
            return self
        return self.changed(**override.model_dump(exclude_none=True))


class IsolationOverride(Model):
    """What a quota changes of its pool's isolation; None keeps the pool's."""

    memory: MemoryMode | None = None
    compute: ComputeMode | None = None
    backend: Backend | None = None


class Toleration(Model):
    """As in a pod's spec."""

    key: Text | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: Text | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(strict=True)] | None = None


class LowPower(Model):
    """When a card whose owner declared itself low-power counts as idle and may be lent."""

    idle_after_seconds: Seconds = 60
    max_utilisation_percent: Annotated[int, Field(strict=True, ge=0, le=100)] = 5


class GPUPoolSpec(Model):
    """Which cards are shared, and how."""

    node_selector: LabelMap = Field(default_factory=dict)
    card_models: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    profiles: Annotated[tuple[Profile, ...], Field(min_length=1, max_length=16)] = BUILT_IN_PROFILES
    resource_prefix: Prefix = DEFAULT_PREFIX
    tenancy: Tenancy = "PerNamespace"
    isolation: Isolation = Isolation()
    idle_timeout_seconds: Seconds = 300
    memory_scaling: Scaling = "1"
    core_scaling: Scaling = "1"
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    runtime_class_name: Name | None = None
    physical_resource: Name = PHYSICAL_RESOURCE
    low_power: LowPower | None = None

    def profile(self, devices: int) -> Profile | None:
        """The pool's profile of that many devices."""
        return next((one for one in self.profiles if one.devices == devices), None)


class CardCounts(Model):
    """Cards of a pool. Held: by shadow pods. Lent: to spot pods."""

    total: Count = 0
    held: Count = 0
    healthy: Count = 0
    lent: Count = 0


class ModelCounts(Model):
    """Cards of one model."""

    model: Name
    total: Count = 0
    held: Count = 0
    healthy: Count = 0


class GPUPoolStatus(Model):
    cards: CardCounts = CardCounts()
    models: Annotated[tuple[ModelCounts, ...], Field(max_length=64)] = ()
    observed_generation: Count | None = None
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = ()


class GPUPool(Model):
    """Cards of a cluster that are shared, and the rules for sharing them."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["GPUPool"] = "GPUPool"
    metadata: ObjectMeta = ObjectMeta()
    spec: GPUPoolSpec = GPUPoolSpec()
    status: GPUPoolStatus = GPUPoolStatus()


class ProfileQuota(Model):
    """How many shadow pods of one profile a namespace may have; `min` are kept warm."""

    devices: Devices
    min: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    max: Annotated[int, Field(strict=True, ge=0, le=1000)]

    @model_validator(mode="after")
    def _ordered(self) -> ProfileQuota:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class GPUQuotaSpec(Model):
    """What a namespace may take of a pool."""

    pool: LabelName
    profiles: Annotated[tuple[ProfileQuota, ...], Field(min_length=1, max_length=16)]
    max_cards: Count | None = None
    isolation: IsolationOverride | None = None
    idle_timeout_seconds: Seconds | None = None


class ProfileStatus(Model):
    """Devices of one profile; `ready` is negative when share pods wait for devices."""

    devices: Devices
    ready: int = 0
    pipelining: Count = 0
    in_use: Count = 0
    waiting: Count = 0
    shadow_pods: Count = 0


class GPUQuotaStatus(Model):
    profiles: Annotated[tuple[ProfileStatus, ...], Field(max_length=16)] = ()
    ready: int = 0
    pipelining: Count = 0
    in_use: Count = 0
    waiting: Count = 0
    cards: Count = 0
    next_sequence: Annotated[int, Field(strict=True, ge=0)] = 0
    observed_generation: Count | None = None
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = ()


class GPUQuota(Model):
    """A namespace's right to shadow pods of a pool."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["GPUQuota"] = "GPUQuota"
    metadata: ObjectMeta = ObjectMeta()
    spec: GPUQuotaSpec
    status: GPUQuotaStatus = GPUQuotaStatus()


class ShadowPodSpec(Model):
    """What the shadow pod was made for; never changes."""

    pool: LabelName
    quota: LabelName
    devices: Devices
    cards: Cards

    @model_validator(mode="after")
    def _divides(self) -> ShadowPodSpec:
        if self.devices % self.cards:
            raise ValueError(f"{self.cards} cards do not divide {self.devices} devices")
        return self


class CardStatus(Model):
    """A card that the shadow pod holds; `index`: its place among them, as in `card_of`."""

    uuid: Name
    model: Text = ""
    memory_mib: Annotated[int, Field(alias="memoryMiB", strict=True, ge=0)] = 0
    index: Annotated[int, Field(strict=True, ge=0, lt=16)] = 0


class Holder(Model):
    """The container that holds a virtual device."""

    namespace: Name
    name: Name
    container: Name


class DeviceStatus(Model):
    """A virtual device; `card` is the UUID of the card that it lies on."""

    id: Annotated[str, Field(strict=True, min_length=1, max_length=384)]
    card: Text = ""
    health: Health = "Healthy"
    holder: Holder | None = None


class ShadowPodStatus(Model):
    """The operator writes `phase` and the condition Scheduled, the node agent all the rest."""

    phase: Phase | None = None
    node: Text | None = None
    cards: Annotated[tuple[CardStatus, ...], Field(max_length=16)] = ()
    devices: Annotated[tuple[DeviceStatus, ...], Field(max_length=256)] = ()
    idle_since: Time | None = None
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def usage(self) -> str | None:
        """Devices held of devices there are, `1/2`, for people; None while there are none."""
        held = sum(one.holder is not None for one in self.devices)
        return f"{held}/{len(self.devices)}" if self.devices else None


class ShadowPod(Model):
    """A pod that holds whole cards, so that share pods can have parts of them."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["ShadowPod"] = "ShadowPod"
    metadata: ObjectMeta = ObjectMeta()
    spec: ShadowPodSpec
    status: ShadowPodStatus = ShadowPodStatus()


Kind = GPUPool | GPUQuota | ShadowPod


def isolation_of(pool: GPUPoolSpec, quota: GPUQuotaSpec) -> Isolation:
    """The isolation that holds for a quota's containers."""
    return pool.isolation.overridden_by(quota.isolation)


def idle_timeout_of(pool: GPUPoolSpec, quota: GPUQuotaSpec) -> int:
    """Seconds after which a quota's idle shadow pod is reaped."""
    own = quota.idle_timeout_seconds
    return pool.idle_timeout_seconds if own is None else own


def parse_kind(body: dict[str, Any]) -> Kind:
    """Any of the three kinds, by its `kind`; ValidationError or KeyError if it is none."""
    kinds: dict[str, type[Kind]] = {
        "GPUPool": GPUPool,
        "GPUQuota": GPUQuota,
        "ShadowPod": ShadowPod,
    }
    return kinds[body["kind"]].from_dict(body)
