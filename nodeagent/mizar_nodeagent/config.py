"""What the node agent is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_settings import SettingsConfigDict

from mizar_kube import settings as common
from mizar_kube.settings import Section

Way = Literal["EnvVar", "Mounts", "VolumeMounts", "CDI"]
"""What gives a container its cards."""
Strategy = Literal[Way, "NRI"]
"""How a node's containers get their cards."""

DEVICE_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("it must be an absolute path on the node")
    return path


HostPath = Annotated[Path, AfterValidator(_absolute)]


class MountConfig(Section):
    """A file or folder of the node that every share container gets."""

    # These come as lists of objects, whose keys are camelCase in variables as well.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    host_path: HostPath
    container_path: HostPath
    read_only: bool = True


class CardAccess(Section):
    """How a card gets into a share container."""

    strategy: Literal[Strategy, "Auto"] = Field(
        "EnvVar",
        description="EnvVar: NVIDIA_VISIBLE_DEVICES alone, the nvidia runtime class does the rest. "
        "Mounts: device nodes and mounts as well. "
        "VolumeMounts: marks under /var/run/nvidia-container-devices, which the runtime reads. "
        "CDI: device names {cdi kind}=GPU-... "
        "NRI: the container runtime asks the agent, which gives the card by `nri gives`. "
        "Auto: the first that the node has of NRI, CDI, VolumeMounts, Mounts (where mounts are "
        "configured) and EnvVar",
    )
    nri_socket: HostPath = Field(
        Path("/var/run/nri/nri.sock"), description="with NRI: where the runtime takes plugins"
    )
    nri_gives: Literal[Way, "Auto"] = Field(
        "Auto", description="with NRI: what the container is given; Auto: as the strategy, less NRI"
    )
    cdi_dirs: tuple[HostPath, ...] = Field(
        (Path("/etc/cdi"), Path("/var/run/cdi")), description="with Auto: where CDI files are"
    )
    nvidia_runtime_config: HostPath = Field(
        Path("/etc/nvidia-container-runtime/config.toml"),
        description="with Auto: says whether NVIDIA's container runtime takes volume mounts",
    )
    dev_root: HostPath = Field(Path("/dev"), description="with Mounts: the folder of device nodes")
    device_nodes: tuple[str, ...] = Field(
        DEVICE_NODES, description="with Mounts: device nodes beside the cards', if they exist"
    )
    mounts: tuple[MountConfig, ...] = Field(
        (), description="with Mounts: objects of hostPath, containerPath and readOnly"
    )
    env: dict[str, str] = Field({}, description="environment of every share container")
    cdi_kind: str = Field("nvidia.com/gpu", description="with CDI: vendor and class")


class Config(common.Settings):
    """Carves the cards that shadow pods hold, and hands the parts to share pods."""

    model_config = SettingsConfigDict(cli_prog_name="mizar-nodeagent")

    config: Path | None = Field(
        Path("/etc/mizar/nodeagent.yaml"), description="YAML file with these settings in camelCase"
    )
    node_name: str = Field(min_length=1, description="the node that it runs on; else $NODE_NAME")
    namespace: str = Field(
        "",
        description="of the agent's own pod, and of the rules by which cards are lent; else "
        "$POD_NAMESPACE",
    )
    kubelet_dir: HostPath = Field(Path("/var/lib/kubelet"), description="the kubelet's --root-dir")
    plugin_dir: HostPath = Field(
        Path("/var/lib/kubelet/device-plugins"),
        description="where the kubelet looks for device plugins, whatever its --root-dir says",
    )
    state_dir: HostPath = Field(
        Path("/var/lib/mizar"), description="keeps slots, the shim and the agent's checkpoint"
    )
    shim_path: HostPath = Field(
        Path("/usr/lib/mizar/libmizar.so"), description="the shim that containers get"
    )
    metrics_port: common.Port = Field(9465, description="of /healthz, /readyz and /metrics")
    card_access: CardAccess = Field(CardAccess(), description="how a card gets into a container")

    @property
    def podresources_socket(self) -> Path:
        """Where the kubelet tells who holds what."""
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"
