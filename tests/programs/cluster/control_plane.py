"""The control plane's programs: etcd, API server, controller manager, scheduler.

They run in the first node's namespaces, with Kubernetes' defaults, except that there is no leader
election, since there is one of each, and that etcd does not wait for the disk, since no cluster is
kept.
"""

from __future__ import annotations

from pathlib import Path

from cluster.addresses import API_PORT, CLUSTER_DOMAIN, POD_NET, SERVICE_NET, node_ip
from cluster.credentials import FRONT_PROXY, Credentials

ETCD = "http://127.0.0.1:2379"
ETCD_PEER = "http://127.0.0.1:2380"
API_SERVER = "kube-apiserver"
NAMES = ("etcd", API_SERVER, "kube-controller-manager", "kube-scheduler")


def etcd(data: Path) -> list[str]:
    """etcd's arguments."""
    return [
        "--name=default",
        f"--data-dir={data}",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={ETCD_PEER}",
        f"--initial-advertise-peer-urls={ETCD_PEER}",
        f"--initial-cluster=default={ETCD_PEER}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(credentials: Credentials) -> list[str]:
    """kube-apiserver's arguments."""
    issuer = f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}"
    return [
        f"--etcd-servers={ETCD}",
        f"--advertise-address={node_ip(1)}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={credentials.server.cert}",
        f"--tls-private-key-file={credentials.server.key}",
        f"--client-ca-file={credentials.ca.cert}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICE_NET}",
        f"--service-account-issuer={issuer}",
        f"--service-account-key-file={credentials.token_public}",
        f"--service-account-signing-key-file={credentials.token_key}",
        f"--requestheader-client-ca-file={credentials.front_proxy_ca.cert}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={credentials.front_proxy_client.cert}",
        f"--proxy-client-key-file={credentials.front_proxy_client.key}",
        f"--kubelet-certificate-authority={credentials.ca.cert}",
        f"--kubelet-client-certificate={credentials.kubelet_client.cert}",
        f"--kubelet-client-key={credentials.kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def controller_manager(credentials: Credentials) -> list[str]:
    """kube-controller-manager's arguments; each controller has a service account of its own."""
    kubeconfig = credentials.kubeconfig("kube-controller-manager")
    return [
        *_kubeconfigs(kubeconfig),
        "--use-service-account-credentials=true",
        # Its fifty controllers each fetch a token before they start: 4 s at the default rate.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        f"--service-account-private-key-file={credentials.token_key}",
        f"--root-ca-file={credentials.ca.cert}",
        f"--cluster-signing-cert-file={credentials.ca.cert}",
        f"--cluster-signing-key-file={credentials.ca.key}",
        f"--cluster-cidr={POD_NET}",
        f"--service-cluster-ip-range={SERVICE_NET}",
        "--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
    ]


def scheduler(credentials: Credentials) -> list[str]:
    """kube-scheduler's arguments."""
    return _kubeconfigs(credentials.kubeconfig("kube-scheduler"))


def _kubeconfigs(kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ]
