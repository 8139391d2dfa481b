"""The part of a Kubernetes object's metadata that Mizar reads."""

from __future__ import annotations

from pydantic import Field

from mizar_core.model_base import Model, Time


class OwnerReference(Model):
    """The owner of an object, for Kubernetes' garbage collector."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None


class ObjectMeta(Model):
    """As in every Kubernetes object, without what Mizar never reads."""

    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()
