"""Sockets that notice a dead peer: a node that vanished must not look like a quiet watch."""

import socket
from typing import Any

KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 3
UNANSWERED_MS = 30_000


def alive(address: tuple[Any, ...]) -> socket.socket:
    """A TCP socket for getaddrinfo's address: keep-alive on, unanswered data bounded."""
    family, kind, protocol = address[0], address[1], address[2]
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The rest is Linux only, where Mizar runs; a developer's laptop goes without.
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNANSWERED_MS),
    ):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
