"""Forwards a port of the host's 127.0.0.1 to the API server inside the cluster's network.

Run as a script: forwarder.py PORT_FILE HOLDER_PID TARGET_ADDRESS TARGET_PORT. It listens first
and then enters the network namespace of the holder: a socket stays in the namespace it was made
in, so the listening one is the host's and those it makes later are the cluster's. The host's
network is not changed. Ends when the holder ends.
"""

# Without pathlib, to start at once.
# ruff: noqa: PTH104, PTH123
from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys

CLONE_NEWNET = 0x40000000
HIGH_WATER = 1 << 20  # bytes that may wait for a slow reader


class Pipe(asyncio.Protocol):
    """One end of a forwarded connection: what it reads, its peer writes."""

    peer: Pipe
    transport: asyncio.Transport
    ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        transport.pause_reading()  # until it has a peer
        self.transport = transport

    def join(self, peer: Pipe) -> None:
        self.peer, peer.peer = peer, self
        self.transport.resume_reading()
        peer.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.peer.transport.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self.peer.ended:
            self.peer.transport.close()
        elif not self.peer.transport.is_closing():
            self.peer.transport.write_eof()
        return not self.peer.ended

    def connection_lost(self, exc: Exception | None) -> None:
        if hasattr(self, "peer"):
            self.peer.transport.close()

    def pause_writing(self) -> None:
        if not self.peer.transport.is_closing():
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.peer.transport.is_closing():
            self.peer.transport.resume_reading()


async def _forward(client: socket.socket, target: tuple[str, int]) -> None:
    loop = asyncio.get_running_loop()
    try:
        _, inner = await loop.create_connection(Pipe, *target)
    except OSError:
        client.close()
        return
    _, outer = await loop.connect_accepted_socket(Pipe, client)
    outer.join(inner)


async def _serve(listening: socket.socket, target: tuple[str, int], holder: int) -> None:
    loop = asyncio.get_running_loop()
    loop.add_reader(holder, os._exit, 0)
    tasks: set[asyncio.Task[None]] = set()
    while True:
        client, _ = await loop.sock_accept(listening)
        task = loop.create_task(_forward(client, target))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def _enter_network(pid: int) -> None:
    with open(f"/proc/{pid}/ns/net") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the cluster's network namespace")


def _publish(path: str, port: int) -> None:
    with open(f"{path}.new", "w") as file:
        file.write(str(port))
    os.rename(f"{path}.new", path)


def main() -> None:
    port_file, pid, address, port = sys.argv[1:]
    holder = os.pidfd_open(int(pid))
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    listening.setblocking(False)
    _enter_network(int(pid))
    _publish(port_file, listening.getsockname()[1])
    asyncio.run(_serve(listening, (address, int(port)), holder))


if __name__ == "__main__":
    main()
