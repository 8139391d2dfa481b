"""HTTP connections to an API server, for ApiClient and for Kopf."""

import socket
import ssl
from typing import Any

import aiohttp
from kubernetes_asyncio.client import Configuration

from mizar_kube.credentials import TOKEN, Renewal

READ_BUFFER_BYTES = 1 << 21
"""As in the ApiClient of kubernetes_asyncio: etcd limits an object to 1.5 MiB, and its JSON is
hardly larger."""
KEEPALIVE_IDLE_S = 15
"""Seconds of silence after which the kernel sends the first keepalive probe."""
KEEPALIVE_INTERVAL_S = 5
"""Seconds between two keepalive probes."""
KEEPALIVE_PROBES = 3
"""Number of unanswered keepalive probes that end an idle connection."""
UNANSWERED_MS = 30_000
"""Milliseconds after which sent data without an acknowledgement ends a connection."""


def session(configuration: Configuration) -> aiohttp.ClientSession:
    """A session for `configuration`, with its proxy; its connections notice a peer that is gone.

    Each request carries the token of the moment, and is sent once more with a fresh one after a
    401. Raises OSError (ssl.SSLError is one) when the certificates cannot be used.

    ApiClient's own session would look for proxy variables and ~/.netrc at each call, in a thread
    each, refuse the call when the latter names a password, and never notice a peer that is gone.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=_tls(configuration),
            limit=configuration.connection_pool_maxsize,
            socket_factory=_socket,
        ),
        middlewares=(_Authorizing(configuration),),
        proxy=configuration.proxy,
        read_bufsize=READ_BUFFER_BYTES,
    )


class _Authorizing:
    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    async def __call__(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        # Not every user of a session can set this for each request.
        request.server_hostname = self._configuration.tls_server_name
        response = await self._send(request, send)
        if response.status == 401 and self._may_have_another_token(request):
            response.close()
            response = await self._send(request, send)
        return response

    async def _send(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if token := await self._configuration.get_api_key_with_prefix(TOKEN):
            request.headers["Authorization"] = token
        return await send(request)

    def _may_have_another_token(self, request: aiohttp.ClientRequest) -> bool:
        """Have the refused token renewed, unless another call did so meanwhile. Returns whether a
        second try may use another token."""
        refused = request.headers.get("Authorization")
        renewal = self._configuration.refresh_api_key_hook
        if not refused or not isinstance(renewal, Renewal):
            return False
        if refused == self._configuration.api_key[TOKEN]:
            renewal.refuse()
        return True


def _tls(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A TCP socket for getaddrinfo's address that notices a dead peer: a node that vanished must
    not look like a quiet watch."""
    family, kind, protocol = address[0], address[1], address[2]
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The other options exist only on Linux, where Mizar runs; other systems do without them.
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNANSWERED_MS),
    ):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
