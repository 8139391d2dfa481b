"""Answers AdmissionReviews: translates the resources of pods and templates (mutating), and checks
quotas and pools (validating)."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable
from functools import partial
from itertools import islice
from typing import Any

from mizar_core.models import GPUPool, GPUQuota, Isolation, IsolationOverride
from mizar_kube.kinds import PRIORITY_CLASS, RUNTIME_CLASS, Kind, Object
from mizar_kube.logs import get_logger
from mizar_kube.store import key_of
from mizar_operator.webhook.cache import Cache, pool_or_none
from mizar_operator.webhook.pod_patch import Patch
from mizar_operator.webhook.pod_review import Decision, review
from mizar_operator.webhook.pod_specs import PodSpec, pod_spec
from mizar_operator.webhook.quota_review import (
    Findings,
    review_pool,
    review_quota,
    unchecked,
    unquoted_numbers,
)
from mizar_operator.webhook.spot_review import (
    LENDS_NOTHING,
    SpotSettings,
    asks_for_spot,
    review_spot,
)

Request = dict[str, Any]
"""The request of an AdmissionReview of admission.k8s.io/v1."""


log = get_logger(__name__)

SPOT_IS_OFF = (
    "spec.spot.enabled has no effect: Mizar was installed with spot.enabled: false. Set it to true"
    " in the chart's values to lend cards"
)
"""A warning about a pool that lends cards where the installation lends none."""
STRICT_NEEDS_KILL = (
    "isolation.enforcement Strict kills only processes that run as root: this Mizar was installed"
    " without nodeagent.mayKill, so its node agents may not kill others until that chart value is"
    " true"
)
"""A warning about an isolation that the node agents cannot enforce."""


Answer = dict[str, Any]
"""The AdmissionReview that the API server gets."""


class NotReady(Exception):
    """The cache is not filled yet: the webhook's failurePolicy decides about the object."""


class Reviewer:
    """Reviews requests by the pools and quotas in `cache`. `names`: the aliases that pools may give
    to profiles. `gates`: whether share pods that may preempt others get a scheduling gate.
    `scale_up_delay`: for how long autoscalers ignore share pods; empty for no delay.
    `strict_kills_root_only`: the node agents may not kill processes of other users. Raises
    KubeError if the API server does not answer a live read, and ValidationError for a pool or quota
    to be validated that does not fit its model."""

    def __init__(
        self,
        cache: Cache,
        spot: SpotSettings = LENDS_NOTHING,
        names: Collection[str] = (),
        *,
        gates: bool = False,
        scale_up_delay: str = "",
        strict_kills_root_only: bool = False,
    ) -> None:
        self._cache = cache
        self._spot = spot
        self._names = names
        self._warns_of_strict = strict_kills_root_only
        self._review_pod = partial(review, gates=gates, scale_up_delay=scale_up_delay)

    async def mutate(self, request: Request) -> Answer:
        """Translate the resources that a pod or template requests, or refuse it; refuse a pool
        with numbers that need quotes. Raises NotReady while the cache is not filled."""
        if request["resource"]["resource"] == "gpupools":
            sentences = list(unquoted_numbers(request["object"]))
            return _refused(request, sentences) if sentences else allowed(request["uid"])
        if not self._cache.synced:
            raise NotReady("the copies of pools and quotas are not complete yet")
        pod = pod_spec(request)
        if pod and pod.entries > ENTRIES_MAX:
            return _refused(request, [_too_many(pod)])
        decision = await self._decide(pod) if pod else Decision()
        if decision.refusals:
            return _refused(request, decision.refusals)
        if decision.rewritten:
            log.info("resource names rewritten", rewritten=decision.rewritten)
        elif decision.patch:
            log.info("allowed with a label or gate")
        else:
            log.info("allowed unchanged")
        return allowed(request["uid"], decision.patch, _first(decision.warnings))

    async def _decide(self, pod: PodSpec) -> Decision:
        asked_at = self._cache.now()
        decision = self._review(pod)
        if not decision.doubtful:
            return decision
        await self._cache.refresh(asked_at)
        return self._review(pod)

    def _review(self, pod: PodSpec) -> Decision:
        if asks_for_spot(pod):
            borrower = self._cache.borrower(pod.namespace, self._names)
            return review_spot(pod, borrower, self._spot)
        return self._review_pod(pod, self._cache.pools(pod.namespace, self._names))

    async def validate(self, request: Request) -> Answer:
        """Check a quota against its pool, a pool against its quotas."""
        resource = request["resource"]["resource"]
        if resource == "gpuquotas":
            findings = await self._quota(request)
        elif resource == "gpupools":
            findings = await self._pool(request)
        else:
            findings = Findings()
        if findings.problems:
            return _refused(request, findings.problems)
        log.info("allowed unchanged")
        return allowed(request["uid"], warnings=findings.warnings)

    async def _quota(self, request: Request) -> Findings:
        quota = GPUQuota.from_dict(request["object"])
        pools = await self._cache.read_pools()
        others = await self._cache.read_quotas(request.get("namespace"))
        # The unreadable quota may be this one in its earlier state.
        unreadable = set(others.unreadable) - {key_of(request["object"])}
        found = review_quota(quota, pools, others.quotas)
        return found.warn(*self._strict(quota.spec.isolation), *unchecked(unreadable))

    async def _pool(self, request: Request) -> Findings:
        pool, old = GPUPool.from_dict(request["object"]), pool_or_none(request.get("oldObject"))
        pools = await self._cache.read_pools()
        read = await self._cache.read_quotas(None)
        found = review_pool(pool, old, pools, read.quotas, self._names)
        if pool.spec.spot.enabled and not self._spot.enabled:
            found = found.warn(SPOT_IS_OFF)
        default = pool.spec.default_quota
        of_default = default.isolation if default else None
        found = found.warn(*self._strict(pool.spec.isolation, of_default))
        return found.warn(*await self._wrong_classes(pool), *unchecked(read.unreadable))

    def _strict(self, *isolations: Isolation | IsolationOverride | None) -> list[str]:
        """A warning if one of these is stricter than the node agents can be."""
        strict = any(one is not None and one.enforcement == "Strict" for one in isolations)
        return [STRICT_NEEDS_KILL] if strict and self._warns_of_strict else []

    async def _wrong_classes(self, pool: GPUPool) -> list[str]:
        """A sentence for each class that the pool's shadow pods name and that does not exist, so
        that the API server refuses such pods, or by which they preempt others."""
        named = (
            (RUNTIME_CLASS, pool.spec.runtime_class_name),
            (PRIORITY_CLASS, pool.spec.priority_class_name),
        )
        found = [
            (kind, name, await self._cache.find(kind, name))
            for kind, name in named
            if name is not None
        ]
        return [text for one in found if (text := _wrong_class(*one))]


