"""Reads the checkpoint of the kubelet's device manager, for what podresources leaves out.

The checkpoint also has init containers, the pods' UIDs, and the answers to Allocate, whose mounts
name the slots. Its format is internal to the kubelet, so podresources is used wherever that
suffices.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from mizar_core.names import is_mizars
from mizar_nodeagent.errors import KubeletAway
from mizar_nodeagent.proto import deviceplugin_pb2 as pb

FILE = "kubelet_internal_checkpoint"
"""Name of the checkpoint in the kubelet's folder for device plugins."""


@dataclass(frozen=True)
class Entry:
    """The devices of a resource that a container got. `mounts`: host paths of the mounts in the
    answer to Allocate."""

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    mounts: frozenset[str]


def read(plugin_dir: Path) -> tuple[Entry, ...]:
    """The entries of virtual and spot devices. `plugin_dir`: the kubelet's folder for device
    plugins. Raises KubeletAway if the file is missing or cannot be parsed."""
    path = plugin_dir / FILE
    try:
        body = json.loads(path.read_bytes())
        entries = body["Data"]["PodDeviceEntries"] or ()
        return tuple(_entry(one) for one in entries if is_mizars(one["ResourceName"]))
    except (OSError, ValueError, LookupError, TypeError, DecodeError) as error:
        raise KubeletAway(f"the kubelet's record {path} cannot be read: {error}") from error


def _entry(body: Any) -> Entry:
    return Entry(
        pod_uid=str(body["PodUID"]),
        container=str(body["ContainerName"]),
        resource=str(body["ResourceName"]),
        ids=frozenset(_ids(body["DeviceIDs"])),
        mounts=frozenset(_mounts(body.get("AllocResp") or "")),
    )


def _ids(body: Any) -> Iterable[str]:
    """An entry's device IDs, which are listed by NUMA node; before Kubernetes 1.20, as one list."""
    lists = body.values() if isinstance(body, dict) else [body]
    return (str(one) for ids in lists for one in ids)


def _mounts(encoded: str) -> Iterable[str]:
    try:
        raw = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(f"AllocResp is not base64: {error}") from error
    return (mount.host_path for mount in pb.ContainerAllocateResponse.FromString(raw).mounts)
