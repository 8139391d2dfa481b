"""HTTP calls of the API server: one session, timeouts, credentials, typed errors."""

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import aiohttp

from mizar_kube import sockets
from mizar_kube.access import Access
from mizar_kube.errors import KubeError, Unauthorized, Unavailable, error_from_status
from mizar_kube.kinds import Object

Params = dict[str, str]

# A watch answers at once when it starts; this covers a slow API server.
WATCH_SLACK_S = 15.0


@dataclass(frozen=True)
class Call:
    """One request: what is asked of which path."""

    method: str
    path: str
    params: Params
    body: Any = None
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Transport:
    """Sends calls with the credentials of `access`; `timeout` seconds is the default for a call."""

    def __init__(self, access: Access, timeout: float) -> None:
        self._access = access
        self._timeout = timeout
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=access.ssl, limit=100, keepalive_timeout=60, socket_factory=sockets.alive
            ),
            # gzip costs the API server more time than a cluster's network does.
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )

    async def close(self) -> None:
        """Close all connections. Who reads `lines` meanwhile isn't told: end those tasks first."""
        await self._session.close()

    async def object(self, call: Call, timeout: float | None = None) -> Object:
        """The JSON object that the call answers with."""
        limit = aiohttp.ClientTimeout(total=timeout or self._timeout)
        async with await self._send(call, limit) as response:
            try:
                found = json.loads(await response.read())
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                raise _no_answer(call, error) from error
        if not isinstance(found, dict):
            raise KubeError(f"{call}: the answer is no JSON object", status=response.status)
        return found

    async def lines(self, call: Call, quiet: float) -> AsyncGenerator[bytes, None]:
        """The lines of an answer that goes on and on; `quiet` seconds without a byte end it.

        A line that was cut short is never handed out.
        """
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=quiet)
        async with await self._send(call, limit) as response:
            rest = b""
            try:
                # Split by hand: there are many lines in one read when there is a lot to say.
                async for chunk in response.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        if line:
                            yield line
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _no_answer(call, error) from error

    async def _send(self, call: Call, limit: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """The head of a good answer; asks again with a fresh token if the first was refused."""
        for fresh in (False, True):
            token = self._access.tokens(fresh)
            response = await self._once(call, token, limit)
            if response.status < 400:
                return response
            error = await _refusal(call, response)
            if not isinstance(error, Unauthorized) or not token:
                break
        raise error

    async def _once(
        self, call: Call, token: str | None, limit: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        data = None if call.body is None else json.dumps(call.body, separators=(",", ":"))
        headers = {"Content-Type": call.content_type} if data is not None else {}
        if token:
            headers["Authorization"] = token
        try:
            return await self._session.request(
                call.method,
                self._access.server + call.path,
                params=call.params,
                data=data,
                headers=headers,
                timeout=limit,
                proxy=self._access.proxy,
                server_hostname=self._access.server_hostname,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(call, error) from error


def _no_answer(call: Call, error: BaseException) -> Unavailable:
    why = "timed out" if isinstance(error, TimeoutError) else str(error) or repr(error)
    return Unavailable(f"{call}: no answer from the API server: {why}")


async def _refusal(call: Call, response: aiohttp.ClientResponse) -> KubeError:
    async with response:
        try:
            body = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            body = None
    seconds = response.headers.get("Retry-After", "")
    return error_from_status(
        response.status,
        body if isinstance(body, dict) else {},
        str(call),
        float(seconds) if seconds.isdigit() else None,
    )
