"""What the operator is started with: flags, and an environment variable for each."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Settings:
    """`namespace` holds the Lease; `identity` names this replica in it. Times in seconds."""

    kubeconfig: str | None = None
    pause_image: str = DEFAULT_PAUSE_IMAGE
    port: int = 9464
    namespace: str = "mizar-system"
    identity: str = "mizar-operator"
    leader_election: bool = True
    resync: float = 300.0
    log_level: str = "INFO"
    workers: int = 4
    writes_at_once: int = 16


def parse(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings from the command line; the environment gives the defaults."""
    found = _parser(environ).parse_args(argv)
    return Settings(
        kubeconfig=found.kubeconfig,
        pause_image=found.pause_image,
        port=found.port,
        namespace=found.namespace,
        identity=found.identity,
        leader_election=not found.no_leader_election,
        resync=found.resync,
        log_level=found.log_level.upper(),
    )


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mizar-operator", description=__doc__)

    def option(flag: str, variable: str, default: str, text: str) -> None:
        value = environ.get(variable, default)
        parser.add_argument(flag, default=value, help=f"{text} (${variable}, now {value!r})")

    parser.add_argument("--kubeconfig", help="default: $KUBECONFIG, or the pod's service account")
    option("--pause-image", "MIZAR_PAUSE_IMAGE", DEFAULT_PAUSE_IMAGE, "image of shadow pods")
    option("--namespace", "POD_NAMESPACE", _own_namespace(), "namespace of the Lease")
    option("--identity", "POD_NAME", socket.gethostname(), "name of this replica in the Lease")
    option("--log-level", "MIZAR_LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING")
    _numbers(parser, environ)
    parser.add_argument(
        "--no-leader-election", action="store_true", help="for one replica alone, as in tests"
    )
    return parser


def _numbers(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    port = int(environ.get("MIZAR_PORT", "9464"))
    parser.add_argument("--port", type=int, default=port, help="of /healthz, /readyz and /metrics")
    resync = float(environ.get("MIZAR_RESYNC_SECONDS", "300"))
    parser.add_argument("--resync", type=float, default=resync, help="seconds between resyncs")


def _own_namespace(path: Path = SERVICE_ACCOUNT_NAMESPACE) -> str:
    return path.read_text().strip() if path.is_file() else Settings.namespace
