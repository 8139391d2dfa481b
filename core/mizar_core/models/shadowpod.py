"""ShadowPod: a pod that holds whole cards, and which containers have which parts of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, computed_field, model_validator

from mizar_core.condition import Condition
from mizar_core.field_types import CARDS_MAX, DEVICES_MAX, Cards, Devices, LabelName, Name, Text
from mizar_core.model_base import Model, Time
from mizar_core.models.gpupool import DIVIDES
from mizar_core.models.meta import ObjectMeta
from mizar_core.names import API_VERSION, ApiVersion
from mizar_core.schema import SHORT_NAME, immutable, list_map, rules

Phase = Literal["Pending", "Ready", "Draining", "Lost"]
Health = Literal["Healthy", "Unhealthy"]

_SPEC = immutable("spec", "delete this ShadowPod; the operator makes those that are needed")


class ShadowPodSpec(Model):
    """What the shadow pod was created for; cannot be changed."""

    model_config = ConfigDict(json_schema_extra=rules(DIVIDES, _SPEC))

    pool: LabelName
    """The GPUPool that the cards belong to."""

    quota: LabelName
    """The GPUQuota of the same namespace that it counts against."""

    devices: Devices
    """Virtual devices into which its cards are carved."""

    cards: Cards
    """Cards that it holds."""

    replicas: Annotated[int, Field(strict=True, ge=1, le=1)] = 1
    """Number of pods that hold the cards; always 1. Kubernetes reads it as the ShadowPod's scale: a
    PodDisruptionBudget that selects shadow pods permits no eviction without it."""

    @model_validator(mode="after")
    def _divides(self) -> ShadowPodSpec:
        if self.devices % self.cards:
            raise ValueError(f"{self.cards} cards do not divide {self.devices} devices")
        return self


class CardStatus(Model):
    """A card that the shadow pod holds."""

    uuid: Name
    model: Text = ""
    memory_mib: Annotated[int, Field(alias="memoryMiB", strict=True, ge=0)] = 0
    index: Annotated[int, Field(strict=True, ge=0, le=CARDS_MAX - 1)] = 0
    """Index among the shadow pod's cards, from 0; device i is on card i / (devices / cards)."""

    lost: Annotated[bool, Field(strict=True)] | None = None
    """Whether the card is no longer in the node, so that pods that use its devices are evicted;
    absent if it is there. If no card is left, condition Ready says so instead."""


class Holder(Model):
    """The container that holds a virtual device."""

    namespace: Name
    name: Name
    container: Name


class DeviceStatus(Model):
    """A virtual device."""

    id: Annotated[str, Field(strict=True, min_length=1, max_length=384)]
    """The device's ID at the kubelet: {namespace}/{shadow pod}-{index}."""

    card: Text = ""
    """The UUID of the card that the device is a part of."""

    health: Health = "Healthy"
    memory_mib: Annotated[int | None, Field(alias="memoryMiB", strict=True, ge=0)] = None
    """MiB of the card's memory that its container may use."""

    compute_percent: Annotated[int | None, Field(strict=True, ge=0, le=100)] = None
    """Percent of the card's time that its container may use; unset if compute is not limited."""

    holder: Holder | None = None
    """The container that holds the device; unset while the device is free."""


class ShadowPodStatus(Model):
    """The operator writes `phase` and the condition Scheduled, the node agent everything else."""

    phase: Phase | None = None
    node: Text | None = None
    cards: Annotated[
        tuple[CardStatus, ...],
        Field(max_length=CARDS_MAX, json_schema_extra=list_map("uuid")),
    ] = ()
    devices: Annotated[
        tuple[DeviceStatus, ...],
        Field(max_length=DEVICES_MAX, json_schema_extra=list_map("id")),
    ] = ()
    idle_since: Time | None = None
    """The time since which no container has held a device; unset while one does."""

    conditions: Annotated[
        tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))
    ] = ()

    @computed_field(json_schema_extra={"maxLength": 32})  # type: ignore[prop-decorator]
    @property
    def usage(self) -> str | None:
        """Devices held / all devices, such as 1/2, for people."""
        held = sum(one.holder is not None for one in self.devices)
        return f"{held}/{len(self.devices)}" if self.devices else None


class ShadowPod(Model):
    """A pod that holds whole cards, so that share pods can have parts of them."""

    model_config = ConfigDict(json_schema_extra=rules(SHORT_NAME))

    api_version: ApiVersion = API_VERSION
    kind: Literal["ShadowPod"] = "ShadowPod"
    metadata: ObjectMeta = ObjectMeta()
    spec: ShadowPodSpec
    status: ShadowPodStatus = ShadowPodStatus()
