"""Writes docker-archive files (what `docker save` writes)."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.binaries.components import ARCH

_PIECE = 1 << 20
_HISTORY = {"created_by": "mizar"}


def write(archive: Path, name: str, layer: Path, config: Mapping[str, object]) -> None:
    """Write image `name` whose only layer is the tar file `layer`; `config` as in OCI images."""
    diff = _sha256(layer)
    image = {
        "architecture": ARCH,
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
        "history": [_HISTORY],
    }
    with tarfile.open(archive, "w") as tar:
        tar.add(layer, f"{diff}.tar", filter=_plain)
        _add_image(tar, name, image, [f"{diff}.tar"])


def write_derived(archive: Path, name: str, base: Path, files: Mapping[str, bytes]) -> None:
    """Write image `name`: the image of the docker-archive `base`, with these files of root's in one
    more layer. `files`: their content by path, without a slash at the front."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, content in files.items():
            add_bytes(tar, path, content, 0o755)
    diff = hashlib.sha256(layer.getvalue()).hexdigest()
    with tarfile.open(base) as source, tarfile.open(archive, "w") as tar:
        (entry,) = _read_json(source, "manifest.json")
        image = _read_json(source, entry["Config"])
        image["rootfs"]["diff_ids"].append(f"sha256:{diff}")
        image["history"].append(_HISTORY)
        for one in entry["Layers"]:
            tar.addfile(source.getmember(one), source.extractfile(one))
        add_bytes(tar, f"{diff}.tar", layer.getvalue())
        _add_image(tar, name, image, [*entry["Layers"], f"{diff}.tar"])


def _add_image(
    tar: tarfile.TarFile, name: str, image: Mapping[str, object], layers: list[str]
) -> None:
    """Add what names the image and its layers, which are in the archive already."""
    config = json.dumps(image).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    entry = {"Config": config_name, "RepoTags": [name], "Layers": layers}
    add_bytes(tar, config_name, config)
    add_bytes(tar, "manifest.json", json.dumps([entry]).encode())


def _read_json(tar: tarfile.TarFile, name: str) -> Any:
    file = tar.extractfile(name)
    assert file is not None
    return json.load(file)


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
