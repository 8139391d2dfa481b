import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from cluster import forwarder

Address = tuple[str, int]


async def echo_upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with all that it was sent, in capitals, once the sender has ended its part."""
    data = await reader.read()
    writer.write(data.upper())
    writer.write_eof()
    await writer.drain()
    writer.close()


@asynccontextmanager
async def forwarding_to(target: Address) -> AsyncIterator[Address]:
    """The forwarder without its namespace, and where it listens."""
    holder = os.pidfd_open(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        task = asyncio.create_task(forwarder._serve(listening, target, holder))
        try:
            yield listening.getsockname()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            asyncio.get_running_loop().remove_reader(holder)
            os.close(holder)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_bytes_go_both_ways_and_ends_are_passed_on() -> None:
    server = await asyncio.start_server(echo_upper, "127.0.0.1", 0)
    async with server, forwarding_to(server.sockets[0].getsockname()) as address:
        reader, writer = await asyncio.open_connection(*address)
        payload = b"mizar" * 1_000_000
        writer.write(payload)
        writer.write_eof()
        assert await reader.read() == payload.upper()
        await closed(writer)


async def test_a_client_is_turned_away_when_nobody_serves() -> None:
    with socket.socket() as bound:
        # As long as it is bound, nobody else can listen on the port, the forwarder included.
        bound.bind(("127.0.0.1", 0))
        async with forwarding_to(bound.getsockname()) as address:
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read() == b""
            await closed(writer)
