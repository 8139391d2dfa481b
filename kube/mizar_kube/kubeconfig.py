"""Reads kubeconfig files: servers, certificates, tokens and exec plugins.

By hand, because the libraries that do so take seconds to import.
"""

import base64
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from ssl import CERT_NONE, SSLContext, create_default_context
from typing import Any

import yaml

from mizar_kube.access import Access, ConfigError, TokenFile, Tokens
from mizar_kube.memory_file import memory_file

Section = dict[str, Any]

EXEC_TIMEOUT_S = 60.0


def from_kubeconfig(paths: str | Path) -> Access:
    """Access as the current context says; several files are separated by colons.

    Raises ConfigError, naming what is missing.
    """
    files = [_File.read(Path(one)) for one in str(paths).split(os.pathsep) if one]
    name = next((one.body["current-context"] for one in files if "current-context" in one.body), "")
    _, context = _named(files, "contexts", "context", name)
    folder, cluster = _named(files, "clusters", "cluster", context.get("cluster", ""))
    user_folder, user = _named(files, "users", "user", context.get("user", ""))
    tokens, pem = _credentials(user, user_folder)
    return Access(
        server=str(cluster.get("server", "")).rstrip("/"),
        ssl=_ssl(cluster, folder, pem),
        tokens=tokens,
        proxy=cluster.get("proxy-url"),
        server_hostname=cluster.get("tls-server-name"),
    )


@dataclass(frozen=True)
class _File:
    folder: Path
    body: Section

    @classmethod
    def read(cls, path: Path) -> "_File":
        try:
            body = yaml.safe_load(path.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"cannot read the kubeconfig {path}: {error}") from error
        if not isinstance(body, dict):
            raise ConfigError(f"{path} is no kubeconfig: it holds no contexts")
        return cls(path.parent, body)


def _named(files: Iterable[_File], plural: str, kind: str, name: str) -> tuple[Path, Section]:
    """The first section of that name, and the folder that its paths start from."""
    for file in files:
        for entry in file.body.get(plural) or []:
            if entry.get("name") == name:
                return file.folder, entry.get(kind) or {}
    raise ConfigError(f"the kubeconfig has no {kind} called '{name}'")


def _credentials(user: Section, folder: Path) -> tuple[Tokens, bytes]:
    """What gives tokens, and a client certificate with its key (PEM; empty if there is none)."""
    pem = _content(user, "client-certificate", folder) + _content(user, "client-key", folder)
    if "exec" in user:
        plugin = ExecPlugin(user["exec"], folder)
        return plugin, pem or plugin.certificate()
    if "tokenFile" in user:
        return TokenFile(folder / user["tokenFile"]), pem
    token = user.get("token")
    return (lambda fresh: f"Bearer {token}" if token else None), pem


def _content(section: Section, key: str, folder: Path) -> bytes:
    if data := section.get(f"{key}-data"):
        return base64.b64decode(data) + b"\n"
    if path := section.get(key):
        try:
            return (folder / str(path)).read_bytes() + b"\n"
        except OSError as error:
            raise ConfigError(f"cannot read {key} of the kubeconfig: {error}") from error
    return b""


def _ssl(cluster: Section, folder: Path, pem: bytes) -> SSLContext:
    ca = _content(cluster, "certificate-authority", folder)
    context = create_default_context(cadata=ca.decode() if ca else None)
    if pem:
        with memory_file(pem) as path:
            context.load_cert_chain(path)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = CERT_NONE
    return context


class ExecPlugin:
    """Credentials from a program, as cloud providers have it; asked again when they expire."""

    def __init__(self, spec: Section, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._spec = spec
        self._folder = folder
        self._clock = clock
        self._status: Section | None = None

    def __call__(self, fresh: bool = False) -> str | None:
        token = self._current(fresh).get("token")
        return f"Bearer {token}" if token else None

    def certificate(self) -> bytes:
        """A client certificate with its key, if the program gives one."""
        status = self._current(False)
        parts = [status.get("clientCertificateData"), status.get("clientKeyData")]
        return "\n".join(str(one) for one in parts).encode() if all(parts) else b""

    def _current(self, fresh: bool) -> Section:
        if self._status is None or fresh or self._expired(self._status):
            self._status = self._ask()
        return self._status

    def _expired(self, status: Section) -> bool:
        end = status.get("expirationTimestamp")
        return bool(end) and datetime.fromisoformat(str(end)).timestamp() <= self._clock() + 10

    def _ask(self) -> Section:
        command = str(self._spec.get("command", ""))
        if "/" in command:
            command = str(self._folder / command)
        arguments = [str(one) for one in self._spec.get("args") or []]
        try:
            done = subprocess.run(
                [command, *arguments],
                env=os.environ | self._environment(),
                capture_output=True,
                timeout=EXEC_TIMEOUT_S,
                check=True,
            )
            return dict(json.loads(done.stdout)["status"])
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"the kubeconfig's exec plugin {command} fails: {error}") from error

    def _environment(self) -> dict[str, str]:
        info = {
            "apiVersion": self._spec.get("apiVersion"),
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        named = {one["name"]: str(one["value"]) for one in self._spec.get("env") or []}
        return named | {"KUBERNETES_EXEC_INFO": json.dumps(info)}
