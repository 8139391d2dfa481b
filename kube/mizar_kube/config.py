"""Where the API server is and how to prove who asks: from inside a pod, or from a kubeconfig."""

import os
from collections.abc import Mapping
from pathlib import Path
from ssl import create_default_context

from mizar_kube.access import Access, ConfigError, TokenFile
from mizar_kube.kubeconfig import from_kubeconfig

__all__ = ["Access", "ConfigError", "find", "from_kubeconfig", "in_cluster"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


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


def find(kubeconfig: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Access:
    """The given kubeconfig, else $KUBECONFIG, else the pod's own, else ~/.kube/config.

    Raises ConfigError when none of them is there.
    """
    if named := kubeconfig or environ.get("KUBECONFIG"):
        return from_kubeconfig(named)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environ)
    default = Path(environ.get("HOME", "/")) / ".kube" / "config"
    if default.is_file():
        return from_kubeconfig(default)
    raise ConfigError("no API server known: set KUBECONFIG, or run inside a cluster")
