"""What this machine knows about reaching package indexes, for use inside an image's build.

It is mounted for the time of the build and never becomes part of an image.
"""

from __future__ import annotations

import ast
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

IN_BUILD = "/run/mizar-build"
PIP_CACHE = f"{IN_BUILD}/pip"
PIP_CONF = "/etc/pip.conf"
CA_BUNDLE = f"{IN_BUILD}/ca.crt"

# Settings of the network alone: folders of this machine mean nothing inside.
_PASSED = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_LINE = re.compile(r"^(?P<scope>.+?)\.(?P<key>[a-z-]+)=(?P<value>'.*'|\".*\")$", re.MULTILINE)


def write(folder: Path) -> dict[Path, str]:
    """Write the settings to `folder`; file on this machine -> its place in the build."""
    folder.mkdir(parents=True, exist_ok=True)
    known = host_pip()
    bundle = _bundle(known)
    conf = folder / "pip.conf"
    conf.write_text(pip_conf(known, with_bundle=bundle is not None))
    return {conf: PIP_CONF} | ({bundle: CA_BUNDLE} if bundle else {})


def pip_conf(known: Mapping[str, str], with_bundle: bool) -> str:
    """pip's configuration inside the build, from what pip is told on this machine."""
    lines = {key: known[key] for key in _PASSED if key in known}
    lines["cache-dir"] = PIP_CACHE
    lines["disable-pip-version-check"] = "true"
    if with_bundle:
        lines["cert"] = CA_BUNDLE
    values = (f"{key} = {_indented(value)}" for key, value in lines.items())
    return "\n".join(["[global]", *values, ""])


def host_pip() -> dict[str, str]:
    """pip's settings on this machine: its files first, then the environment over them."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60
    )
    return parse(done.stdout)


def parse(listing: str) -> dict[str, str]:
    """The settings in what `pip config list` prints (it may call timeout default-timeout)."""
    found: dict[str, str] = {}
    matches = list(_LINE.finditer(listing))
    for match in sorted(matches, key=lambda one: one["scope"] == ":env:"):
        key = match["key"].removeprefix("default-")
        found[key] = str(ast.literal_eval(match["value"]))
    return found


def _indented(value: str) -> str:
    return "\n    ".join(value.split())


def _bundle(known: Mapping[str, str]) -> Path | None:
    usual = ssl.get_default_verify_paths().cafile
    candidates = (known.get("cert"), os.environ.get("SSL_CERT_FILE"), usual)
    found = (Path(one) for one in candidates if one)
    return next((one for one in found if one.is_file()), None)
