"""Connections into a cluster's network from a process outside of it."""

from __future__ import annotations

import ctypes
import http.client
import os
import socket
from concurrent.futures import ThreadPoolExecutor

from cluster.processes import Process

CLONE_NEWNET = 0x40000000


def connect(holder: Process, port: int, timeout: float = 5.0) -> socket.socket:
    """A connection to 127.0.0.1:`port` in the network namespace of a node's first process."""
    with ThreadPoolExecutor(max_workers=1) as thread:  # which alone enters it, and then ends
        return thread.submit(_connect, holder.pid, port, timeout).result()


def _connect(pid: int, port: int, timeout: float) -> socket.socket:
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the node's network namespace")
    finally:
        os.close(namespace)
    return socket.create_connection(("127.0.0.1", port), timeout)


def healthy(holder: Process, port: int, path: str = "/healthz") -> bool:
    """Whether a program on a node answers this path with 200; OSError when no program listens."""
    client = http.client.HTTPConnection("127.0.0.1", port)
    client.sock = connect(holder, port)
    try:
        client.request("GET", path)
        return client.getresponse().status == 200
    except http.client.HTTPException as error:
        raise ConnectionError(f"port {port} answers nonsense: {error!r}") from error
    finally:
        client.close()
