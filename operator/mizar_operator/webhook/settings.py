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
        "mizar-system",
        description=f"namespace of the Service and the Secret; {common.IF_NAMESPACE_UNSET}",
    )
    service: str = Field("mizar-webhook", description="name of the webhook's Service")
    secret: str = Field("mizar-webhook", description="name of the Secret of its certificate")
    configuration: str = Field(
        "mizar-webhook",
        description="name of the MutatingWebhookConfiguration and ValidatingWebhookConfiguration",
    )
    certificate_dir: Path | None = Field(
        None,
        description="folder of tls.crt and tls.key, which another program such as cert-manager "
        "renews; unset: the webhook creates and renews its own certificate",
    )
    port: common.Port = Field(9443, description="port for admission reviews, over TLS")
    metrics_port: common.Port = Field(
        9464,
        validation_alias=AliasChoices("metrics_port", "probe_port"),
        description="port of /healthz, /readyz and /metrics",
    )
    spot: bool = Field(False, description="admit spot pods, which borrow the cards of idle owners")
    spot_priority_class: str = Field(
        "",
        description="PriorityClass of spot pods that name none, if the cluster has no default "
        "class either",
    )
    gate_preemption: bool = Field(
        False,
        description="hold share pods that may preempt others back by a scheduling gate while a "
        "shadow pod is on its way for them",
    )
    scale_up_delay: str = Field(
        "",
        description="for how long cluster-autoscaler ignores share pods and spot pods, such as "
        "8760h; empty: no time",
    )
    strict_kills_root_only: bool = Field(
        False,
        description="the node agents have no CAP_KILL, so that isolation.enforcement Strict kills "
        "only processes that run as root",
    )
    resource_names: tuple[str, ...] = Field(
        (), description="resource names that pools may use as aliases, such as nvidia.com/vgpu"
    )
    drain_seconds: float = Field(
        5.0,
        ge=0,
        description="seconds to keep serving after becoming not ready, until the Service no longer "
        "sends requests",
    )

    @property
    def spot_settings(self) -> SpotSettings:
        """How spot pods are reviewed."""
        return SpotSettings(self.spot, self.spot_priority_class, self.scale_up_delay)

    @property
    def dns_name(self) -> str:
        """The name by which API servers reach the webhook."""
        return f"{self.service}.{self.namespace}.svc"
