"""Errors of calls to the API server: one tree, made from its Status objects."""

from typing import Any


class ConfigError(Exception):
    """No API server can be reached with the given configuration; the message says what is wrong."""


class KubeError(Exception):
    """The API server refused or failed a call. The message is the server's, after the name of the
    call.

    `status` is the HTTP status (0 when no answer came), `reason` the Status object's reason,
    `causes` the reasons of its details' causes, `retry_after` the seconds the server asked to wait,
    if it did.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: frozenset[str] = frozenset(),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.causes = causes
        self.retry_after = retry_after


class BadRequest(KubeError):
    """400: the API server does not understand the request: a bug, or an older API server."""


class Unauthorized(KubeError):
    """401: the credentials are missing or no longer valid."""


class Forbidden(KubeError):
    """403: RBAC, admission or a resource quota refuses it."""


class NotFound(KubeError):
    """404: the API server has no such object."""


class NotServed(KubeError):
    """404 without the API server's reason NotFound: it does not serve the kind, or a proxy answered
    in its place. Says nothing about whether the object exists."""


class Conflict(KubeError):
    """409: another client changed the object, or a precondition doesn't hold. Read it again."""


class AlreadyExists(KubeError):
    """409 on create: an object of that name is there."""


class Gone(KubeError):
    """410: the resource version is too old. List again."""


class Invalid(KubeError):
    """422: validation refuses the object; the message says which field."""


class Unavailable(KubeError):
    """No answer, a timeout, too many requests, or a server error: try again later."""


class Interrupted(Unavailable):
    """The connection broke while the API server's answer, which it had begun, was read."""


class Silent(Unavailable):
    """The API server has accepted a watch, and then sent nothing for too long, not even a
    bookmark. The connection may be dead; or etcd was restored from a backup, and the version to
    watch from is one of the future. List again."""


class TooLarge(KubeError):
    """The answer is larger than the caller permits, to bound its memory. Ask for less at a time."""


_BY_REASON: dict[str, type[KubeError]] = {
    "AlreadyExists": AlreadyExists,
    "BadRequest": BadRequest,
    "Conflict": Conflict,
    "Expired": Gone,
    "Forbidden": Forbidden,
    "Gone": Gone,
    "Invalid": Invalid,
    "NotFound": NotFound,
    "Unauthorized": Unauthorized,
}

_BY_STATUS: dict[int, type[KubeError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotServed,
    408: Unavailable,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: Unavailable,
}


def error_from_status(
    status: int, body: dict[str, Any], asked: str, retry_after: float | None = None
) -> KubeError:
    """The error for an HTTP status and the Status object that came with it.

    `asked` names the call (`GET pods ns/name`) and leads the message.
    """
    reason = str(body.get("reason") or "")
    default = Unavailable if status >= 500 else KubeError
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(status, default)
    message = str(body.get("message") or f"HTTP {status}")
    return kind(
        f"{asked}: {message}",
        status=status,
        reason=reason,
        causes=_causes(body),
        retry_after=retry_after,
    )


def _causes(body: dict[str, Any]) -> frozenset[str]:
    """The reasons of the causes; none where the answer is not the API server's but a proxy's, whose
    details may be anything."""
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    found = causes if isinstance(causes, list) else []
    return frozenset(str(one.get("reason")) for one in found if isinstance(one, dict))


def is_refusal(error: KubeError) -> bool:
    """Whether the API server will refuse the same again until something is changed: a
    ResourceQuota, a policy, a RuntimeClass or a webhook, also one that fails (which is an internal
    error)."""
    return isinstance(error, BadRequest | Forbidden | Invalid) or "calling webhook" in str(error)
