"""The cluster's network, as commands of the tool `ip`.

Node 1 has a bridge, to which every other node is joined by a veth pair; each node has routes to the
pod subnets of the others. All of it is in the nodes' namespaces and ends with them.
"""

from __future__ import annotations

import subprocess

from cluster.addresses import NODE_NET, node_ip, pod_subnet
from cluster.errors import ClusterError
from cluster.processes import Process

BRIDGE = "nodes0"
UPLINK = "eth0"


def first_node(nodes: int) -> list[str]:
    """The commands that make the first node's network."""
    return [
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"addr add {node_ip(1)}/{NODE_NET.prefixlen} dev {BRIDGE}",
        f"link set {BRIDGE} up",
        # A cluster IP is rewritten only for a program that finds a route to it.
        f"route add default dev {BRIDGE}",
        *_pod_routes(1, nodes),
    ]


def join(number: int, holder: int) -> list[str]:
    """Run in the first node: a veth pair to the node with this number and first process."""
    port = f"node{number}"
    return [
        f"link add {port} type veth peer name {UPLINK} netns {holder}",
        f"link set {port} master {BRIDGE} up",
    ]


def other_node(number: int, nodes: int) -> list[str]:
    """The commands that make the network of the node with this number, after it was joined."""
    return [
        "link set lo up",
        f"addr add {node_ip(number)}/{NODE_NET.prefixlen} dev {UPLINK}",
        f"link set {UPLINK} up",
        f"route add default via {node_ip(1)}",
        *_pod_routes(number, nodes),
    ]


def _pod_routes(number: int, nodes: int) -> list[str]:
    others = [other for other in range(1, nodes + 1) if other != number]
    return [f"route add {pod_subnet(other)} via {node_ip(other)}" for other in others]


SYSCTLS = """
set -e
echo 1 > /proc/sys/net/ipv4/ip_forward
for hook in iptables ip6tables; do
    file=/proc/sys/net/bridge/bridge-nf-call-$hook
    if [ -e $file ]; then echo 1 > $file; fi
done
"""


def connect(holders: list[Process]) -> None:
    """Make the network of a cluster whose nodes have these first processes."""
    nodes = len(holders)
    _ip(holders[0], first_node(nodes))
    for number, holder in enumerate(holders[1:], start=2):
        # A process id in a netlink request is one of the caller's own process namespace.
        _ip(holders[0], join(number, holder.pid))
        _ip(holder, other_node(number, nodes))
    for holder in holders:
        _inside(holder, ["sh", "-c", SYSCTLS], "")


def has_bridge_filter() -> bool:
    """Whether this kernel shows bridged packets to the firewall (br_netfilter)."""
    done = subprocess.run(
        ["unshare", "--net", "test", "-e", "/proc/sys/net/bridge/bridge-nf-call-iptables"],
        check=False,
    )
    return done.returncode == 0


def _ip(holder: Process, lines: list[str]) -> None:
    _inside(holder, ["ip", "-batch", "-"], "\n".join(lines) + "\n")


def _inside(holder: Process, argv: list[str], text: str) -> None:
    done = subprocess.run(
        ["nsenter", "--target", str(holder.pid), "--net", *argv],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"making the cluster's network failed: {done.stderr.strip()}")
