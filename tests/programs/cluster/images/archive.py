"""Writes docker-archive files (what `docker save` writes) with a single layer."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from cluster.binaries.components import ARCH

_PIECE = 1 << 20


def write(archive: Path, name: str, layer: Path, config: Mapping[str, object]) -> None:
    """Write image `name` whose only layer is the tar file `layer`; `config` as in OCI images."""
    diff = _sha256(layer)
    image = json.dumps(
        {
            "architecture": ARCH,
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
            "history": [{"created_by": "mizar"}],
        }
    ).encode()
    config_name = f"{hashlib.sha256(image).hexdigest()}.json"
    entry = {"Config": config_name, "RepoTags": [name], "Layers": [f"{diff}.tar"]}
    with tarfile.open(archive, "w") as tar:
        tar.add(layer, f"{diff}.tar", filter=_plain)
        add_bytes(tar, config_name, image)
        add_bytes(tar, "manifest.json", json.dumps([entry]).encode())


def add_bytes(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    """Add a file of root's with fixed times, so that equal content gives equal archives."""
    item = tarfile.TarInfo(name)
    item.size = len(data)
    item.mode = mode
    tar.addfile(item, io.BytesIO(data))


def _plain(item: tarfile.TarInfo) -> tarfile.TarInfo:
    item.uid = item.gid = 0
    item.uname = item.gname = ""
    item.mtime = 0
    return item


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while piece := source.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
