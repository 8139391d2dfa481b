"""The node agent's settings: flags, environment variables and a file."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import SettingsConfigDict

from mizar_kube import settings as common
from mizar_kube.settings import Section
from mizar_nodeagent.regions.limits_file import ShimTimes

Way = Literal["EnvVar", "Mounts", "VolumeMounts", "CDI", "CDIAnnotations"]
"""A way to give a container its cards."""
Strategy = Literal[Way, "NRI"]
"""How a node's containers get their cards."""

DEVICE_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("it must be an absolute path on the node")
    return path


def _below_dev(pattern: str) -> str:
    """The pattern, if Path.glob can look for it below a folder."""
    try:
        next(iter(Path("/dev/null").glob(pattern)), None)
    except (ValueError, LookupError, NotImplementedError):
        usable = False
    else:
        usable = ".." not in PurePath(pattern).parts
    if not usable:
        raise ValueError("it must be a path or pattern below the folder `dev root`: x, not /dev/x")
    return pattern


Seconds = Annotated[float, Field(ge=0.5, le=60)]
"""Seconds for which a shim waits: less would fail while the node is merely busy, and more leaves a
program standing."""
Xid = Annotated[int, Field(ge=1, lt=2**32)]
"""NVIDIA's number of a card's error."""
HostPath = Annotated[Path, AfterValidator(_absolute)]
NodePattern = Annotated[str, AfterValidator(_below_dev)]
"""Names device nodes, relative to the folder of device nodes."""


class MountConfig(Section):
    """A file or folder of the node that every share container gets."""

    # These come as lists of objects, whose keys are camelCase in variables as well.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    host_path: HostPath
    container_path: HostPath
    read_only: bool = True


class CardAccess(Section):
    """How a share container gets its card."""

    strategy: Literal[Strategy, "Auto"] = Field(
        "EnvVar",
        description="EnvVar: NVIDIA_VISIBLE_DEVICES, which the nvidia runtime reads. "
        "Mounts: device nodes and mounts as well. "
        "VolumeMounts: marker mounts under /var/run/nvidia-container-devices, which the nvidia "
        "runtime reads. "
        "CDI: CDI device names {cdi kind}=GPU-... "
        "CDIAnnotations: CDI device names in an annotation, for runtimes that do not know the "
        "field. "
        "NRI: the container runtime asks the agent before it creates a container, and the agent "
        "gives the card as `nri gives` says. "
        "Auto: the first that the node supports of NRI, CDI, VolumeMounts, Mounts (if mounts are "
        "configured) and EnvVar; not NRI if it would give CDI and the runtime drops that",
    )
    nri_socket: HostPath = Field(
        Path("/var/run/nri/nri.sock"), description="with NRI: the runtime's socket for plugins"
    )
    also: tuple[Way, ...] = Field(
        (), description="further ways in which containers get the card at the same time"
    )
    nri_gives: Literal["EnvVar", "Mounts", "VolumeMounts", "CDI", "Auto"] = Field(
        "Auto",
        description="with NRI: the way in which the card is given; Auto chooses among these as the "
        "strategy Auto does, without CDI if the runtime drops it: containerd before 2.1 (except "
        "1.7.30 and later of 1.7), CRI-O before 1.34",
    )
    cdi_dirs: tuple[HostPath, ...] = Field(
        (Path("/etc/cdi"), Path("/var/run/cdi")),
        description="with Auto and CDI: folders of CDI files",
    )
    nvidia_runtime_config: HostPath = Field(
        Path("/etc/nvidia-container-runtime/config.toml"),
        description="with Auto: configuration file of NVIDIA's container runtime, which shows "
        "whether VolumeMounts is enabled, and whether the runtime ignores the variable of EnvVar",
    )
    containerd_config: HostPath = Field(
        Path("/etc/containerd/config.toml"),
        description="with EnvVar and Auto: containerd's configuration file, which shows whether "
        "the node's default runtime is NVIDIA's, and whether CDI is enabled",
    )
    dev_root: HostPath = Field(
        Path("/dev"),
        description="with Mounts: the node's folder of device nodes; if `driver root` is not /, "
        "the default is its dev folder",
    )
    host_root: HostPath = Field(
        Path("/"),
        description="folder below which the node's `dev root` is mounted into the agent's "
        "container",
    )
    device_nodes: tuple[NodePattern, ...] = Field(
        DEVICE_NODES,
        description="with Mounts: device nodes that every share container gets in addition to "
        "those of its cards, if they exist",
    )
    pass_device_specs: bool = Field(
        False,
        description="give containers the device nodes of Mounts with every other strategy too, so "
        "that they stay permitted when the kubelet's CPU manager changes a running container",
    )
    gds: bool = Field(False, description="give GPUDirect Storage to every share container")
    mofed: bool = Field(
        False, description="give Mellanox devices, for GPUDirect RDMA, to every share container"
    )
    gdrcopy: bool = Field(False, description="give GDRCopy to every share container")
    mig_minors: HostPath = Field(
        Path("/proc/driver/nvidia-caps/mig-minors"),
        description="with Mounts, for MIG devices: the driver's list of the minor numbers of "
        "their nodes",
    )
    mounts: tuple[MountConfig, ...] = Field(
        (),
        description="with Mounts: folders mounted into every share container, as objects with "
        "hostPath, containerPath and readOnly (default: true)",
    )
    env: dict[str, str] = Field({}, description="environment variables of every share container")
    cdi_kind: str = Field(
        "",
        pattern="^([^/]+/[^/]+)?$",
        description="with CDI: vendor and class; empty: the first of nvidia.com/gpu and "
        "k8s.device-plugin.nvidia.com/gpu under which files in `cdi dirs` name cards; "
        "k8s.gpu.nvidia.com/claim: the devices that NVIDIA's DRA driver makes for claims",
    )
    cdi_annotation_prefix: str = Field(
        "cdi.k8s.io/",
        pattern="/$",
        description="with CDIAnnotations: prefix of the annotation's key",
    )

    def seen(self, path: Path) -> Path:
        """The path in the agent's container of a device node, or folder of them, of the node."""
        return self.host_root / path.relative_to("/")

    @model_validator(mode="after")
    def _given_by_nri(self) -> CardAccess:
        if "CDIAnnotations" in self.also and self.strategy in ("NRI", "Auto"):
            raise ValueError(
                "NRI plugins are called after the runtime has read annotations: with strategy "
                f"{self.strategy}, use CDI in `also` instead of CDIAnnotations"
            )
        return self


