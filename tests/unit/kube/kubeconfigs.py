"""Kubeconfig files, and what they name, as tests want them."""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

Section = dict[str, Any]

API_VERSION = "client.authentication.k8s.io/v1"


def write(
    folder: Path, server: object, user: Section, name: str = "kubeconfig", **cluster: Any
) -> Path:
    """A kubeconfig with one context; `cluster` beside its server, with - for _."""
    beside = {key.replace("_", "-"): value for key, value in cluster.items()}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": str(server), **beside}}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / name
    path.write_text(yaml.safe_dump(body))
    return path


def coded(data: bytes) -> str:
    """Base64, as kubeconfigs have it."""
    return base64.b64encode(data).decode()


def id_token(ends: int) -> str:
    """A JSON Web Token without a signature."""
    body = base64.urlsafe_b64encode(json.dumps({"exp": ends}).encode()).decode().rstrip("=")
    return f"head.{body}.signature"


class Plugin:
    """An exec plugin: a program that prints what `answers` was given and counts how often it is
    started."""

    def __init__(self, folder: Path, **status: str) -> None:
        self._folder = folder
        self._program = folder / "plugin"
        self._program.write_text(
            f"#!/bin/sh\ncd {folder}\necho asked >>asked\n. ./before\ncat answer\n"
        )
        self._program.chmod(0o755)
        (folder / "before").touch()
        self.answers(**status)

    @property
    def user(self) -> Section:
        """The user section that names the plugin."""
        return {"exec": {"command": str(self._program), "apiVersion": API_VERSION}}

    @property
    def asked(self) -> int:
        """How often the plugin has been started."""
        return len((self._folder / "asked").read_text().splitlines())

    def answers(self, **status: str) -> None:
        """From now on the plugin prints this credential."""
        answer = {"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status}
        (self._folder / "answer").write_text(json.dumps(answer))

    def first(self, command: str) -> None:
        """From now on the plugin runs this shell command before it answers."""
        (self._folder / "before").write_text(command)
