"""Checks whether the API server's CRDs of Mizar have all fields that this operator knows.

Neither `helm upgrade` nor Flux updates CRDs unless told to. The API server silently drops a field
that an older CRD lacks from every spec, and refuses the whole of a status that contains one, so
that the status of a shadow pod is never updated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mizar_core.model_base import Model
from mizar_core.models import GPUPool, GPUQuota, ShadowPod
from mizar_core.names import API_VERSION, GROUP, VERSION
from mizar_kube.client import KubeClient
from mizar_kube.errors import KubeError, Unavailable
from mizar_kube.logs import get_logger

log = get_logger(__name__)

Schema = dict[str, Any]
"""A JSON schema, or a part of one."""

MODELS: tuple[type[Model], ...] = (GPUPool, GPUQuota, ShadowPod)
"""The models of the kinds whose CRDs are checked."""
PARTS = ("spec", "status")
"""The fields of an object that are checked, with all that is in them."""
PATH = f"/openapi/v3/apis/{API_VERSION}"
"""Where the API server publishes the schemas of Mizar's kinds."""
REFERENCE = "#/$defs/"
"""Prefix of a reference within a model's schema."""


async def lacking_fields(client: KubeClient) -> list[str]:
    """The fields that the API server's CRDs lack, such as `GPUPool.spec.defaultQuota`. Empty too if
    the API server does not publish its schemas, or does not answer."""
    try:
        served = await client.request("GET", PATH)
    except Unavailable:
        return []
    except KubeError as error:
        log.info("the API server does not publish the schemas of Mizar's kinds", error=error)
        return []
    schemas = (served.get("components") or {}).get("schemas") or {}
    by_kind = {kind: one for one in schemas.values() for kind in _kinds(one)}
    return [
        field
        for model in MODELS
        if model.__name__ in by_kind
        for field in _lacking_in_kind(model, by_kind[model.__name__])
    ]


def _kinds(schema: Schema) -> list[str]:
    """The kinds of Mizar that the schema describes: one, or none if it is of a part of a kind."""
    named = schema.get("x-kubernetes-group-version-kind") or ()
    return [str(one["kind"]) for one in named if (one["group"], one["version"]) == (GROUP, VERSION)]


def _lacking_in_kind(model: type[Model], served: Schema) -> Iterator[str]:
    known = model.model_json_schema(by_alias=True, mode="serialization")
    for part in PARTS:
        field = f"{model.__name__}.{part}"
        yield from _lacking(
            known["properties"][part], known.get("$defs", {}), _at(served, part), field
        )


def _lacking(node: Schema, parts: Schema, served: Schema | None, field: str) -> Iterator[str]:
    """The field, or the fields in it, that the API server's schema lacks. `node`: this operator's
    schema of the field, its `$ref`s among `parts`. `served`: the API server's; None if it has
    none."""
    if served is None:
        yield field
        return
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = _resolved(node, parts)
    for name, each in known.get("properties", {}).items():
        yield from _lacking(each, parts, _at(served, name), f"{field}.{name}")
    for inside in ("items", "additionalProperties"):
        if isinstance(known.get(inside), dict):
            yield from _lacking(known[inside], parts, served.get(inside) or {}, field)


def _at(served: Schema, name: str) -> Schema | None:
    found: Schema | None = (served.get("properties") or {}).get(name)
    return found


def _resolved(node: Schema, parts: Schema) -> Schema:
    """The node without `| None` and without references."""
    for one in node.get("anyOf", ()):
        if one.get("type") != "null":
            return _resolved(one, parts)
    if "$ref" in node:
        return _resolved(parts[node["$ref"].removeprefix(REFERENCE)], parts)
    return node
