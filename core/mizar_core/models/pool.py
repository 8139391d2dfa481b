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
from mizar_core.quantities import WHOLE_CARD, parse_bytes
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
)


class Profile(Model):
    """A shape of shadow pods: `devices` virtual devices over `cards` cards."""

    model_config = ConfigDict(json_schema_extra=rules(DIVIDES, _SAME_SHAPE))

    devices: Devices
    """Virtual devices per shadow pod; share pods ask for {resourcePrefix}/gpu.{devices}."""

    cards: Cards
    """Cards per shadow pod; every card carries devices / cards virtual devices."""

    memory: Memory | None = None
    """Card memory per virtual device, such as 8Gi. By default, and at most, an even share: on
    smaller cards of the pool it is less, as the pool's condition Ready and the pods' events say."""

    alias: Alias | None = None
    """Another resource by which pods may ask for a device, such as nvidia.com/vgpu: one of those
    that Mizar was installed with (webhook.resourceNames of its chart)."""

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


class Spot(Model):
    """Whether and how the pool's cards are lent to spot pods while their owners sleep."""

    enabled: Annotated[bool, Field(strict=True)] = False
    """Lend cards whose owners have all agreed and are all idle."""

    idle_after_seconds: Seconds = 60
    """Seconds that all owners of a card must have been idle before it is lent."""

    max_utilisation_percent: Annotated[int, Field(strict=True, ge=0, le=100)] = 0
    """Percent of the card's time up to which an owner without the shim counts as idle; once its
    card is lent, any work makes it active, so the card of one that always works a little is lent
    and taken back in turns."""

    reserve: Memory = "1Gi"
    """Memory of the card that no borrower gets, so that an owner that wakes can start at once."""

    grace_seconds: Annotated[int, Field(strict=True, ge=0, le=30)] = 0
    """Most seconds between SIGTERM and SIGKILL that a borrower may ask for; meanwhile it computes
    nothing, but keeps its memory."""

    notice_seconds: Annotated[int, Field(strict=True, ge=0, le=30)] = 0
    """Most seconds of notice that a borrower may ask for: until they are over it goes on computing,
    beside the owner that woke up."""

    namespaces: Annotated[
        tuple[NamespaceName, ...], Field(max_length=256, json_schema_extra=LIST_SET)
    ] = ()
    """Namespaces whose pods all agree to lend, even without the annotation
    mizar.share/low-power."""


class GPUPoolSpec(Model):
    """Which cards are shared, and how."""

    model_config = ConfigDict(json_schema_extra=rules(*_POOL_RULES))

    node_selector: NodeSelector = Field(default_factory=dict)
    """Labels of the nodes whose cards are shared; all nodes by default."""

    card_models: Annotated[tuple[Name, ...], Field(max_length=32, json_schema_extra=LIST_SET)] = ()
    """Patterns such as NVIDIA-A100-*, one of which the node's label nvidia.com/gpu.product must
    match (for MIG devices of strategy mixed, that of their size: nvidia.com/mig-1g.5gb.product);
    all models by default, nodes without the label too. Upper and lower case are the same,
    and so are blank and dash: NVML's "NVIDIA A100-SXM4-40GB" is that label's value."""

    profiles: Annotated[
        tuple[Profile, ...],
        Field(min_length=1, max_length=15, json_schema_extra=list_map("devices")),
    ] = BUILT_IN_PROFILES
    """The shapes of shadow pods that quotas may name."""

    resource_prefix: Prefix = DEFAULT_PREFIX
    """The DNS name before the slash of the resources that share pods ask for."""

    tenancy: Annotated[Tenancy, Field(json_schema_extra=rules(_TENANCY))] = "PerNamespace"
    """PerNamespace: a shadow pod's devices go to its own namespace only. Shared: to any."""

    isolation: Isolation = Isolation()
    """How containers on one card are kept apart; a quota may say otherwise."""

    idle_timeout_seconds: Seconds = 300
    """Seconds after which a shadow pod that nobody uses gives its cards back."""

    memory_scaling: Scaling = "1"
    """Memory handed out, as a multiple of the card's, such as "1.5" (in quotes). Above 1, not all
    of it may fit at once."""

    core_scaling: Scaling = "1"
    """Compute handed out, as a multiple of the card's, such as "1.5" (in quotes)."""

    tolerations: Annotated[
        tuple[Toleration, ...], Field(max_length=32, json_schema_extra=LIST_ATOMIC)
    ] = ()
    """Taints that the shadow pods tolerate."""

    runtime_class_name: ObjectName | None = None
    """The runtime class of shadow pods."""

    priority_class_name: Name | None = None
    """The PriorityClass of shadow pods made from now on; by default the one that Mizar was
    installed with. Whole-card pods above it may take the cards of idle shadow pods."""

    share_variables: Annotated[
        tuple[ShareVariables, ...], Field(max_length=8, json_schema_extra=LIST_SET)
    ] = ()
    """Variables that tell a container its share, for its own use and never as the limit. HAMi:
    CUDA_DEVICE_MEMORY_LIMIT_0 and so on, in MiB as 8192m, and CUDA_DEVICE_SM_LIMIT, in percent,
    where compute is limited. Fractions: MIZAR_MEMORY_FRACTION and MIZAR_COMPUTE_FRACTION, of the
    whole card."""

    physical_resource: ResourceName = PHYSICAL_RESOURCE
    """The resource by which the stock device plugin hands out whole cards. With
    nvidia.com/mig-1g.5gb, or any other size, MIG devices are shared like cards."""

    spot: Spot = Spot()
    """Lending whole cards whose owners declared themselves low-power and are idle."""

    default_quota: DefaultQuota | None = None
    """What a namespace without a GPUQuota gets when its first share pod waits; nothing by default.
    A change of it changes no GPUQuota that is there already."""

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

    @property
    def aliases(self) -> dict[str, int]:
        """The profiles' aliases, each with its number of devices."""
        return {one.alias: one.devices for one in self.profiles if one.alias}

    def profile(self, devices: int) -> Profile | None:
        """The pool's profile of that many devices."""
        return next((one for one in self.profiles if one.devices == devices), None)


class CardCounts(Model):
    """Cards of the pool."""

    total: Count = 0
    """On all nodes of the pool."""

    held: Count = 0
    """By the pool's shadow pods."""

    healthy: Count = 0
    """Fit for use."""

    lost: Count = 0
    """Lost by shadow pods whose share pods have not ended yet."""

    lent: Count = 0
    """Lent to spot pods."""

    @computed_field(json_schema_extra={"maxLength": 32})  # type: ignore[prop-decorator]
    @property
    def usage(self) -> str:
        """Held of total, such as 1/2, for people."""
        return f"{self.held}/{self.total}"


class ModelCounts(Model):
    """Cards of one model."""

    model: Name
    total: Count = 0
    held: Count = 0
    healthy: Count = 0


class GPUPoolStatus(Model):
    """What the pool's cards are doing."""

    cards: CardCounts = CardCounts()
    models: Annotated[
        tuple[ModelCounts, ...], Field(max_length=64, json_schema_extra=list_map("model"))
    ] = ()
    observed_generation: Count | None = None
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
