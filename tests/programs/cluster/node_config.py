"""The configuration of a node's programs: kubelet, containerd, kube-proxy and the CNI plugins.
CRI-O's is in crio.py.

Paths are those inside the node. They are the usual ones, so that what users know about nodes
applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.addresses import CLUSTER_DOMAIN, POD_NET, dns_ip
from cluster.credentials import Credentials
from cluster.images import PAUSE

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
NVIDIA = "nvidia"
"""The handler of pods with the runtime class of that name."""
_KUBELET = "kubelet.config.k8s.io/v1beta1"
_PROXY = "kubeproxy.config.k8s.io/v1alpha1"

Config = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """Properties of the machine on which the configuration depends.

    `may_lower_oom_score`: root has CAP_SYS_RESOURCE.
    `bridge_filter`: the kernel shows bridged packets to the firewall.
    """

    may_lower_oom_score: bool
    bridge_filter: bool


def kubelet(
    credentials: Credentials,
    node: str,
    cgroup_root: str,
    resolv_conf: Path,
    runtime: str = CONTAINERD_SOCKET,
) -> Config:
    """KubeletConfiguration; nothing is evicted because the developer's disk is full. `runtime`: the
    container runtime's socket."""
    pair = credentials.node(node)
    return {
        "apiVersion": _KUBELET,
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(credentials.ca.cert)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pair.cert),
        "tlsPrivateKeyFile": str(pair.key),
        "containerRuntimeEndpoint": f"unix://{runtime}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [dns_ip()],
        "resolvConf": str(resolv_conf),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
    }


def oom_score(machine: Machine) -> Config:
    """What is added to the kubelet's and kube-proxy's configuration for this machine."""
    return {} if machine.may_lower_oom_score else {"oomScoreAdj": 0}


def kube_proxy(credentials: Credentials, node: str, machine: Machine, minor: int) -> Config:
    """KubeProxyConfiguration of Kubernetes 1.`minor`.

    Where the kernel hides bridged packets from the firewall, a pod's answer to another pod on its
    own node would not be translated back; so Services then show their clients as the node.
    """
    # Newer ones refuse a gate that they do not have any more.
    gates = {"featureGates": {"NFTablesProxyMode": True}} if minor < 31 else {}
    return gates | {
        "apiVersion": _PROXY,
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(credentials.kubeconfig("kube-proxy"))},
        "clusterCIDR": str(POD_NET),
        "hostnameOverride": node,
        "nftables": {"masqueradeAll": not machine.bridge_filter},
        # Those are limits of the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0},
        **oom_score(machine),
    }


def containerd(
    cni_bin: Path, cni_conf: Path, nvidia: Path, machine: Machine, version: tuple[int, int]
) -> str:
    """The config.toml of containerd of this version; NRI and CDI are on, as containerd 2 has them.
    `nvidia`: the program that is runc for pods of the runtime class of that name."""
    restrict = "false" if machine.may_lower_oom_score else "true"
    runtime = "io.containerd.cri.v1.runtime"
    images = f'[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{PAUSE}"\n'
    bins = f'bin_dirs = ["{cni_bin}"]' if version >= (2, 1) else f'bin_dir = "{cni_bin}"'
    sandbox = ""
    if version < (2,):
        runtime, images, sandbox = "io.containerd.grpc.v1.cri", "", f'sandbox_image = "{PAUSE}"'
    return f"""\
version = {3 if version >= (2,) else 2}
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"

{images}
[plugins."{runtime}"]
disable_apparmor = true
restrict_oom_score_adj = {restrict}
enable_cdi = true
{sandbox}

[plugins."{runtime}".cni]
{bins}
conf_dir = "{cni_conf}"

[plugins."{runtime}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."{runtime}".containerd.runtimes.{NVIDIA}]
runtime_type = "io.containerd.runc.v2"

[plugins."{runtime}".containerd.runtimes.{NVIDIA}.options]
BinaryName = "{nvidia}"

[plugins."io.containerd.nri.v1.nri"]
disable = false
"""


def cni(pod_subnet: str) -> Config:
    """The pod network's configuration list."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": pod_subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": ipam,
    }
    port_map = {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, port_map]}
