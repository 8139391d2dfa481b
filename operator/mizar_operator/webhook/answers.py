"""Answers to AdmissionReviews. Pure."""

import base64
import json
from collections.abc import Iterable
from typing import Any

from mizar_operator.webhook.rewrite import Patch

Answer = dict[str, Any]


def allowed(uid: str, patch: Patch | None = None, warnings: Iterable[str] = ()) -> Answer:
    """Let the object pass, with a JSON patch if there is one to make."""
    response: Answer = {"uid": uid, "allowed": True}
    if told := list(warnings):
        response["warnings"] = told
    if patch:
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    return _review(response)


def refused(uid: str, sentences: Iterable[str]) -> Answer:
    """Refuse the object; the sentences are what its user sees."""
    status = {"code": 422, "reason": "Invalid", "message": "; ".join(sentences)}
    return _review({"uid": uid, "allowed": False, "status": status})


def _review(response: Answer) -> Answer:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response,
    }
