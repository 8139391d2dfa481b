"""Answers the API server's questions: what becomes of a pod, a template, a quota, a pool."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from mizar_core.models import GPUPool, GPUQuota
from mizar_kube.logs import get_logger
from mizar_operator.webhook.answers import Answer, allowed, refused
from mizar_operator.webhook.capacity import Findings, review_pool, review_quota
from mizar_operator.webhook.judged import PodSpec
from mizar_operator.webhook.knowledge import Knowledge, read_pool
from mizar_operator.webhook.reviewed import pod_spec
from mizar_operator.webhook.rewrite import Decision, review
from mizar_operator.webhook.unquoted import unquoted

Request = dict[str, Any]
"""The request of an AdmissionReview of admission.k8s.io/v1."""


log = get_logger(__name__)


class NotReady(Exception):
    """There is nothing to decide by yet: failurePolicy says what happens to the object."""


class Reviewer:
    """Reviews requests by what `knowledge` says. Raises NotReady, KubeError."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge

    async def mutate(self, request: Request) -> Answer:
        """Translate what a pod or template asks for, or refuse it; refuse a pool with numbers that
        need quotes."""
        if request["resource"]["resource"] == "gpupools":
            sentences = list(unquoted(request["object"]))
            return _refused(request, sentences) if sentences else allowed(request["uid"])
        if not self._knowledge.synced:
            raise NotReady("the copies of pools and quotas are not complete yet")
        pod = pod_spec(request)
        decision = await self._decide(pod) if pod else Decision()
        if decision.refusals:
            return _refused(request, decision.refusals)
        if decision.rewritten:
            log.info("rewritten", rewritten=decision.rewritten)
        else:
            log.info("allowed as it is")
        return allowed(request["uid"], decision.patch, decision.warnings)

    async def _decide(self, pod: PodSpec) -> Decision:
        asked_at = self._knowledge.now()
        decision = review(pod, self._knowledge.pools(pod.namespace))
        if not decision.doubtful:
            return decision
        await self._knowledge.refresh(asked_at)
        return review(pod, self._knowledge.pools(pod.namespace))

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
        log.info("allowed as it is")
        return allowed(request["uid"], warnings=findings.warnings)

    async def _quota(self, request: Request) -> Findings:
        quota = GPUQuota.from_dict(request["object"])
        pools = await self._knowledge.live_pools()
        others = await self._knowledge.live_quotas(request.get("namespace"))
        return review_quota(quota, pools, others)

    async def _pool(self, request: Request) -> Findings:
        pool, old = GPUPool.from_dict(request["object"]), read_pool(request.get("oldObject"))
        pools = await self._knowledge.live_pools()
        quotas = await self._knowledge.live_quotas(None)
        found = review_pool(pool, old, pools, quotas)
        wanted = pool.spec.runtime_class_name
        if wanted is None or await self._knowledge.has_runtime_class(wanted):
            return found
        missing = f"RuntimeClass '{wanted}' doesn't exist yet: no shadow pod runs until it does"
        return replace(found, warnings=(*found.warnings, missing))


def _refused(request: Request, sentences: Collection[str]) -> Answer:
    log.info("refused", message="; ".join(sentences))
    return refused(request["uid"], sentences)
