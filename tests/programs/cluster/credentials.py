"""The identities in a cluster: certificates and kubeconfigs of its components."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import yaml

from cluster.addresses import CLUSTER_DOMAIN, api_server, api_service_ip, node_ip
from cluster.layout import Layout
from cluster.pki import Authority, Pair, signing_key

ADMIN_GROUP = "system:masters"
FRONT_PROXY = "front-proxy-client"
# The file's name, and the user that Kubernetes' built-in roles are bound to.
CLIENTS = {
    "kube-controller-manager": "system:kube-controller-manager",
    "kube-scheduler": "system:kube-scheduler",
    "kube-proxy": "system:kube-proxy",
}


@dataclass(frozen=True)
class Credentials:
    """The files that the control plane needs; kubeconfigs are beside the certificates."""

    folder: Path
    ca: Pair
    server: Pair
    kubelet_client: Pair
    front_proxy_ca: Pair
    front_proxy_client: Pair
    admin: Pair
    token_key: Path
    token_public: Path

    def kubeconfig(self, client: str) -> Path:
        """The kubeconfig of a component, for use inside the cluster."""
        return self.folder / f"{client}.kubeconfig"

    def node(self, node: str) -> Pair:
        """The certificate of a node's kubelet, both as a client and as a server."""
        return Pair(self.folder / f"{node}.crt", self.folder / f"{node}.key")


def make(layout: Layout, nodes: list[str]) -> Credentials:
    """Make all certificates, keys and kubeconfigs of a cluster."""
    authority = Authority(layout.pki, "ca")
    front_proxy = Authority(layout.pki, "front-proxy-ca")
    private, public = signing_key(layout.pki)
    made = Credentials(
        folder=layout.pki,
        ca=authority.pair,
        server=_server(authority),
        kubelet_client=authority.issue("apiserver-kubelet", "kube-apiserver", [ADMIN_GROUP]),
        front_proxy_ca=front_proxy.pair,
        front_proxy_client=front_proxy.issue("front-proxy-client", FRONT_PROXY),
        admin=authority.issue("admin", "admin", [ADMIN_GROUP]),
        token_key=private,
        token_public=public,
    )
    for client, user in CLIENTS.items():
        pair = authority.issue(client, user)
        write_kubeconfig(made.kubeconfig(client), layout.name, api_server(), made.ca.cert, pair)
    for number, node in enumerate(nodes, start=1):
        _issue_node(authority, made, layout.name, node, number)
    return made


def _server(authority: Authority) -> Pair:
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
    return authority.issue(
        "apiserver",
        "kube-apiserver",
        names=[*names, f"kubernetes.default.svc.{CLUSTER_DOMAIN}"],
        addresses=["127.0.0.1", node_ip(1), api_service_ip()],
    )


def _issue_node(
    authority: Authority, made: Credentials, cluster: str, node: str, number: int
) -> None:
    user, groups = f"system:node:{node}", ["system:nodes"]
    pair = authority.issue(node, user, groups, names=[node], addresses=[node_ip(number)])
    write_kubeconfig(made.kubeconfig(node), cluster, api_server(), made.ca.cert, pair)


def write_kubeconfig(path: Path, cluster: str, server: str, ca: Path, client: Pair) -> None:
    """Write a kubeconfig that contains its certificates, so that it can be copied elsewhere."""
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(kubeconfig(cluster, server, ca, client)))


def kubeconfig(cluster: str, server: str, ca: Path, client: Pair) -> dict[str, object]:
    """A kubeconfig with one cluster, one user and one context, all of the same name."""
    name = f"mizar-{cluster}"
    user = {"client-certificate-data": _data(client.cert), "client-key-data": _data(client.key)}
    access = {"server": server, "certificate-authority-data": _data(ca)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": access}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
