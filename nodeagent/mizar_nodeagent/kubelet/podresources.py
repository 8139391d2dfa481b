"""Client of the kubelet's podresources API over its Unix socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from mizar_kube.token_bucket import TokenBucket
from mizar_nodeagent.cancellation import is_asked_to_end
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.kubelet.allocated_dra_cards import AllocatedDraCards
from mizar_nodeagent.kubelet.claims import Claims, dra_devices, from_list
from mizar_nodeagent.kubelet.socket_watch import Identity, identity
from mizar_nodeagent.proto import podresources_pb2 as pb
from mizar_nodeagent.proto import podresources_pb2_grpc as rpc

TIMEOUT_S = 2.0
"""Seconds after which a call to the kubelet fails, and for which an old channel is kept open."""
CALL_EVERY_S = 0.02
"""Seconds between two calls to the kubelet on average. It answers 100 calls a second to all callers
together; half of them are left to others."""
BURST = 10
"""Number of calls to the kubelet that may follow one another at once before CALL_EVERY_S delays
them."""
# Answers may be long: each of a node's pods may hold thousands of devices.
_OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.use_local_subchannel_pool", 1),
)


class PodResources:
    """A client that replaces its channel when the kubelet restarts.

    `started_at`: when the kubelet that the agent called first had started, by the age of its
    socket; minus infinity before the first call. `restarted_at`: when the kubelet was first called
    after its last restart; minus infinity if it has not restarted since the agent's start. Both in
    monotonic seconds. `dra`: the cards of NVIDIA's DRA driver; without it, devices of that driver
    are left out."""

    def __init__(
        self,
        socket: Path,
        clock: Callable[[], float] = time.monotonic,
        dra: AllocatedDraCards | None = None,
    ) -> None:
        self._socket = socket
        self._dra = dra
        self.started_at = self.restarted_at = float("-inf")
        self._clock = clock
        self._bucket = TokenBucket(BURST, CALL_EVERY_S, clock())
        self._channel: grpc.aio.Channel | None = None
        self._seen: Identity | None = None
        self._closing: set[asyncio.Future[None]] = set()

    async def list(self, urgent: bool = False) -> Claims:
        """The present claims. The rate limit counts an urgent call, but does not delay it. Raises
        KubeletAway."""
        await self._wait_for_rate(urgent)
        asked_at = self._clock()
        answer = await self._call("List", pb.ListPodResourcesRequest())
        if self._dra is None:
            return from_list(answer, asked_at)
        cards = await self._dra.cards_of(dra_devices(answer))
        return from_list(answer, asked_at, cards, self._dra.resource)

    async def allocatable(self) -> dict[str, frozenset[str]]:
        """The IDs of the devices that the kubelet considers healthy, by resource, and the cards
        that NVIDIA's DRA driver offers, of which the kubelet says nothing. Raises KubeletAway."""
        await self._wait_for_rate(urgent=False)
        answer = await self._call("GetAllocatableResources", pb.AllocatableResourcesRequest())
        found: dict[str, set[str]] = {}
        for entry in answer.devices:
            found.setdefault(entry.resource_name, set()).update(entry.device_ids)
        for resource, uuids in self._dra.usable.items() if self._dra else ():
            found.setdefault(resource, set()).update(uuids)
        return {resource: frozenset(ids) for resource, ids in found.items()}

    async def close(self) -> None:
        """End the connection; a later call makes a new one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    async def _wait_for_rate(self, urgent: bool) -> None:
        delay = self._bucket.reserve(self._clock())
        if delay and not urgent:
            await asyncio.sleep(delay)

    async def _call(self, method: str, request: object) -> Any:
        channel, socket = self._connected()
        ask = getattr(rpc.PodResourcesListerStub(channel), method)  # type: ignore[no-untyped-call]
        try:
            answer = await ask(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise KubeletAway(
                f"the kubelet does not answer {method} on {self._socket}: {error.details()}"
            ) from error
        except asyncio.CancelledError:
            if is_asked_to_end():
                raise
            # Closing a channel cancels its calls, and thereby the tasks that await them.
            raise KubeletAway(f"the connection to {self._socket} was replaced") from None
        # The channel may have connected only after the restart. The answer is then the new
        # kubelet's, which may not know its pods, while `restarted_at` does not show it yet.
        if socket != self._identity():
            raise KubeletAway("the kubelet was restarted while it was asked")
        return answer

    def _connected(self) -> tuple[grpc.aio.Channel, Identity]:
        """A channel to the present socket, and the socket's identity: a restarted kubelet makes a
        new one."""
        socket = self._identity()
        if self._channel is None or socket != self._seen:
            if self._seen is None:
                self.started_at = self._clock() - _age(socket)
            elif socket != self._seen:
                self.restarted_at = self._clock()
            self._abandon()
            self._seen = socket
            self._channel = grpc.aio.insecure_channel(f"unix://{self._socket}", options=_OPTIONS)
        return self._channel, socket

    def _abandon(self) -> None:
        """Close the old channel after TIMEOUT_S: closing it at once would look to running calls as
        if their tasks had been cancelled."""
        if (channel := self._channel) is not None:
            closing = asyncio.ensure_future(channel.close(TIMEOUT_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _identity(self) -> Identity:
        found = identity(self._socket)
        if found is None:
            raise KubeletAway(f"the kubelet's socket {self._socket} is not there")
        return found


def _age(socket: Identity) -> float:
    """Seconds since the socket was created."""
    return max(0.0, time.time() - socket[1] / 1e9)
