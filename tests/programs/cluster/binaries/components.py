"""The table of all that a cluster needs, and where each part may come from.

Versions are pinned here for official releases and in src/*/go.{mod,sum} for builds; a test
holds the two together.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass, field
from pathlib import Path

KUBERNETES = "1.36.3"
ETCD = "3.6.8"
CONTAINERD = "2.2.9"
HELM = "3.22.0"
CNI = "1.9.1"
PROMETHEUS = "3.13.5"
GO = "1.26.8"

SOURCES = Path(__file__).parent / "src"
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


@dataclass(frozen=True)
class Host:
    """Where releases are published; `variable` names another place with the same layout."""

    variable: str
    url: str


KUBERNETES_HOST = Host("MIZAR_K8S_RELEASE_URL", "https://dl.k8s.io")
GITHUB = Host("MIZAR_GITHUB_URL", "https://github.com")
HELM_HOST = Host("MIZAR_HELM_RELEASE_URL", "https://get.helm.sh")


@dataclass(frozen=True)
class Release:
    """One published file: a program by itself, or an archive with `members` (program -> path)."""

    host: Host
    path: str
    checksum: str
    program: str = ""
    members: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Build:
    """A Go module under src/ whose packages or tools become the programs."""

    module: str
    package: str = "tool"  # Go's word for all tools that go.mod names
    ldflags: str = ""
    tags: str = ""
    links: tuple[str, ...] = ()  # names by which the one program is started
    minutes: float = 1.0  # roughly, from nothing, on two cores

    def digest(self) -> str:
        """A hash of everything on which the built programs depend."""
        decisive = (GO, ARCH, self.package, self.ldflags, self.tags, self.links)
        digest = hashlib.sha256(repr(decisive).encode())
        for file in sorted((SOURCES / self.module).iterdir()):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Component:
    """A set of programs of one version that come from one place together."""

    name: str
    title: str
    version: str
    programs: tuple[str, ...]
    folder_variable: str
    releases: tuple[Release, ...]
    build: Build
    asked: str  # the program that is asked for its version
    version_words: tuple[str, ...] = ("--version",)


_KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)


def _kubernetes_release(program: str) -> Release:
    path = f"/release/v{KUBERNETES}/bin/linux/{ARCH}/{program}"
    return Release(KUBERNETES_HOST, path, f"{path}.sha256", program=program)


def _github(project: str, tag: str, file: str, checksum: str, members: dict[str, str]) -> Release:
    folder = f"/{project}/releases/download/{tag}"
    return Release(GITHUB, f"{folder}/{file}", f"{folder}/{checksum}", members=members)


def _etcd_release() -> Release:
    name = f"etcd-v{ETCD}-linux-{ARCH}"
    members = {"etcd": f"{name}/etcd"}
    return _github("etcd-io/etcd", f"v{ETCD}", f"{name}.tar.gz", "SHA256SUMS", members)


def _containerd_release() -> Release:
    file = f"containerd-static-{CONTAINERD}-linux-{ARCH}.tar.gz"
    members = {name: f"bin/{name}" for name in _CONTAINERD_PROGRAMS}
    tag = f"v{CONTAINERD}"
    return _github("containerd/containerd", tag, file, f"{file}.sha256sum", members)


def _cni_release() -> Release:
    file = f"cni-plugins-linux-{ARCH}-v{CNI}.tgz"
    members = {name: f"./{name}" for name in _CNI_PROGRAMS}
    return _github("containernetworking/plugins", f"v{CNI}", file, f"{file}.sha256", members)


def _helm_release() -> Release:
    path = f"/helm-v{HELM}-linux-{ARCH}.tar.gz"
    return Release(HELM_HOST, path, f"{path}.sha256sum", members={"helm": f"linux-{ARCH}/helm"})


def _prometheus_release() -> Release:
    name = f"prometheus-{PROMETHEUS}.linux-{ARCH}"
    members = {"promtool": f"{name}/promtool"}
    tag = f"v{PROMETHEUS}"
    return _github("prometheus/prometheus", tag, f"{name}.tar.gz", "sha256sums.txt", members)


_CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
_CNI_PROGRAMS = ("bridge", "host-local", "loopback", "portmap")
_VERSION = "k8s.io/component-base/version"


def kubernetes_ldflags(version: str) -> str:
    """The linker's flags by which Kubernetes' programs know their version, such as 1.36.3."""
    return (
        f"-X {_VERSION}.gitVersion=v{version} -X {_VERSION}.gitMajor=1"
        f" -X {_VERSION}.gitMinor={version.split('.')[1]}"
    )


COMPONENTS = (
    Component(
        name="kubernetes",
        asked="kubelet",
        title=f"Kubernetes {KUBERNETES} and etcd {ETCD}",
        version=KUBERNETES,
        programs=(*_KUBERNETES_PROGRAMS, "etcd"),
        folder_variable="MIZAR_K8S_BIN_DIR",
        releases=(*map(_kubernetes_release, _KUBERNETES_PROGRAMS), _etcd_release()),
        build=Build(
            "kubernetes",
            package=".",
            ldflags=kubernetes_ldflags(KUBERNETES),
            links=(*_KUBERNETES_PROGRAMS, "etcd"),
            minutes=7,
        ),
    ),
    Component(
        name="containerd",
        asked="containerd",
        title=f"containerd {CONTAINERD}",
        version=CONTAINERD,
        programs=_CONTAINERD_PROGRAMS,
        folder_variable="MIZAR_CONTAINERD_BIN_DIR",
        releases=(_containerd_release(),),
        build=Build(
            "containerd",
            ldflags=f"-X github.com/containerd/containerd/v2/version.Version=v{CONTAINERD}",
            tags="no_btrfs no_devmapper no_zfs",
            minutes=2,
        ),
    ),
    Component(
        name="cni",
        asked="bridge",
        title=f"CNI plugins {CNI}",
        version=CNI,
        programs=_CNI_PROGRAMS,
        folder_variable="MIZAR_CNI_BIN_DIR",
        releases=(_cni_release(),),
        build=Build(
            "cni",
            ldflags="-X github.com/containernetworking/plugins/pkg/utils/buildversion"
            f".BuildVersion=v{CNI}",
            minutes=0.3,
        ),
    ),
    Component(
        name="helm",
        asked="helm",
        version_words=("version", "--short"),
        title=f"helm {HELM}",
        version=HELM,
        programs=("helm",),
        folder_variable="MIZAR_HELM_BIN_DIR",
        releases=(_helm_release(),),
        build=Build(
            "helm", ldflags=f"-X helm.sh/helm/v3/internal/version.version=v{HELM}", minutes=2
        ),
    ),
    Component(
        name="promtool",
        asked="promtool",
        title=f"promtool of Prometheus {PROMETHEUS}",
        version=PROMETHEUS,
        programs=("promtool",),
        folder_variable="MIZAR_PROMTOOL_BIN_DIR",
        releases=(_prometheus_release(),),
        # Without what finds targets in clouds: half of what there is to build, and not needed here.
        build=Build(
            "promtool",
            ldflags=f"-X github.com/prometheus/common/version.Version={PROMETHEUS}",
            tags="remove_all_sd",
            minutes=4,
        ),
    ),
)

RUNC = "runc"  # from Debian: static, small, and matched to the kernel's cgroups
ALL = (*(program for component in COMPONENTS for program in component.programs), RUNC)
