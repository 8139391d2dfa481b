"""GPUPool: which cards are shared, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, computed_field, model_validator

from mizar_core.condition import Condition
from mizar_core.field_types import (
    Alias,
    Cards,
    Count,
    Devices,
    Generation,
    Memory,
    Name,
    NamespaceName,
    NodeSelector,
    ObjectName,
    Prefix,
    ResourceName,
    Scaling,
    Seconds,
)
from mizar_core.model_base import Model
from mizar_core.models.default_quota import DefaultQuota
from mizar_core.models.isolation import ABOVE_HARD, Isolation
from mizar_core.models.meta import ObjectMeta
from mizar_core.models.toleration import Toleration
from mizar_core.names import (
    API_VERSION,
    DEFAULT_PREFIX,
    PHYSICAL_RESOURCE,
    ApiVersion,
)
from mizar_core.quantities import COUNT_MAX, WHOLE_CARD, parse_bytes
from mizar_core.schema import (
    LIST_ATOMIC,
    LIST_SET,
    SHORT_NAME,
    immutable,
    is_scaling,
    list_map,
    rule,
    rule_about,
    rules,
)

Tenancy = Literal["PerNamespace", "Shared"]
NodePolicy = Literal["Scheduler", "Binpack"]
ShareVariables = Literal["HAMi", "Fractions"]

DIVIDES = rule_about(
    "self.cards < 1 || self.devices % self.cards == 0",
    "%d devices cannot be spread evenly over %d cards: make devices a multiple of cards",
    "self.devices",
    "self.cards",
)
_SAME_SHAPE = rule(
    "self.cards == oldSelf.cards",
    "cards of a profile cannot be changed while shadow pods of the old shape may run:"
    " add a profile with another number of devices and move quotas to it",
)
_TENANCY = immutable("tenancy", "make another GPUPool and move quotas to it")


_POOL_RULES = (
    rule(
        f"self.isolation.memory != 'Hard' || !{is_scaling('self.memoryScaling')}"
        " || double(string(self.memoryScaling)) <= 1.0",
        ABOVE_HARD,
    ),
    rule(
        f"!{is_scaling('self.coreScaling')} || self.profiles.all(p,"
        f" double(string(self.coreScaling)) * {WHOLE_CARD}.0 * double(p.cards)"
        " >= double(p.devices))",
        "coreScaling leaves less than a basis point of a card's time to a device: raise it",
    ),
    rule(
        "!self.physicalResource.startsWith(self.resourcePrefix + '/')",
        "resourcePrefix is the prefix of physicalResource, which another device plugin offers:"
        " use a DNS name of your own, such as mizar.share",
    ),
    rule(
        "self.profiles.all(p, !has(p.alias) || p.alias != self.physicalResource &&"
        " self.profiles.filter(o, has(o.alias) && o.alias == p.alias).size() == 1)",
        "each alias must be unique and differ from physicalResource",
    ),
    rule(
        "self.sizes.all(s, self.profiles.exists(p, p.devices == s.devices))",
        "devices of a size must be those of a profile of the pool",
    ),
    rule(
        "self.sizes.all(s, s.name != self.physicalResource"
        " && !self.profiles.exists(p, has(p.alias) && p.alias == s.name))",
        "the name of a size must differ from physicalResource and from each alias",
    ),
)


class Profile(Model):
    """A shape of shadow pods: `devices` virtual devices over `cards` cards."""

    model_config = ConfigDict(json_schema_extra=rules(DIVIDES, _SAME_SHAPE))

    devices: Devices
    """Virtual devices per shadow pod; share pods request {resourcePrefix}/gpu.{devices}."""

    cards: Cards
    """Cards per shadow pod; each card is carved into devices / cards virtual devices."""

    memory: Memory | None = None
    """Card memory per virtual device, such as 8Gi. The default and the maximum is an even share of
    the card. Where a card of the pool is too small, its devices have an even share instead, and
    the pool's condition Ready and the pods' events say so."""

    alias: Alias | None = None
    """Another name under which pods may request a device, such as nvidia.com/vgpu. It must be one
    of webhook.resourceNames in the chart's values."""

    @model_validator(mode="after")
    def _divides(self) -> Profile:
        if self.devices % self.cards:
            raise ValueError(f"{self.cards} cards do not divide {self.devices} devices")
        return self

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of card memory per device; None for an even share of the card."""
        return None if self.memory is None else parse_bytes(self.memory)


class Size(Model):
    """A resource by whose amount pods request a part of one card, as in HAMi: its MiB or its
    percent, for example."""

    name: Alias
    """The resource, such as nvidia.com/gpumem. It must be one of webhook.resourceNames in the
    chart's values."""

    devices: Devices
    """The profile whose devices the pods get, by its number of devices."""

    units_per_device: Annotated[int, Field(strict=True, ge=1, le=COUNT_MAX)]
    """How many units of the resource one device has. A container gets as many devices as the
    largest of its sizes needs, rounded up, all of them of one card."""


