"""The operator's settings: flags and environment variables."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from mizar_kube import settings as common
from mizar_operator.manifests import PodSettings


class Settings(common.Settings):
    """Creates shadow pods when a tenant runs short of virtual devices, and deletes idle ones."""

    model_config = SettingsConfigDict(cli_prog_name="mizar-operator")

    namespace: str = Field(
        "mizar-system",
        description="namespace of the leader election Lease and of the ConfigMap mizar-spot; "
        f"{common.IF_NAMESPACE_UNSET}",
    )
    pause_image: str = Field("registry.k8s.io/pause:3.10", description="image of shadow pods")
    shadow_priority_class: str = Field("", description="PriorityClass of shadow pods; empty: none")
    shadow_grace: int = Field(
        0,
        ge=0,
        validation_alias=AliasChoices("shadow_grace", "shadow_grace_seconds"),
        description="seconds that a shadow pod keeps its cards after it is deleted by anything "
        "but the operator, for example with its namespace, so that the pods that share them end "
        "first",
    )
    shadow_cpu: str = Field("100m", description="CPU request and limit of shadow pods")
    shadow_memory: str = Field("64Mi", description="memory request and limit of shadow pods")
    shadow_labels: dict[str, str] = Field(
        default_factory=dict, description="additional labels of shadow pods, as a JSON object"
    )
    shadow_annotations: dict[str, str] = Field(
        default_factory=dict, description="additional annotations of shadow pods, as a JSON object"
    )
    default_pool: dict[str, Any] | None = Field(
        None,
        description="spec, as JSON, of the GPUPool `default`, which the operator creates if it "
        "does not exist; unset: it creates none",
    )
    spot: bool = Field(False, description="lend the cards of idle owners to spot pods")
    deployment: str = Field(
        "",
        description="name of the operator's Deployment; it owns the Lease, so that the Lease is "
        "deleted with it",
    )
    leader_election: bool = Field(
        True, description="elect a leader among the replicas; turn it off only for a single replica"
    )
    metrics_port: common.Port = Field(
        9464,
        validation_alias=AliasChoices("metrics_port", "port"),
        description="port of /healthz, /readyz and /metrics",
    )
    resync: float = Field(
        300.0,
        gt=0,
        validation_alias=AliasChoices("resync", "resync_seconds"),
        description="seconds between two checks of all objects, in case a change was missed",
    )
    workers: int = Field(4, ge=1, description="how many pools are reconciled concurrently")
    writes_at_once: int = Field(
        16, ge=1, description="how many writes to the API server may run concurrently"
    )

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
