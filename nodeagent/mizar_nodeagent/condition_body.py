"""Builds the objects by which the node agent writes conditions to pods' statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mizar_kube.kinds import POD


def condition_body(
    namespace: str, name: str, condition: Mapping[str, str], uid: str = ""
) -> dict[str, Any]:
    """The object to apply for one condition of a pod. With a `uid`, the API server refuses to apply
    it to another pod of the same name."""
    metadata = {"namespace": namespace, "name": name} | ({"uid": uid} if uid else {})
    return {
        "apiVersion": POD.api_version,
        "kind": POD.name,
        "metadata": metadata,
        "status": {"conditions": [dict(condition)]},
    }
