"""Objects of Mizar's API as their models."""

from __future__ import annotations

from typing import Any

from mizar_core.models import GPUPool, GPUQuota, ShadowPod

_MODELS: dict[str, type[GPUPool] | type[GPUQuota] | type[ShadowPod]] = {
    "GPUPool": GPUPool,
    "GPUQuota": GPUQuota,
    "ShadowPod": ShadowPod,
}


def parse_kind(body: dict[str, Any]) -> GPUPool | GPUQuota | ShadowPod:
    """The model of an object, by its `kind`; KeyError for a kind that is not Mizar's,
    ValidationError for an object that the kind does not permit."""
    return _MODELS[body["kind"]].from_dict(body)