class Config(common.Settings):
    """Carves the cards that shadow pods hold, and gives the parts to share pods."""

    model_config = SettingsConfigDict(cli_prog_name="mizar-nodeagent")

    # An upgrade changes the ConfigMap of all agents at once, but replaces the agents node by node.
    # If the container of an old agent restarts in the meantime, it reads the new version's keys.
    ignores_unknown_keys = True

    config: Path | None = Field(
        Path("/etc/mizar/nodeagent.yaml"), description="YAML file with these settings in camelCase"
    )
    node_name: str = Field(
        min_length=1, description="name of the agent's node; if unset: $NODE_NAME"
    )
    namespace: str = Field(
        "",
        description="namespace of the agent's pod and of the ConfigMap mizar-spot; "
        f"{common.IF_NAMESPACE_UNSET}",
    )
    kubelet_dir: HostPath = Field(Path("/var/lib/kubelet"), description="the kubelet's --root-dir")
    plugin_dir: HostPath = Field(
        Path("/var/lib/kubelet/device-plugins"),
        description="the kubelet's folder for device plugins, which does not depend on its "
        "--root-dir",
    )
    state_dir: HostPath = Field(
        Path("/var/lib/mizar"), description="folder for slots, the shim and the agent's checkpoint"
    )
    shim_path: HostPath = Field(
        Path("/usr/lib/mizar/libmizar.so"),
        description="the shim, which the agent copies to `state dir` for containers",
    )
    metrics_port: common.Port = Field(9465, description="port of /healthz, /readyz and /metrics")
    overrides: Path | None = Field(
        Path("/etc/mizar-overrides/overrides.yaml"),
        description="YAML file with different settings for some nodes; they win over every other "
        "source",
    )
    card_access: CardAccess = Field(CardAccess(), description="how a share container gets its card")
    hami_annotations: Literal["None", "JSON", "Text"] = Field(
        "None",
        description="whether the agent writes HAMi's annotations on its node and on share pods, "
        "in the current format (JSON) or that of older versions (Text)",
    )
    driver_root: HostPath = Field(
        Path("/"),
        description="folder in which the driver is installed; the same on the node and in the "
        "agent's container",
    )
    by_default_runtime: bool = Field(
        False,
        description="whether only the node's default runtime can give the agent's own container "
        "the driver's devices; if so, and the container has them, the agent knows that the "
        "runtime reads NVIDIA_VISIBLE_DEVICES",
    )
    nodes_root: HostPath | None = Field(
        None,
        description="if `driver root` is /: where the node's root is mounted in the agent's "
        "container; the agent looks for the driver there if no container runtime provides it",
    )
    fail_on_init_error: bool = Field(
        False,
        description="exit if NVML does not answer when the agent starts, instead of trying again",
    )
    ignored_xids: tuple[Xid, ...] = Field(
        (),
        description="XIDs that do not make a card Unhealthy, in addition to those of programs' "
        "errors, which never do",
    )
    fail_requests_greater_than_one: bool = Field(
        False, description="fail the allocation of a container that requests more than one device"
    )

    heartbeat_timeout_seconds: Seconds = Field(
        1.0,
        description="how long the shims of containers go on without a heartbeat of the agent: "
        "after that, a borrower gets no more of its card's time until an agent runs again",
    )
    owner_wait_seconds: Seconds = Field(
        3.0,
        description="how long an allocation of an owner whose card is lent waits, at most, for the "
        "borrower to leave, before it fails",
    )

    @property
    def shim_times(self) -> ShimTimes:
        """The two times of the shims, in their unit."""
        return ShimTimes(
            round(self.heartbeat_timeout_seconds * 1000), round(self.owner_wait_seconds * 1000)
        )

    @property
    def access(self) -> CardAccess:
        """`card_access`, with the `dev_root` that `driver_root` implies if none is set."""
        own = self.card_access
        if self.driver_root == Path("/") or "dev_root" in own.model_fields_set:
            return own
        return own.model_copy(update={"dev_root": self.driver_root / "dev"})

    @property
    def podresources_socket(self) -> Path:
        """The socket on which the kubelet lists the devices that each container holds."""
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"
