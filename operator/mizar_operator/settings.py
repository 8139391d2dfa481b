"""The operator's settings: flags and environment variables."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from mizar_kube import settings as common
from mizar_operator.manifests import PodSettings


class Settings(common.Settings):
    """Creates shadow pods when a tenant runs short of virtual devices, and reaps idle ones."""

    model_config = SettingsConfigDict(cli_prog_name="mizar-operator")

    namespace: str = Field(
        "mizar-system", description="namespace of the Lease; else $POD_NAMESPACE, else the pod's"
    )
    pause_image: str = Field("registry.k8s.io/pause:3.10", description="image of shadow pods")
    shadow_priority_class: str = Field("", description="PriorityClass of shadow pods; else none")
    shadow_grace: int = Field(
        0,
        ge=0,
        validation_alias=AliasChoices("shadow_grace", "shadow_grace_seconds"),
        description="seconds that a shadow pod which others delete keeps its cards",
    )
    shadow_cpu: str = Field("100m", description="CPU request and limit of shadow pods")
    shadow_memory: str = Field("64Mi", description="memory request and limit of shadow pods")
    shadow_labels: dict[str, str] = Field(
        default_factory=dict, description="further labels of shadow pods, as JSON"
    )
    shadow_annotations: dict[str, str] = Field(
        default_factory=dict, description="further annotations of shadow pods, as JSON"
    )
    default_pool: dict[str, Any] | None = Field(
        None, description="spec, as JSON, of the GPUPool to make if there is none"
    )
    spot: bool = Field(False, description="whether this installation lends idle cards to spot pods")
    deployment: str = Field(
        "", description="the operator's own Deployment, with which its Lease goes"
    )
    leader_election: bool = Field(True, description="--no-...: for one replica alone, as in tests")
    metrics_port: common.Port = Field(
        9464,
        validation_alias=AliasChoices("metrics_port", "port"),
        description="of /healthz, /readyz and /metrics",
    )
    resync: float = Field(
        300.0,
        gt=0,
        validation_alias=AliasChoices("resync", "resync_seconds"),
        description="seconds until everything is looked at again, should a change have been missed",
    )
    workers: int = Field(4, ge=1, description="rounds of different pools at the same time")
    writes_at_once: int = Field(16, ge=1, description="writes to the API server at the same time")

    @property
    def pod_settings(self) -> PodSettings:
        """The settings of the pods of all ShadowPods."""
        return PodSettings(
            image=self.pause_image,
            priority_class=self.shadow_priority_class,
            grace_s=self.shadow_grace,
            cpu=self.shadow_cpu,
            memory=self.shadow_memory,
            labels=self.shadow_labels,
            annotations=self.shadow_annotations,
        )
