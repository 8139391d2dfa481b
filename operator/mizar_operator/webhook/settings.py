"""The webhook's settings: flags and environment variables."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from mizar_kube import settings as common
from mizar_operator.webhook.spot_review import SpotSettings


class Settings(common.Settings):
    """Translates resource names in pods and pod templates; checks quotas against pools."""

    model_config = SettingsConfigDict(cli_prog_name="mizar-webhook")

    namespace: str = Field(
        "mizar-system", description="its own; else $POD_NAMESPACE, else the service account's"
    )
    service: str = Field("mizar-webhook", description="the Service in front of it")
    secret: str = Field("mizar-webhook", description="the Secret that keeps its certificate")
    configuration: str = Field("mizar-webhook", description="both webhook configurations' name")
    certificate_dir: Path | None = Field(
        None, description="folder with tls.crt and tls.key that another program renews"
    )
    port: common.Port = Field(9443, description="of the reviews, over TLS")
    metrics_port: common.Port = Field(
        9464,
        validation_alias=AliasChoices("metrics_port", "probe_port"),
        description="of /healthz, /readyz and /metrics",
    )
    spot: bool = Field(False, description="whether this installation lends idle cards to spot pods")
    spot_priority_class: str = Field(
        "", description="the PriorityClass of spot pods that name none; none by default"
    )
    resource_names: tuple[str, ...] = Field(
        (), description="names that pools may give to their profiles, such as nvidia.com/vgpu"
    )
    drain_seconds: float = Field(
        5.0, ge=0, description='seconds between "not ready" and the end, for the Service to learn'
    )

    @property
    def spot_settings(self) -> SpotSettings:
        """How spot pods are reviewed."""
        return SpotSettings(self.spot, self.spot_priority_class)

    @property
    def dns_name(self) -> str:
        """The name by which API servers reach the webhook."""
        return f"{self.service}.{self.namespace}.svc"
