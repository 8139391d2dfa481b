"""Remembers which spot pods' gates the API server refused to open, so that they keep no card from
other pods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mizar_core.planning.spot.actions import OpenGate, SpotAction
from mizar_kube.errors import BadRequest, Forbidden, Invalid, KubeError
from mizar_operator.evict_or_delete import INTERNAL_ERROR
from mizar_operator.reconcile_state import REFUSED_FIRST_S, REFUSED_MOST_S, Backoffs
from mizar_operator.spot.apply import Failure

WEBHOOK = "webhook"
"""A word in the message of the internal error by which the API server says that a webhook did not
answer."""


class ClosedGates:
    """The gates that stay closed, with the API server's message about each. Times are seconds.

    A namespace in which no gate could be opened waits as a whole, since a Job's other pods would be
    refused as well, one after the other. A pod waits for longer than its namespace, so that another
    one is tried next.
    """

    def __init__(self) -> None:
        self._pods = Backoffs[str](2 * REFUSED_FIRST_S, 2 * REFUSED_MOST_S)
        self._namespaces = Backoffs[str](REFUSED_FIRST_S, REFUSED_MOST_S)
        self._unanswered: set[str] = set()

    @property
    def unanswered(self) -> frozenset[str]:
        """The UIDs of the pods whose gates may have been opened by a request without an answer."""
        return frozenset(self._unanswered)

    def note(self, actions: Iterable[SpotAction], failures: Iterable[Failure], now: float) -> None:
        """Note what became of the actions of a plan."""
        failed = {one.action: one.error for one in failures if isinstance(one.action, OpenGate)}
        refused = {action: str(error) for action, error in failed.items() if _refuses(error)}
        for action, message in refused.items():
            self._pods.record(action.uid, now, message)
        for namespace, message in {one.spot[0]: refused[one] for one in refused}.items():
            self._namespaces.record(namespace, now, message)
        tried = [one for one in actions if isinstance(one, OpenGate)]
        self._unanswered -= {one.uid for one in tried}
        self._unanswered |= {one.uid for one in failed if one not in refused}
        self._namespaces.forget({one.spot[0] for one in tried if one not in failed})

    def keep_only(self, uids: Collection[str], namespaces: Collection[str]) -> None:
        """Forget all but these pods and namespaces."""
        self._pods.keep_only(uids)
        self._unanswered &= set(uids)
        self._namespaces.keep_only(namespaces)

    def pods(self, now: float) -> Mapping[str, str]:
        """The API server's message about each pod whose gate is not to be tried now, by its UID."""
        return dict(self._pods.active(now))

    def namespaces(self, now: float) -> Mapping[str, str]:
        """The last message for each namespace of which no pod is tried now."""
        return dict(self._namespaces.active(now))

    def next(self, now: float) -> float | None:
        """Seconds until the first gate may be tried again; None if there is none."""
        waits = (self._pods.next(now), self._namespaces.next(now))
        return min((one for one in waits if one is not None), default=None)


def _refuses(error: KubeError) -> bool:
    """Whether the gate is closed for certain, and not only until the API server answers: if its
    answer was lost, the gate may be open, and its card must be given to no other pod."""
    if error.status == INTERNAL_ERROR:
        return WEBHOOK in str(error)
    return isinstance(error, BadRequest | Forbidden | Invalid)
