"""What the node agent is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import SettingsConfigDict

from mizar_kube import settings as common
from mizar_kube.settings import Section

Way = Literal["EnvVar", "Mounts", "VolumeMounts", "CDI", "CDIAnnotations"]
"""What gives a container its cards."""
Strategy = Literal[Way, "NRI"]
"""How a node's containers get their cards."""

DEVICE_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("it must be an absolute path on the node")
    return path


Xid = Annotated[int, Field(ge=1, lt=2**32)]
"""NVIDIA's code of an error of a card."""
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
        "CDIAnnotations: the same names in an annotation, for runtimes that do not know the field. "
        "NRI: the container runtime asks the agent, which gives the card by `nri gives`. "
        "Auto: the first that the node has of NRI, CDI, VolumeMounts, Mounts (where mounts are "
        "configured) and EnvVar",
    )
    nri_socket: HostPath = Field(
        Path("/var/run/nri/nri.sock"), description="with NRI: where the runtime takes plugins"
    )
    also: tuple[Way, ...] = Field((), description="ways in which the card is given besides")
    nri_gives: Literal["EnvVar", "Mounts", "VolumeMounts", "CDI", "Auto"] = Field(
        "Auto", description="with NRI: what the container is given; Auto: as the strategy, less NRI"
    )
    cdi_dirs: tuple[HostPath, ...] = Field(
        (Path("/etc/cdi"), Path("/var/run/cdi")),
        description="with Auto and CDI: where CDI files are",
    )
    nvidia_runtime_config: HostPath = Field(
        Path("/etc/nvidia-container-runtime/config.toml"),
        description="with Auto: says whether NVIDIA's container runtime takes volume mounts",
    )
    containerd_config: HostPath = Field(
        Path("/etc/containerd/config.toml"),
        description="with EnvVar and Auto: says whether the node's default runtime is NVIDIA's, "
        "and whether CDI is on",
    )
    dev_root: HostPath = Field(
        Path("/dev"),
        description="with Mounts: the folder of device nodes; with another driver root, its dev",
    )
    host_root: HostPath = Field(
        Path("/"),
        description="below which the agent finds `dev root`, where its own /dev is not the node's",
    )
    device_nodes: tuple[str, ...] = Field(
        DEVICE_NODES, description="with Mounts: device nodes beside the cards', if they exist"
    )
    pass_device_specs: bool = Field(
        False,
        description="give the device nodes of Mounts in the other ways as well, so that they stay "
        "permitted when the kubelet's CPU manager changes a running container",
    )
    gds: bool = Field(False, description="give GPUDirect Storage to every share container")
    mofed: bool = Field(False, description="give Mellanox' network devices, for GPUDirect RDMA")
    gdrcopy: bool = Field(False, description="give GDRCopy's device to every share container")
    mig_minors: HostPath = Field(
        Path("/proc/driver/nvidia-caps/mig-minors"),
        description="with Mounts: the driver's list of the device nodes of MIG devices",
    )
    mounts: tuple[MountConfig, ...] = Field(
        (), description="with Mounts: objects of hostPath, containerPath and readOnly"
    )
    env: dict[str, str] = Field({}, description="environment of every share container")
    cdi_kind: str = Field(
        "",
        pattern="^([^/]+/[^/]+)?$",
        description="with CDI: vendor and class; empty: the first of nvidia.com/gpu and "
        "k8s.device-plugin.nvidia.com/gpu under which files in `cdi dirs` name cards",
    )
    cdi_annotation_prefix: str = Field(
        "cdi.k8s.io/",
        pattern="/$",
        description="with CDIAnnotations: what the runtime knows the annotation by",
    )

    def seen(self, path: Path) -> Path:
        """Where the agent finds a folder of device nodes, or a node, of the node's `path`."""
        return self.host_root / path.relative_to("/")

    @model_validator(mode="after")
    def _given_by_nri(self) -> CardAccess:
        if "CDIAnnotations" in self.also and self.strategy in ("NRI", "Auto"):
            raise ValueError(
                "NRI comes after the runtime has read annotations: with strategy "
                f"{self.strategy}, let `also` name CDI instead of CDIAnnotations"
            )
        return self


class Config(common.Settings):
    """Carves the cards that shadow pods hold, and hands the parts to share pods."""

    model_config = SettingsConfigDict(cli_prog_name="mizar-nodeagent")

    # An upgrade changes the ConfigMap of all agents at once, and the agents node by node: one of
    # the former version whose container starts again meanwhile has the new version's keys.
    ignores_unknown_keys = True

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
    overrides: Path | None = Field(
        Path("/etc/mizar-overrides/overrides.yaml"),
        description="YAML file with settings for some nodes, which win over all others there",
    )
    card_access: CardAccess = Field(CardAccess(), description="how a card gets into a container")
    hami_annotations: Literal["None", "JSON", "Text"] = Field(
        "None",
        description="whether the node gets the annotations by which HAMi registers cards, in the "
        "form of today's HAMi (JSON) or of versions before (Text)",
    )
    driver_root: HostPath = Field(
        Path("/"),
        description="where the driver is installed, on the node and in the agent's container alike",
    )
    by_default_runtime: bool = Field(
        False,
        description="nothing but the node's default runtime can give the agent's own container "
        "the driver's devices: if it has them, that runtime reads NVIDIA_VISIBLE_DEVICES",
    )
    nodes_root: HostPath | None = Field(
        None,
        description="with the driver root /: where the agent's container has the node's root "
        "mounted, in which it looks for a driver that no container runtime gives it",
    )
    fail_on_init_error: bool = Field(
        False, description="end when NVML does not answer at the start, instead of asking again"
    )
    ignored_xids: tuple[Xid, ...] = Field(
        (), description="errors by which a card stays Healthy, beside those of programs"
    )
    fail_requests_greater_than_one: bool = Field(
        False, description="refuse containers that ask for more than one device"
    )

    @property
    def access(self) -> CardAccess:
        """How a card gets into a container, with the device nodes of the driver's root."""
        own = self.card_access
        if self.driver_root == Path("/") or "dev_root" in own.model_fields_set:
            return own
        return own.model_copy(update={"dev_root": self.driver_root / "dev"})

    @property
    def podresources_socket(self) -> Path:
        """The socket on which the kubelet lists the devices that each container holds."""
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"
