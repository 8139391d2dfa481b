"""Calls the API server through kubernetes-asyncio's ApiClient: raw answers, typed errors."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes_asyncio.client import ApiClient, Configuration

from mizar_kube.errors import (
    Interrupted,
    KubeError,
    Silent,
    TooLarge,
    Unavailable,
    error_from_status,
)
from mizar_kube.http_session import session
from mizar_kube.kinds import Object
from mizar_kube.version import version

Params = dict[str, str]

HEAD_TIMEOUT_S = 75.0
"""Seconds within which the head of an answer must arrive: a busy API server queues a call for up to
a minute."""
RETRY_AFTER_MOST_S = 60.0
"""The most seconds that count of what an answer asks to wait."""


@dataclass(frozen=True)
class ApiCall:
    """One request to the API server."""

    method: str
    path: str
    params: Params
    body: Any = None
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class ApiCalls:
    """Sends calls to the API server of `configuration`. `timeout`: default seconds for a call."""

    def __init__(self, configuration: Configuration, timeout: float) -> None:
        self._timeout = timeout
        self._api = _api_client(configuration)

    async def close(self) -> None:
        """Close all connections. End the tasks that read `lines` first: they are not notified."""
        await self._api.close()

    async def object(
        self, call: ApiCall, timeout: float | None = None, most: int | None = None
    ) -> Object:
        """The JSON object that the call is answered with. `timeout`: seconds for the whole call.
        Raises KubeError, and TooLarge as soon as the answer has more than `most` bytes."""
        try:
            async with asyncio.timeout(timeout or self._timeout):
                async with await self._send(call, aiohttp.ClientTimeout()) as response:
                    found = json.loads(await _body(call, response, most))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _no_answer(call, error) from error
        if not isinstance(found, dict):
            raise KubeError(f"{call}: the answer is no JSON object", status=response.status)
        return found

    async def lines(self, call: ApiCall, quiet: float) -> AsyncGenerator[bytes, None]:
        """The lines of an endless answer; ends after `quiet` seconds without a byte. Never yields
        an incomplete line. Raises KubeError; Interrupted when the connection breaks after the head
        of the answer, Silent after `quiet` seconds.
        """
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=quiet)
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                response = await self._send(call, limit)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(call, error) from error
        try:
            async with response:
                rest = b""
                # Split by hand, since one read may bring many lines.
                async for chunk in response.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        if line:
                            yield line
        except TimeoutError as error:
            raise Silent(str(_no_answer(call, error))) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Interrupted(str(_no_answer(call, error))) from error

    async def _send(self, call: ApiCall, limit: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """The head of a successful answer. Raises KubeError."""
        response: aiohttp.ClientResponse = await self._api.call_api(
            call.path,
            call.method,
            query_params=dict(call.params),
            header_params={"Content-Type": call.content_type},
            body=call.body,
            _preload_content=False,
            _request_timeout=limit,
        )
        if response.status >= 400:
            raise await _refusal(call, response)
        return response


def _api_client(configuration: Configuration) -> ApiClient:
    api = ApiClient(configuration)
    api.rest_client.pool_manager.detach()
    api.rest_client.pool_manager = session(configuration)
    api.user_agent = f"mizar/{version()}"
    # gzip costs the API server more time than a cluster's network does.
    api.set_default_header("Accept-Encoding", "identity")
    api.set_default_header("Accept", "application/json")
    return api


async def _body(call: ApiCall, response: aiohttp.ClientResponse, most: int | None) -> bytes:
    if most is None:
        return await response.read()
    parts, size = list[bytes](), 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            raise TooLarge(f"{call}: the answer has more than {most} bytes")
    return b"".join(parts)


def _no_answer(call: ApiCall, error: BaseException) -> Unavailable:
    why = "timed out" if isinstance(error, TimeoutError) else str(error) or repr(error)
    return Unavailable(f"{call}: no answer from the API server: {why}")


async def _refusal(call: ApiCall, response: aiohttp.ClientResponse) -> KubeError:
    async with response:
        try:
            body = json.loads(await response.read())
        except (aiohttp.ClientError, OSError, ValueError):
            body = None
    seconds = response.headers.get("Retry-After", "")
    # A page of a proxy may ask for hours, and everything would wait for as long.
    retry_after = min(float(seconds), RETRY_AFTER_MOST_S) if seconds.isdecimal() else None
    found = body if isinstance(body, dict) else {}
    return error_from_status(response.status, found, str(call), retry_after)