def _wrong_class(kind: Kind, name: str, found: Object | None) -> str | None:
    """A sentence about a class that shadow pods name; None if it is right."""
    if found is None:
        return f"{kind.name} '{name}' doesn't exist yet: no shadow pod runs until it does"
    if kind == PRIORITY_CLASS and found.get("preemptionPolicy") != "Never":
        return (
            f"PriorityClass '{name}' lets shadow pods evict running pods of lower priority, even to"
            " keep a quota's min warm: name one whose preemptionPolicy is Never"
        )
    return None


ENTRIES_MAX = 2000
"""The most entries of limits and requests that are reviewed. One review holds up all others, and an
object of 3 MiB, which API servers take from any user, can have 100,000 entries."""


def _too_many(pod: PodSpec) -> str:
    before = ", together with those before the update" if pod.old else ""
    return (
        f"it has {pod.entries} limits and requests in its containers{before}, and Mizar reviews at"
        f" most {ENTRIES_MAX}: use several pods"
    )


SENTENCES = 20
"""The most sentences in a refusal or a warning: a pod may have thousands of containers."""


def _refused(request: Request, sentences: Collection[str]) -> Answer:
    said = _first(sentences)
    log.info("refused", message="; ".join(said))
    return refused(request["uid"], said)


def _first(sentences: Collection[str]) -> list[str]:
    more = len(sentences) - SENTENCES
    return [*islice(sentences, SENTENCES), *([f"and {more} more"] if more > 0 else [])]


def allowed(uid: str, patch: Patch | None = None, warnings: Iterable[str] = ()) -> Answer:
    """The answer that lets the object pass, with the JSON patch if it is not empty."""
    response: Answer = {"uid": uid, "allowed": True}
    if told := list(warnings):
        response["warnings"] = told
    if patch:
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    return _review(response)


def refused(uid: str, sentences: Iterable[str]) -> Answer:
    """The answer that refuses the object; its user sees the sentences."""
    status = {"code": 422, "reason": "Invalid", "message": "; ".join(sentences)}
    return _review({"uid": uid, "allowed": False, "status": status})


def _review(response: Answer) -> Answer:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response,
    }
