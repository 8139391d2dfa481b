"""Evicts pods that have lost their card, as their PodDisruptionBudgets and the cluster's policies
and webhooks allow, and deletes those whose eviction these hold off for too long. The plan decides
when a refused eviction is tried again: see `RETRY_AFTER` in
mizar_core/planning/evict_share_pods.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from mizar_core.model_base import format_time
from mizar_core.names import FIELD_MANAGER_OPERATOR
from mizar_core.planning.snapshot import Key
from mizar_kube.client import KubeClient
from mizar_kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound, Unavailable
from mizar_kube.kinds import POD, Object, Ref
from mizar_kube.logs import get_logger
from mizar_operator.live_objects import is_there
from mizar_operator.object_views import condition_of

log = get_logger(__name__)

BUDGET_CAUSE = "DisruptionBudget"
"""The cause in the details of a refusal by a PodDisruptionBudget. Its status, 429, is also that of
an API server with too much to do, which says nothing about budgets."""
TOO_MANY_REQUESTS = 429
"""HTTP status with which the API server refuses an eviction because of a PodDisruptionBudget."""
DENIED = "denied the request"
"""Part of the message of a refusal by an admission webhook, which may choose the status: webhooks
for evictions choose 429 as well."""
INTERNAL_ERROR = 500
"""HTTP status of an internal error of the API server."""
SEVERAL_BUDGETS = "more than one PodDisruptionBudget"
"""Part of the message of the internal error with which the API server refuses to evict a pod that
several PodDisruptionBudgets select."""
BUDGET_RESPECTED_S = 30.0
"""Seconds that a PodDisruptionBudget may hold an eviction off: it protects pods that serve, but a
pod without its card no longer serves, and its replacement waits for it to end."""
FORGOTTEN_S = 3600.0
"""Seconds after which a refused eviction is forgotten."""
DISRUPTION_TARGET = "DisruptionTarget"
"""Kubernetes' condition of a pod that is ended for no fault of its own. A Job's podFailurePolicy
can ignore the failure of such a pod."""
BY_EVICTION = "EvictionByEvictionAPI"
"""The condition's reason that the API server sets when it evicts a pod."""


class Evictor:
    """Evicts pods, and deletes those whose eviction a PodDisruptionBudget or a policy holds off for
    too long, with the condition that an eviction sets. `clock` counts seconds, `now` returns the
    condition's time.

    The time of the first refusal is in memory only: another leader waits from the start.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._clock = clock
        self._now = now
        self._refused: dict[str, float] = {}

    async def evict(
        self,
        pod: Key,
        uid: str,
        patience_s: float = BUDGET_RESPECTED_S,
        grace_s: int | None = None,
    ) -> bool:
        """Evict the pod with this UID; does nothing if it is gone or another pod has its name. A
        PodDisruptionBudget, or a policy, may hold the eviction off for `patience_s` seconds.
        `grace_s`: the seconds that the pod has to shut down; None for its own grace period; for a
        pod that is being deleted already, it can only shorten the period. Returns False while the
        eviction is held off. Raises KubeError."""
        ref = Ref(POD, pod[1], pod[0])
        try:
            return await self._evict(ref, uid, patience_s, grace_s)
        except NotFound as gone:
            log.info("the pod is gone already", error=gone)
        except Conflict as conflict:
            if await is_there(self._client, ref, uid):
                raise
            log.info("another pod has the name now", error=conflict)
        return True

    async def _evict(self, ref: Ref, uid: str, patience_s: float, grace_s: int | None) -> bool:
        try:
            await self._client.evict(ref, uid=uid, grace_seconds=grace_s)
        except (Unavailable, Forbidden, Invalid) as error:
            if not _held_off(error):
                raise
            if self._waited(uid) < patience_s:
                log.info("the eviction is refused by a budget or a policy", error=error)
                return False
            log.warning(
                "the eviction is held off for too long, so the pod is deleted",
                error=error,
            )
            await self._mark(ref, uid, error)
            await self._client.delete(ref, uid=uid, grace_seconds=grace_s)
        self._refused.pop(uid, None)
        return True

    async def _mark(self, ref: Ref, uid: str, refusal: KubeError) -> None:
        """Set the condition that an eviction would have set, unless the pod has it: a node agent's
        says why a spot pod lost its card. If the API server refuses the condition, the pod is
        deleted without it; raises Unavailable if the API server does not answer."""
        body = disruption_target(ref, uid, refusal, self._now())
        try:
            if not has_disruption_target(await self._client.get(ref)):
                await self._client.apply(
                    body, field_manager=FIELD_MANAGER_OPERATOR, subresource="status"
                )
        except (NotFound, Conflict):
            raise
        except KubeError as error:
            if not error.status:
                raise
            log.warning("the condition DisruptionTarget is refused", error=error)

    def _waited(self, uid: str) -> float:
        """Seconds since its eviction was refused for the first time."""
        now = self._clock()
        self._refused = {
            one: since for one, since in self._refused.items() if now - since < FORGOTTEN_S
        }
        return now - self._refused.setdefault(uid, now)


def has_disruption_target(pod: Object) -> bool:
    """Whether the pod's status says that it is ended for no fault of its own."""
    return condition_of(pod.get("status") or {}, DISRUPTION_TARGET).get("status") == "True"


def disruption_target(ref: Ref, uid: str, refusal: KubeError, now: datetime) -> Object:
    """The status to apply to a pod with this UID whose eviction was refused."""
    condition = {
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": BY_EVICTION,
        "message": f"Mizar deletes the pod, whose event says why, since no eviction is allowed: "
        f"{refusal}",
        "lastTransitionTime": format_time(now),
    }
    return {
        "apiVersion": POD.api_version,
        "kind": POD.name,
        # With the UID, the API server refuses to apply this to another pod of the same name.
        "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": uid},
        "status": {"conditions": [condition]},
    }


def _held_off(error: KubeError) -> bool:
    """Whether a PodDisruptionBudget, a policy or a webhook refuses the eviction. In some
    namespaces, a policy lets the operator delete Mizar's pods, but not evict them. Policies refuse
    with status 422 unless they say otherwise."""
    if error.status == INTERNAL_ERROR:
        return SEVERAL_BUDGETS in str(error)
    if error.status == TOO_MANY_REQUESTS:
        return BUDGET_CAUSE in error.causes or DENIED in str(error)
    return isinstance(error, Forbidden | Invalid)
