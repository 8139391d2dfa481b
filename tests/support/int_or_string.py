"""The fields of Mizar's kinds that are a whole number or text, as their schemas say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CRDS = Path(__file__).resolve().parents[2] / "charts" / "mizar" / "crds"
USERS = ("gpupools", "gpuquotas")
"""What users write."""


def fields(plural: str) -> list[str]:
    """Such as spec.profiles[0].memory, of the newest version of a kind."""
    crd = yaml.safe_load((CRDS / f"{plural}.yaml").read_text())
    schema = crd["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]
    return list(_walk("spec", schema["properties"]["spec"]))


def _walk(path: str, schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("x-kubernetes-int-or-string"):
        yield path
    for key, inner in schema.get("properties", {}).items():
        yield from _walk(f"{path}.{key}", inner)
    for key, step in (("items", "[0]"), ("additionalProperties", ".key")):
        if isinstance(schema.get(key), dict):
            yield from _walk(f"{path}{step}", schema[key])


def with_value(path: str, value: object) -> dict[str, Any]:
    """A spec that has this value in one field."""
    made: Any = value
    for part in reversed(path.split(".")[1:]):
        name, bracket, _ = part.partition("[")
        made = {name: [made] if bracket else made}
    return dict(made)
