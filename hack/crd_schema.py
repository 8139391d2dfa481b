"""Converts pydantic's JSON Schema to the structural schema that Kubernetes accepts.

Kubernetes has no `$ref`, no `const`, no null and no unions; CEL needs a bound on every list,
map and string. The conversion fails for whatever such a schema cannot express, so that no
constraint of a model is lost silently.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from functools import cache
from itertools import pairwise
from typing import Any

from mizar_core.model_base import Model

Schema = dict[str, Any]

_KEPT = {
    "type",
    "description",
    "default",
    "enum",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "properties",
    "required",
    "items",
    "additionalProperties",
}
_DROPPED = {"title", "readOnly", "$defs", "const"}
_FIRST = ("description", "type", "default", "x-kubernetes-validations")


def kind_schema(model: type[Model]) -> Schema:
    """The schema of a kind: the spec with its defaults, the status without defaults."""
    raw = model.model_json_schema(by_alias=True, mode="serialization")
    schema = Converter(raw.get("$defs", {})).convert(raw)
    fields: Schema = schema["properties"]
    fields["apiVersion"] = fields["kind"] = {"type": "string"}
    fields["metadata"] = {"type": "object"}
    fields["status"] = without_defaults(fields["status"])
    _complete_default(fields["spec"])
    _check_bounds(fields["spec"], "spec")
    _check_bounds(fields["status"], "status")
    return schema


class Converter:
    """Resolves `$ref`s against the definitions of one document."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self.definitions = definitions

    def convert(self, node: Schema) -> Schema:
        """The structural schema of a node and everything below it."""
        merged = self._inlined(node)
        schema = {key: merged[key] for key in merged if self._keeps(key)}
        if "properties" in schema:
            schema["required"] = _required(schema)
            schema["properties"] = self._properties(schema["properties"])
        for key in ("items", "additionalProperties"):
            if key in schema:
                schema[key] = self.convert(schema[key])
        return _tidied(schema)

    def _properties(self, properties: Schema) -> Schema:
        return {name: self.convert(each) for name, each in properties.items()}

    def _inlined(self, node: Schema) -> Schema:
        """The node without `$ref` and without `| None`; its own keywords override inlined ones."""
        rest = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
        if "anyOf" in node:
            rest.pop("default", None)
            return self._inlined(_only_one(node["anyOf"])) | rest
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            return _documented(name, self._inlined(self.definitions[name])) | rest
        return _documented(node["title"], node) if "properties" in node else dict(node)

    def _keeps(self, key: str) -> bool:
        if key in _DROPPED:
            return False
        if key in _KEPT or key.startswith("x-kubernetes-"):
            return True
        raise ValueError(f"Kubernetes' schemas have no '{key}': use another type in the model")


def _only_one(choices: list[Schema]) -> Schema:
    real = [one for one in choices if one.get("type") != "null"]
    if len(real) != 1:
        raise ValueError(f"Kubernetes' schemas have no unions: {choices}")
    return real[0]


def _required(schema: Schema) -> list[str]:
    """The required fields, without computed ones: pydantic lists these too, but clients need not
    send them."""
    properties = schema["properties"]
    return [name for name in schema.get("required", []) if not properties[name].get("readOnly")]


def _tidied(schema: Schema) -> Schema:
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type")
    if "exclusiveMinimum" in schema:
        schema |= {"minimum": schema["exclusiveMinimum"], "exclusiveMinimum": True}
    if schema.get("additionalProperties") is False:
        schema.pop("additionalProperties")
    if "default" in schema:
        schema["default"] = _without_nulls(schema["default"])
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    if not schema.get("required", True):
        schema.pop("required")
    first = {key: schema[key] for key in _FIRST if key in schema}
    return first | schema


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def without_defaults(schema: Schema) -> Schema:
    """The schema without defaults: two field managers write the status, and a default would act
    like a third one."""
    return {
        key: {name: without_defaults(each) for name, each in value.items()}
        if key == "properties"
        else without_defaults(value)
        if key == "items"
        else value
        for key, value in schema.items()
        if key != "default"
    }


def _complete_default(spec: Schema) -> None:
    """If the spec may be left out, make its default contain all fields, so that rules find them."""
    if "default" in spec:
        fields = spec["properties"].items()
        spec["default"] = {name: each["default"] for name, each in fields if "default" in each}


def _check_bounds(schema: Schema, path: str) -> None:
    """Check that every list, map and string has a bound, and every list a list type."""
    wanted = {"array": ("maxItems", "x-kubernetes-list-type"), "string": ("maxLength",)}
    free = "enum" in schema or "format" in schema
    for key in () if free else wanted.get(schema.get("type", ""), ()):
        if key not in schema:
            raise ValueError(f"{path} has no {key}: CEL's cost limit would refuse rules on it")
    if "additionalProperties" in schema and "maxProperties" not in schema:
        raise ValueError(f"{path} has no maxProperties: CEL's cost limit would refuse rules on it")
    for name, each in schema.get("properties", {}).items():
        _check_bounds(each, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            _check_bounds(schema[key], f"{path}[]")


def _documented(name: str, schema: Schema) -> Schema:
    """The model's schema, with the docstrings below its fields as descriptions."""
    words = _field_docstrings(name)
    described = {
        field: {"description": words[field]} | each if field in words else each
        for field, each in schema["properties"].items()
    }
    return schema | {"properties": described}


@cache
def _field_docstrings(name: str) -> dict[str, str]:
    model = next(one for one in _all_models(Model) if one.__name__ == name)
    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, str] = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = _string(below)
            if text:
                found[model.model_fields[field.target.id].alias or field.target.id] = text
    return found


def _string(node: ast.stmt) -> str | None:
    value = node.value if isinstance(node, ast.Expr) else None
    constant = value.value if isinstance(value, ast.Constant) else None
    return constant if isinstance(constant, str) else None


def _all_models(base: type[Model]) -> list[type[Model]]:
    own = [one for one in base.__subclasses__() if one.__module__ in sys.modules]
    return own + [each for one in own for each in _all_models(one)]
