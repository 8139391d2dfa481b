"""What must survive the agent: its memory of carvings, in one file that is whole or not used.

Everything in it can be rebuilt from the API server, podresources and NVML; it lets the agent offer
the same devices before any of these answers, and remembers what it promised (a drain).
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from mizar_nodeagent.files import write_atomically
from mizar_nodeagent.planning.carving import Carving
from mizar_nodeagent.planning.plan import Memory
from mizar_nodeagent.pods import Key

log = logging.getLogger(__name__)

VERSION = 1


def to_bytes(memory: Memory) -> bytes:
    """The file's content: the same memory is always the same bytes."""
    carvings = [memory[key].to_dict() for key in sorted(memory)]
    body = {"version": VERSION, "checksum": _checksum(carvings), "carvings": carvings}
    return json.dumps(body, indent=1, sort_keys=True).encode()


def save(path: Path, content: bytes) -> None:
    """Write it durably. Raises OSError."""
    write_atomically(path, content)


def load(path: Path, now: float) -> dict[Key, Carving]:
    """The memory; empty when there is no file, or one that cannot be trusted (it is set aside)."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.error("the checkpoint cannot be read: %s; everything is found out anew", error)
        return {}
    try:
        return _parsed(json.loads(raw), now)
    except (ValueError, LookupError, TypeError) as error:
        log.error("the checkpoint %s is damaged (%s): everything is found out anew", path, error)
        path.replace(path.with_suffix(".damaged"))
        return {}


def _parsed(body: dict[str, Any], now: float) -> dict[Key, Carving]:
    if body["version"] != VERSION:
        raise ValueError(f"version {body['version']} instead of {VERSION}")
    if body["checksum"] != _checksum(body["carvings"]):
        raise ValueError("the checksum is wrong")
    carvings = [Carving.from_dict(one, now) for one in body["carvings"]]
    return {carving.key: carving for carving in carvings}


def _checksum(carvings: Any) -> str:
    return hashlib.sha256(json.dumps(carvings, sort_keys=True).encode()).hexdigest()
