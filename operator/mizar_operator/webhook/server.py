"""The HTTP side of admission: AdmissionReviews come in over TLS, and answers go out."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import ValidationError

from mizar_kube.errors import KubeError
from mizar_kube.logs import bound, get_logger
from mizar_operator.webhook.metrics import Metrics
from mizar_operator.webhook.pod_specs import log_fields
from mizar_operator.webhook.reviewer import Answer, NotReady, Request, Reviewer

log = get_logger(__name__)

MAX_REVIEW_BYTES = 16 << 20
"""The largest AdmissionReview that is read: an update brings the object twice, and the API server
takes objects of up to 3 MiB."""

Review = Callable[[Request], Awaitable[Answer]]


def review_app(
    reviewer: Reviewer, metrics: Metrics, draining: Callable[[], bool]
) -> web.Application:
    """The application that serves /mutate and /validate. While it is `draining`, each answer closes
    its connection: API servers keep connections, and refuse the pod whose review they are sending
    when the server ends."""

    @web.middleware
    async def let_go(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            _close_if(draining(), error)
            raise
        _close_if(draining(), answer)
        return answer

    app = web.Application(client_max_size=MAX_REVIEW_BYTES, middlewares=[let_go])
    app.router.add_post("/mutate", _handler(reviewer.mutate, metrics))
    app.router.add_post("/validate", _handler(reviewer.validate, metrics))
    return app


def _close_if(draining: bool, answer: web.StreamResponse) -> None:
    if draining:
        answer.force_close()


def _handler(review: Review, metrics: Metrics) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(http: web.Request) -> web.Response:
        started = time.perf_counter()
        request = _request(await http.text())
        resource, operation = request["resource"]["resource"], request["operation"]
        try:
            with bound(**log_fields(request)):
                found = await _reviewed(review, request)
        except web.HTTPException:
            metrics.reviews.labels(resource, operation, "failed").inc()
            raise
        metrics.reviews.labels(resource, operation, _outcome(found)).inc()
        metrics.seconds.labels(resource).observe(time.perf_counter() - started)
        return web.json_response(found)

    return answer


def _request(body: str) -> dict[str, Any]:
    try:
        request = json.loads(body)["request"]
        _ = request["uid"], request["operation"], request["resource"]["resource"]
    except (ValueError, KeyError, TypeError) as error:
        raise web.HTTPBadRequest(
            text=f"no AdmissionReview of admission.k8s.io/v1: {error!r}"
        ) from error
    return dict(request)


async def _reviewed(review: Review, request: Request) -> Answer:
    """The answer to a request. A failure becomes an HTTP error, so that the webhook's failurePolicy
    decides about the object."""
    try:
        return await review(request)
    except (NotReady, KubeError) as error:
        log.warning("the request could not be reviewed", error=error)
        raise web.HTTPServiceUnavailable(text=str(error)) from error
    except ValidationError as error:
        log.warning("the request could not be reviewed", error=error)
        raise web.HTTPInternalServerError(text=str(error)) from error


def _outcome(answer: Answer) -> str:
    if not answer["response"]["allowed"]:
        return "refused"
    return "patched" if "patch" in answer["response"] else "allowed"
