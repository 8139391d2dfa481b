"""Which isolation is enforced; what isn't must not run as if it were."""

from __future__ import annotations

from mizar_core.models import Isolation


def wants_shim(isolation: Isolation) -> bool:
    """Whether containers get the shim; backend None means that nobody asks for limits."""
    return isolation.backend in ("Auto", "Shim")


def unenforced(isolation: Isolation) -> str | None:
    """What the quota asks for and nobody enforces, as a sentence; None if all is well."""
    problem = isolation.contradiction
    return None if problem is None else f"isolation: {problem}"
