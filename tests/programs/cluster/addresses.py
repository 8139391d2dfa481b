"""Addresses inside a cluster. Every cluster has the same: its network is its own."""

from __future__ import annotations

import ipaddress

NODE_NET = ipaddress.ip_network("172.20.0.0/24")
POD_NET = ipaddress.ip_network("10.244.0.0/16")
SERVICE_NET = ipaddress.ip_network("10.96.0.0/16")
API_PORT = 6443
CLUSTER_DOMAIN = "cluster.local"


def node_ip(number: int) -> str:
    """The address of the node with this number (1 is the first)."""
    return str(NODE_NET[number])


def pod_subnet(number: int) -> str:
    """The /24 that the pods of the node with this number are in."""
    return str(list(POD_NET.subnets(new_prefix=24))[number])


def api_service_ip() -> str:
    """The cluster IP of the Service `kubernetes`."""
    return str(SERVICE_NET[1])


def dns_ip() -> str:
    """The cluster IP at which pods look for a name server."""
    return str(SERVICE_NET[10])


def api_server() -> str:
    """The API server's address inside the cluster."""
    return f"https://{node_ip(1)}:{API_PORT}"
