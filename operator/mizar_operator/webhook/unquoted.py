"""Numbers that a person wrote into a GPUPool without the quotes that they need. Pure.

Kubernetes' schemas know "whole number or text", but not "number or text", and refuse the rest with
the name of a type. Mutating webhooks see the object before that.
"""

from collections.abc import Iterator
from typing import Any


def unquoted(pool: dict[str, Any]) -> Iterator[str]:
    """A sentence for each field whose value is neither text nor a whole number."""
    spec = _map(pool.get("spec"))
    for field, example in (("memoryScaling", "1.5"), ("coreScaling", "1.5")):
        yield from _sentence(f"spec.{field}", spec.get(field), example)
    profiles = spec.get("profiles")
    for at, profile in enumerate(profiles if isinstance(profiles, list) else ()):
        yield from _sentence(f"spec.profiles[{at}].memory", _map(profile).get("memory"), "8Gi")


def _sentence(field: str, value: Any, example: str) -> Iterator[str]:
    if isinstance(value, bool):
        said = str(value).lower()
        yield f'{field}: {said} is no number: write one in quotes, such as "{example}"'
    elif isinstance(value, float):
        yield f'{field}: write {value} in quotes, "{value}": Kubernetes takes no such number here'


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
