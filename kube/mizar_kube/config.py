"""Where the API server is and how to prove who asks: from inside a pod, or from a kubeconfig."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from ssl import CERT_NONE, SSLContext, create_default_context
from typing import Any

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REFRESH_S = 60.0

Tokens = Callable[[bool], "str | None"]
"""Gives the Authorization header's value; True asks for a fresh one, because the last failed."""


class ConfigError(Exception):
    """There is no usable way to reach an API server; the message says what to set."""


@dataclass(frozen=True)
class Access:
    """The address of an API server and what is needed to talk to it."""

    server: str
    ssl: SSLContext | bool = True
    tokens: Tokens = field(default=lambda fresh: None)
    proxy: str | None = None
    server_hostname: str | None = None


class TokenFile:
    """A service account's token, read again every minute: the kubelet renews it in place."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._read_at = float("-inf")
        self._header = ""

    def __call__(self, fresh: bool = False) -> str:
        if fresh or self._clock() - self._read_at > TOKEN_REFRESH_S:
            self._header = f"Bearer {self._path.read_text().strip()}"
            self._read_at = self._clock()
        return self._header


def in_cluster(environ: Mapping[str, str] = os.environ, folder: Path = SERVICE_ACCOUNT) -> Access:
    """Access as a pod's service account. Raises ConfigError outside of a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError(
            "not inside a cluster: KUBERNETES_SERVICE_HOST is not set; give a kubeconfig"
        )
    token = folder / "token"
    if not token.is_file():
        raise ConfigError(f"{token} is missing: does the pod mount its service account's token?")
    host = f"[{host}]" if ":" in host else host
    context = create_default_context(cafile=str(folder / "ca.crt"))
    return Access(f"https://{host}:{port}", context, TokenFile(token))


async def from_kubeconfig(path: str | Path) -> Access:
    """Access as the kubeconfig's current context says, exec plugins and OIDC included."""
    # Costs 2 s of imports, which pods never need to pay.
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import ConfigException, load_kube_config

    found = Configuration()
    try:
        await load_kube_config(config_file=str(path), client_configuration=found)
    except ConfigException as error:
        raise ConfigError(f"kubeconfig {path}: {error}") from error
    return access_from(found)


def access_from(found: Any) -> Access:
    """Access as a Configuration of kubernetes_asyncio describes it."""
    header = found.api_key.get("BearerToken")
    return Access(
        server=str(found.host).rstrip("/"),
        ssl=_ssl(found),
        tokens=lambda fresh: header,
        proxy=found.proxy or None,
        server_hostname=found.tls_server_name or None,
    )


async def find(kubeconfig: str | Path | None = None) -> Access:
    """The given kubeconfig, else $KUBECONFIG, else the pod's own, else ~/.kube/config.

    Raises ConfigError when none of them is there.
    """
    named = kubeconfig or os.environ.get("KUBECONFIG")
    if named:
        return await from_kubeconfig(named)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return await asyncio.to_thread(in_cluster)
    default = Path.home() / ".kube" / "config"
    if default.is_file():
        return await from_kubeconfig(default)
    raise ConfigError("no API server known: set KUBECONFIG, or run inside a cluster")


def _ssl(found: Any) -> SSLContext:
    context = create_default_context(cafile=found.ssl_ca_cert)
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)
    if not found.verify_ssl:
        context.check_hostname = False
        context.verify_mode = CERT_NONE
    return context
