"""The node agent's configuration: a YAML file, checked as a whole before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from mizar_nodeagent.errors import ConfigRefused

Strategy = Literal["EnvVar", "Mounts", "VolumeMounts", "CDI"]

DEVICE_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError(f"'{path}' must be an absolute path on the node")
    return path


HostPath = Annotated[Path, AfterValidator(_absolute)]
Port = Annotated[int, Field(ge=0, le=65535)]


class _Section(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid"
    )


class MountConfig(_Section):
    """A file or folder of the node that every share container gets."""

    host_path: HostPath
    container_path: HostPath
    read_only: bool = True


class CardAccess(_Section):
    """How a card gets into a share container.

    EnvVar: NVIDIA_VISIBLE_DEVICES alone; the nvidia runtime class does the rest.
    Mounts: device nodes of `dev_root`, `mounts`, and NVIDIA_VISIBLE_DEVICES.
    VolumeMounts: marks under /var/run/nvidia-container-devices, which the runtime reads.
    CDI: device names `{cdi_kind}=GPU-...`.
    """

    strategy: Strategy = "EnvVar"
    dev_root: HostPath = Path("/dev")
    device_nodes: tuple[str, ...] = DEVICE_NODES
    mounts: tuple[MountConfig, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cdi_kind: str = "nvidia.com/gpu"


class Config(_Section):
    """All that the node agent must be told. `probe_port` None: the metrics port serves both."""

    node_name: Annotated[str, Field(min_length=1)]
    kubelet_dir: HostPath = Path("/var/lib/kubelet")
    # The kubelet looks here whatever its --root-dir says.
    plugin_dir: HostPath = Path("/var/lib/kubelet/device-plugins")
    state_dir: HostPath = Path("/var/lib/mizar")
    shim_path: HostPath = Path("/usr/lib/mizar/libmizar.so")
    metrics_port: Port = 9465
    probe_port: Port | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    card_access: CardAccess = CardAccess()

    @property
    def podresources_socket(self) -> Path:
        """Where the kubelet tells who holds what."""
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read the file; `nodeName` falls back to $NODE_NAME. Raises ConfigRefused."""
    try:
        body = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigRefused(f"cannot read the configuration {path}: {error}") from error
    if not isinstance(body, dict):
        raise ConfigRefused(f"{path} must hold keys and values, such as nodeName: worker-1")
    return parse(body, environ, str(path))


def parse(body: dict[str, Any], environ: Mapping[str, str], source: str) -> Config:
    """Check the content of a configuration; ConfigRefused names each wrong key."""
    named = {"nodeName": environ.get("NODE_NAME", ""), **body}
    if not named["nodeName"]:
        raise ConfigRefused(f"{source}: set nodeName, or the environment variable NODE_NAME")
    try:
        return Config.model_validate(named)
    except ValidationError as error:
        raise ConfigRefused(f"{source}: {_told(error)}") from error


def _told(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
