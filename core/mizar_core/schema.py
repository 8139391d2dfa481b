"""The parts of CRD schemas beyond JSON Schema: CEL rules, list keys, int-or-string.

The models have them in `json_schema_extra`; `hack/gen_crds.py` writes them into the CRDs.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic.config import JsonDict

Rule = JsonDict


def rule(cel: str, message: str) -> Rule:
    """A CEL rule with the sentence that is shown when an object breaks it.

    The API server prints the offending value before the sentence if it is a string or number.
    """
    return {"rule": cel, "message": message}


def rule_about(cel: str, sentence: str, *numbers: str) -> Rule:
    """A rule on an object, with numbers (CEL expressions) for each %d in its sentence.

    It uses `format`, since CEL cannot bound the length of `string(number)` joined with +.
    """
    plain = sentence.replace("%d ", "").replace(" %d", "")
    return rule(cel, plain) | {"messageExpression": f"'{sentence}'.format([{', '.join(numbers)}])"}


def rules(*each: Rule, **more: Any) -> JsonDict:
    """`json_schema_extra` with these rules."""
    return {"x-kubernetes-validations": list(each), **more}


def immutable(name: str, instead: str) -> Rule:
    """The rule of a field that never changes. `instead`: what to do instead of changing it."""
    return rule("self == oldSelf", f"{name} cannot be changed: {instead}")


def is_scaling(cel: str) -> str:
    """A CEL expression that tells whether a value reads as a scaling, so that `double` can be
    applied."""
    return f"string({cel}).matches('^[0-9]{{1,2}}([.][0-9]{{1,4}})?$')"


def list_map(*keys: str) -> JsonDict:
    """The schema of a list whose items are identified by these keys."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


LIST_SET: Final[JsonDict] = {"x-kubernetes-list-type": "set"}
LIST_ATOMIC: Final[JsonDict] = {"x-kubernetes-list-type": "atomic"}

SHORT_NAME: Final = rule(
    "self.metadata.name.size() <= 63 && !self.metadata.name.contains('.')",
    "metadata.name must have at most 63 characters and no dot, since labels and pods carry it",
)
