"""The webhook's HTTP server: receives AdmissionReviews over TLS and answers them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import ValidationError

from mizar_kube.errors import KubeError
from mizar_kube.logs import bound, get_logger
from mizar_operator.webhook.metrics import Metrics
from mizar_operator.webhook.pod_specs import POD_SPECS, log_fields
from mizar_operator.webhook.reviewer import Answer, NotReady, Request, Reviewer

log = get_logger(__name__)

MAX_REVIEW_BYTES = 16 << 20
"""The largest AdmissionReview that is read: an update brings the object twice, and the API server
takes objects of up to 3 MiB."""

LARGE_BYTES = 128 << 10
"""Size, in bytes, from which reviews take turns: one may take twenty times its size in memory, and
any user who may create pods could send a hundred of 3 MiB at once. Usual reviews never wait."""
LARGE_AT_ONCE = 2
"""The most large reviews that are handled at the same time."""
READ_S = 5.0
"""Seconds within which a request must have arrived: a large one keeps its turn meanwhile."""

RESOURCES = (*(resource for _, resource in POD_SPECS), "gpupools", "gpuquotas")
"""The values of the metrics' label `resource`. All others count as `other`, since any pod of the
cluster can send requests with arbitrary values."""
OPERATIONS = ("CREATE", "UPDATE")
"""The values of the metrics' label `operation`. All others count as `other`, since any pod of the
cluster can send requests with arbitrary values."""

Review = Callable[[Request], Awaitable[Answer]]
"""Answers a request; `mutate` or `validate` of a Reviewer."""


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

    turns = asyncio.Semaphore(LARGE_AT_ONCE)
    app = web.Application(middlewares=[let_go])
    app.router.add_post("/mutate", _handler(reviewer.mutate, metrics, turns))
    app.router.add_post("/validate", _handler(reviewer.validate, metrics, turns))
    return app


def _close_if(draining: bool, answer: web.StreamResponse) -> None:
    if draining:
        answer.force_close()


def _handler(
    review: Review, metrics: Metrics, turns: asyncio.Semaphore
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def in_turn(http: web.Request) -> web.Response:
        started = time.perf_counter()
        # A request without a length may have any size.
        if (http.content_length or MAX_REVIEW_BYTES) < LARGE_BYTES:
            return await answer(http, started)
        async with turns:
            return await answer(http, started)

    async def answer(http: web.Request, started: float) -> web.Response:
        request = _request(await _body(http))
        resource = _known(request["resource"]["resource"], RESOURCES)
        operation = _known(request["operation"], OPERATIONS)
        try:
            with bound(**log_fields(request)):
                found = await _reviewed(review, request)
        except web.HTTPException:
            metrics.reviews.labels(resource, operation, "failed").inc()
            raise
        metrics.reviews.labels(resource, operation, _outcome(found)).inc()
        metrics.seconds.labels(resource).observe(time.perf_counter() - started)
        return web.json_response(found)

    return in_turn


async def _body(http: web.Request) -> bytes:
    """The request's body. Raises HTTPRequestEntityTooLarge if it is longer than MAX_REVIEW_BYTES,
    HTTPRequestTimeout if it has not arrived within READ_S. aiohttp's own `read` would keep the body
    in memory as long as the connection lasts."""
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(READ_S):
            async for part in http.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > MAX_REVIEW_BYTES:
                    raise web.HTTPRequestEntityTooLarge(MAX_REVIEW_BYTES, size)
    except TimeoutError as error:
        raise web.HTTPRequestTimeout from error
    return b"".join(parts)


def _request(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)["request"]
        _ = request["uid"], request["operation"], request["resource"]["resource"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise web.HTTPBadRequest(
            text=f"no AdmissionReview of admission.k8s.io/v1: {error!r}"
        ) from error
    return dict(request)


def _known(name: Any, names: Collection[str]) -> str:
    return str(name) if name in names else "other"


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
