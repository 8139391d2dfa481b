"""The way to an API server and the proof of who asks, as kubernetes-asyncio loads them.

Its `Configuration` is all that this gives out. Tokens in it are renewed in place, so that whoever
holds one and asks it for the token, as ApiClient does before each call, has one that is good.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException
from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader
from kubernetes_asyncio.config.kube_config import (
    PROVIDER_TYPE_OIDC,
    KubeConfigLoader,
    KubeConfigMerger,
)

from mizar_kube.errors import ConfigError
from mizar_kube.logs import get_logger

log = get_logger(__name__)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The name that kubernetes-asyncio has for the Authorization header's value in `api_key`.
TOKEN = "BearerToken"
# The kubelet renews tokens long before they end, and so does kubernetes-asyncio.
RENEW_EVERY_S = 60.0
# Plugins may ask a person, or a cloud that is slow.
LOAD_TIMEOUT_S = 60.0


async def configuration(kubeconfig: str | Path | None = None) -> Configuration:
    """How to reach the API server: the given kubeconfig (several are separated by colons), else
    $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    It belongs to one event loop. What others than KubeClient need of it: `host` (the URL),
    `ssl_ca_cert`, `cert_file` and `key_file` (paths or None), `verify_ssl`, `tls_server_name`,
    `proxy` (a URL or None), and `await get_api_key_with_prefix(TOKEN)`, the Authorization header's
    value (`Bearer …`) as it is now, or None. Raises ConfigError when there is no way.
    """
    source, found = _source(kubeconfig), Configuration()
    await _load(source, found, refused=False)
    found.refresh_api_key_hook = Renewal(source)
    return found


class Renewal:
    """Keeps a Configuration's token fresh: loads it again once a minute and after a refusal.

    kubernetes-asyncio calls it before each use of the token, as its `refresh_api_key_hook`. When
    loading fails, the token stays: it may be good for minutes yet, and the API server says if not.
    """

    def __init__(self, source: "Source", clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._due = clock() + RENEW_EVERY_S
        self._refused = False
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, configuration: Configuration) -> None:
        """Load the token again if it is time; who comes meanwhile waits for the same."""
        if self._running is None and (self._refused or self._clock() >= self._due):
            self._running = asyncio.create_task(self._renew(configuration))
        if self._running is not None:
            # A slow plugin goes on for the next call when this one's time is up.
            await asyncio.shield(self._running)

    def refuse(self) -> None:
        """The API server does not take the token: the next call loads it again."""
        self._refused = True

    async def _renew(self, configuration: Configuration) -> None:
        refused, self._refused = self._refused, False
        try:
            await _load(self._source, configuration, refused)
        except ConfigError as error:
            log.warning("the token stays as it is", error=error)
        finally:
            self._due = self._clock() + RENEW_EVERY_S
            self._running = None


class Source(Protocol):
    """Where a Configuration comes from."""

    async def load(self, into: Configuration, refused: bool) -> None:
        """Fill it in, or renew its token; `refused`: the API server does not take the old one.
        Raises ConfigError."""


class ServiceAccount:
    """What the kubelet gives to a pod: small files in memory, of which it renews the token's."""

    async def load(self, into: Configuration, refused: bool) -> None:
        """Read the files."""
        token, authority = SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"
        try:
            InClusterConfigLoader(str(token), str(authority), try_refresh_token=False).load_and_set(
                into
            )
        except (ConfigException, OSError) as error:
            raise ConfigError(
                f"cannot use the pod's service account in {SERVICE_ACCOUNT}: {error} "
                "Does the pod mount its token?"
            ) from error


class Kubeconfig:
    """A kubeconfig file, or several that are separated by colons."""

    def __init__(self, paths: str) -> None:
        self._paths = paths
        self._loader: KubeConfigLoader | None = None

    async def load(self, into: Configuration, refused: bool) -> None:
        """Read it; after that, have its plugin asked again when the token that it gave has ended,
        and look for what `kubectl` has written into it."""
        if not any(Path(one).expanduser().is_file() for one in self._paths.split(os.pathsep)):
            raise ConfigError(f"cannot read the kubeconfig {self._paths}: there is no such file")
        try:
            loader = self._loader
            if loader is None or refused or loader.provider == PROVIDER_TYPE_OIDC:
                merged = KubeConfigMerger(self._paths).config
                _forget_refresh_tokens(merged)
                loader = KubeConfigLoader(merged, config_base_path=None)
            elif not hasattr(loader, "exec_plugin_expiry"):
                return
            await loader.load_and_set(into)
            self._loader = loader
        except Exception as error:
            # Whatever it stumbles over: YAML, missing fields, certificates, programs, HTTP.
            why = str(error) or repr(error)
            raise ConfigError(f"cannot use the kubeconfig {self._paths}: {why}") from error


def _forget_refresh_tokens(config: Any) -> None:
    """kubernetes-asyncio would send them to whoever answers: it does not check who the issuer is.
    An id-token that has ended is an error instead."""
    for user in config["users"].value:
        provider = (user.value.get("user") or {}).get("auth-provider") or {}
        (provider.get("config") or {}).pop("refresh-token", None)


def _source(kubeconfig: str | Path | None) -> Source:
    if named := kubeconfig or os.environ.get("KUBECONFIG"):
        return Kubeconfig(str(named))
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return ServiceAccount()
    default = Path.home() / ".kube" / "config"
    if default.is_file():
        return Kubeconfig(str(default))
    raise ConfigError("no API server known: set KUBECONFIG, or run inside a cluster")


async def _load(source: Source, into: Configuration, refused: bool) -> None:
    try:
        async with asyncio.timeout(LOAD_TIMEOUT_S):
            await source.load(into, refused)
    except TimeoutError as error:
        raise ConfigError(f"no credentials after {LOAD_TIMEOUT_S:.0f} s") from error
    if token := into.api_key.get(TOKEN):
        # Files end in a newline more often than not, and no header may hold one.
        into.api_key[TOKEN] = token.strip()
