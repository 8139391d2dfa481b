"""Loads the address of an API server and the credentials for it, by kubernetes-asyncio.

They come as its `Configuration`, in which tokens are renewed in place: asking it for the token, as
ApiClient does before each call, always yields a valid one.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
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
TOKEN = "BearerToken"
"""kubernetes-asyncio's key in `api_key` of the Authorization header's value."""
RENEW_EVERY_S = 60.0
"""Seconds between two loads of a token; the kubelet renews tokens long before they expire."""
LOAD_TIMEOUT_S = 60.0
"""Seconds that loading may take: a kubeconfig's plugins may ask a person, or a slow cloud."""


async def configuration(kubeconfig: str | Path | None = None) -> Configuration:
    """The Configuration for the API server of the given kubeconfig (several are separated by
    colons), else $KUBECONFIG, else the pod's service account, else ~/.kube/config.

    It belongs to one event loop. Callers other than KubeClient use its `host` (the URL),
    `ssl_ca_cert`, `cert_file` and `key_file` (paths or None), `verify_ssl`, `tls_server_name`,
    `proxy` (a URL or None), and `await get_api_key_with_prefix(TOKEN)`, the Authorization header's
    value (`Bearer …`) as it is now, or None. Raises ConfigError if none of these can be used.
    """
    source, found = _source(kubeconfig), Configuration()
    await _load(source, found, refused=False)
    found.refresh_api_key_hook = Renewal(source)
    return found


class Renewal:
    """Keeps a Configuration's token fresh: loads it again once a minute and after a refusal.

    kubernetes-asyncio calls it before each use of the token, as its `refresh_api_key_hook`. When
    loading fails, the token is kept: it may be valid for minutes yet, and the API server refuses it
    if not.
    """

    def __init__(self, source: "Source", clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._due = clock() + RENEW_EVERY_S
        self._refused = False
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, configuration: Configuration) -> None:
        """Load the token again if it is time. Calls that come meanwhile wait for the same load."""
        if self._running is None and (self._refused or self._clock() >= self._due):
            self._running = asyncio.create_task(self._renew(configuration))
        if self._running is not None:
            # When this call is cancelled, a slow plugin continues for the next call.
            await asyncio.shield(self._running)

    def refuse(self) -> None:
        """Make the next call load the token again, since the API server refuses the present one."""
        self._refused = True

    async def _renew(self, configuration: Configuration) -> None:
        refused, self._refused = self._refused, False
        try:
            await _load(self._source, configuration, refused)
        except ConfigError as error:
            log.warning("the token cannot be renewed: keeping the last one", error=error)
        finally:
            self._due = self._clock() + RENEW_EVERY_S
            self._running = None


class Source(Protocol):
    """A source that a Configuration is loaded from."""

    async def load(self, into: Configuration, refused: bool) -> None:
        """Fill in the Configuration, or renew its token. `refused`: the API server refuses the old
        one. Raises ConfigError."""


class ServiceAccount:
    """The service account of a pod: files from the kubelet, which renews the token."""

    async def load(self, into: Configuration, refused: bool) -> None:
        """Read the files. Raises ConfigError."""
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
    """A kubeconfig file, or several that are separated by colons.

    It is loaded in a separate thread: starting a plugin takes as long as the kernel needs to open
    its program, and files may be on a network that is down.
    """

    def __init__(self, paths: str) -> None:
        self._paths = paths
        self._loader: KubeConfigLoader | None = None
        self._loading = False

    async def load(self, into: Configuration, refused: bool) -> None:
        """Read the file. Later calls ask its plugin again when the plugin's token has expired, and
        read what `kubectl` has written into the file. Raises ConfigError, also while an earlier,
        abandoned call has not ended."""
        if self._loading:
            raise ConfigError(f"the kubeconfig {self._paths} is still being loaded")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A daemon thread, so that one that hangs does not keep the program from ending.
        thread = threading.Thread(
            target=self._load_into, args=(into, refused, done), name="kubeconfig", daemon=True
        )
        self._loading = True
        thread.start()
        await done

    def _load_into(self, into: Configuration, refused: bool, done: asyncio.Future[None]) -> None:
        error: ConfigError | None = None
        try:
            asyncio.run(self._load(into, refused))
        except ConfigError as found:
            error = found
        finally:
            # Before the result is set: a caller that receives it may load again at once.
            self._loading = False
        with suppress(RuntimeError):  # the loop that waited has ended
            done.get_loop().call_soon_threadsafe(_settle, done, error)

    async def _load(self, into: Configuration, refused: bool) -> None:
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
            # kubernetes-asyncio lets errors of YAML, certificates, programs and HTTP pass.
            why = str(error) or repr(error)
            raise ConfigError(f"cannot use the kubeconfig {self._paths}: {why}") from error


def _settle(done: asyncio.Future[None], error: ConfigError | None) -> None:
    if done.done():
        return  # the caller has given up
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _forget_refresh_tokens(config: Any) -> None:
    """Remove the refresh tokens: kubernetes-asyncio would send them without a check of the issuer.
    An expired id-token is an error instead."""
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