BUILT_IN_PROFILES = tuple(Profile(devices=n, cards=n // 2) for n in (2, 4, 8, 16))


class Spot(Model):
    """Whether and how the pool's cards are lent to spot pods while their owners are idle."""

    enabled: Annotated[bool, Field(strict=True)] = False
    """Lend cards whose owners have all agreed to it and are all idle."""

    idle_after_seconds: Seconds = 60
    """Seconds that all owners of a card must have been idle before it is lent."""

    max_utilisation_percent: Annotated[int, Field(strict=True, ge=0, le=100)] = 0
    """Percent of the card's time up to which an owner without the shim counts as idle. Once its
    card is lent, any work makes the owner active again, so the card of an owner that always works
    a little is lent and taken back again and again."""

    reserve: Memory = "1Gi"
    """Memory of the card that no borrower gets, so that an owner that becomes active can start to
    work at once."""

    grace_seconds: Annotated[int, Field(strict=True, ge=0, le=30)] = 0
    """The most seconds between SIGTERM and SIGKILL that a borrower may request with the annotation
    mizar.share/spot-grace. In this time the borrower computes nothing, but keeps its memory."""

    notice_seconds: Annotated[int, Field(strict=True, ge=0, le=30)] = 0
    """The most seconds of notice that a borrower may request with the annotation
    mizar.share/spot-notice. In this time it continues to compute, beside the active owner."""

    namespaces: Annotated[
        tuple[NamespaceName, ...], Field(max_length=256, json_schema_extra=LIST_SET)
    ] = ()
    """Namespaces whose pods all agree to lend their cards, even without the annotation
    mizar.share/low-power."""


class GPUPoolSpec(Model):
    """Which cards are shared, and how."""

    model_config = ConfigDict(json_schema_extra=rules(*_POOL_RULES))

    node_selector: NodeSelector = Field(default_factory=dict)
    """Labels of the nodes whose cards are shared; all nodes by default."""

    card_models: Annotated[tuple[Name, ...], Field(max_length=32, json_schema_extra=LIST_SET)] = ()
    """Patterns such as NVIDIA-A100-*. The node's label nvidia.com/gpu.product must match one of
    them (for MIG devices of strategy mixed, the label of their size, such as
    nvidia.com/mig-1g.5gb.product). By default, cards of all models are shared, also on nodes
    without the label. Case is ignored, and a blank matches a dash: the pattern may be NVML's name
    of the model, such as "NVIDIA A100-SXM4-40GB"."""

    profiles: Annotated[
        tuple[Profile, ...],
        Field(min_length=1, max_length=15, json_schema_extra=list_map("devices")),
    ] = BUILT_IN_PROFILES
    """The shapes of shadow pods that quotas may name."""

    sizes: Annotated[tuple[Size, ...], Field(max_length=8, json_schema_extra=list_map("name"))] = ()
    """Resources by whose amounts pods may request a part of one card instead of devices, such as
    nvidia.com/gpumem with 4000 units (MiB) per device. Other pools may have the same: that of the
    namespace's quota counts."""

    resource_prefix: Prefix = DEFAULT_PREFIX
    """The DNS name before the slash in the resources that share pods request."""

    tenancy: Annotated[Tenancy, Field(json_schema_extra=rules(_TENANCY))] = "PerNamespace"
    """PerNamespace: only pods of a shadow pod's own namespace get its devices. Shared: pods of any
    namespace do."""

    node_policy: NodePolicy = "Scheduler"
    """Which nodes new pods prefer. Scheduler: those that the scheduler's own settings prefer, which
    usually spread pods. Binpack: shadow pods prefer nodes with other shadow pods, and share pods
    nodes with shadow pods in use, so that whole cards and nodes stay free. A share pod that has pod
    affinity, anti-affinity or topology spread constraints of its own is left as it is."""

    same_card: Annotated[bool, Field(strict=True)] = False
    """Whether a container that requests several devices must get them all from one card; if no card
    of the node has as many free, it does not start, and its pod is replaced. The annotation
    mizar.share/same-card of a pod, "true" or "false", overrides this. A change applies to
    containers that have not started yet."""

    isolation: Isolation = Isolation()
    """How containers on one card are kept apart; a quota may override it."""

    idle_timeout_seconds: Seconds = 300
    """Seconds after which an idle shadow pod is deleted and its cards are free again."""

    memory_scaling: Scaling = "1"
    """Memory of all devices of a card together, as a multiple of the card's, such as "1.5" (in
    quotes). Above 1, not all of it may fit on the card at once."""

    core_scaling: Scaling = "1"
    """Compute of all devices of a card together, as a multiple of the card's, such as "1.5" (in
    quotes)."""

    tolerations: Annotated[
        tuple[Toleration, ...], Field(max_length=32, json_schema_extra=LIST_ATOMIC)
    ] = ()
    """Taints that the shadow pods tolerate."""

    runtime_class_name: ObjectName | None = None
    """The RuntimeClass of shadow pods; none by default."""

    priority_class_name: Name | None = None
    """The PriorityClass of shadow pods; by default that of shadowPods.priorityClass in the chart's
    values. A change applies to new shadow pods. Whole-card pods of a higher priority may take the
    cards of idle shadow pods. If its preemptionPolicy is not Never, shadow pods evict running pods
    of lower priority."""

    share_variables: Annotated[
        tuple[ShareVariables, ...], Field(max_length=8, json_schema_extra=LIST_SET)
    ] = ()
    """Environment variables that tell a container its share. They only inform: the limits do not
    depend on them. HAMi: CUDA_DEVICE_MEMORY_LIMIT_0 and so on, in MiB, such as 8192m, and, if
    compute is limited, CUDA_DEVICE_SM_LIMIT, in percent. Fractions: MIZAR_MEMORY_FRACTION and
    MIZAR_COMPUTE_FRACTION, as fractions of the whole card."""

    physical_resource: ResourceName = PHYSICAL_RESOURCE
    """The resource by which pods request whole cards: of a device plugin, or, with nvidia.com/gpu,
    of NVIDIA's DRA driver. With nvidia.com/mig-1g.5gb, or any other size, MIG devices of the device
    plugin are shared like cards."""

    spot: Spot = Spot()
    """Lends whole cards whose owners have declared themselves low-power and are idle."""

    default_quota: DefaultQuota | None = None
    """The GPUQuota that a namespace without one gets when its first share pod waits; none by
    default. A change does not affect existing GPUQuotas."""

    @model_validator(mode="after")
    def _others_prefix(self) -> GPUPoolSpec:
        if self.physical_resource.startswith(f"{self.resource_prefix}/"):
            raise ValueError(f"'{self.resource_prefix}' is the prefix of physicalResource")
        return self

    @model_validator(mode="after")
    def _one_alias_each(self) -> GPUPoolSpec:
        named = [one.alias for one in self.profiles if one.alias]
        if len(set(named) | {self.physical_resource}) <= len(named):
            raise ValueError("each alias must be unique and differ from physicalResource")
        return self

    @model_validator(mode="after")
    def _sizes_of_profiles(self) -> GPUPoolSpec:
        names = {one.name for one in self.sizes}
        if len(names) < len(self.sizes) or names & {*self.aliases, self.physical_resource}:
            raise ValueError(
                "the name of a size must be unique and differ from physicalResource and each alias"
            )
        for one in self.sizes:
            if self.profile(one.devices) is None:
                raise ValueError(f"size '{one.name}': there is no profile of {one.devices} devices")
        return self

    @property
    def aliases(self) -> dict[str, int]:
        """The number of devices of each profile that has an alias, by the alias."""
        return {one.alias: one.devices for one in self.profiles if one.alias}

    @property
    def names(self) -> set[str]:
        """The names that the pool has for profiles and sizes beside its own resources."""
        return {*self.aliases, *(one.name for one in self.sizes)}

    def profile(self, devices: int) -> Profile | None:
        """The pool's profile of that many devices; None if it has none."""
        return next((one for one in self.profiles if one.devices == devices), None)


class CardCounts(Model):
    """Cards of the pool."""

    total: Count = 0
    """Cards on all nodes of the pool."""

    held: Count = 0
    """Cards that the pool's shadow pods hold."""

    healthy: Count = 0
    """Cards that are healthy."""

    lost: Count = 0
    """Cards that shadow pods have lost, and whose share pods have not ended yet."""

    lent: Count = 0
    """Cards that are lent to spot pods."""

    @computed_field(json_schema_extra={"maxLength": 32})  # type: ignore[prop-decorator]
    @property
    def usage(self) -> str:
        """Held / total, such as 1/2, for people."""
        return f"{self.held}/{self.total}"


class ModelCounts(Model):
    """Cards of one model."""

    model: Name
    total: Count = 0
    held: Count = 0
    healthy: Count = 0


class GPUPoolStatus(Model):
    """State of the pool's cards."""

    cards: CardCounts = CardCounts()
    models: Annotated[
        tuple[ModelCounts, ...], Field(max_length=64, json_schema_extra=list_map("model"))
    ] = ()
    observed_generation: Generation | None = None
    conditions: Annotated[
        tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))
    ] = ()


class GPUPool(Model):
    """Cards of a cluster that are shared, and the rules for sharing them."""

    model_config = ConfigDict(json_schema_extra=rules(SHORT_NAME))

    api_version: ApiVersion = API_VERSION
    kind: Literal["GPUPool"] = "GPUPool"
    metadata: ObjectMeta = ObjectMeta()
    spec: GPUPoolSpec = GPUPoolSpec()
    status: GPUPoolStatus = GPUPoolStatus()
