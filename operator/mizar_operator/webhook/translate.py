"""What a resource name becomes, or why it can't be had. Pure."""

from dataclasses import dataclass

from mizar_core.models import GPUPool
from mizar_core.names import (
    ParsedResource,
    resource_name,
    tenant_problem,
    tenant_resource_name,
)
from mizar_operator.webhook.pools import Match, Pools, is_ours, offered


@dataclass(frozen=True)
class Verdict:
    """What to do with a resource's name. At most one of the sentences is set."""

    target: str
    """The name to ask for instead; the name itself when it stays."""

    refusal: str = ""
    """Why nobody in this namespace can ever have it, and what to ask for."""

    doubt: str = ""
    """Why nobody can have it as the pools are now."""

    pool: str = ""
    """The pool that the name belongs to; empty when no pool is known to offer it."""

    whole_card: str = ""
    """The resource of that pool's whole cards."""

    @property
    def is_ours(self) -> bool:
        """Whether the name has anything to do with Mizar."""
        return bool(self.pool or self.doubt)


def translate(key: str, parsed: ParsedResource, pools: Pools, template: bool) -> Verdict:
    """The name that a pod asks for when its user wrote `key`.

    In a `template` only the spelling changes: the tenant's name is put in when the pod is made.
    """
    match = pools.match(parsed.prefix, parsed.profile)
    if match is None:
        return _without_pool(key, parsed)
    name, whole = match.pool.metadata.name, match.pool.spec.physical_resource
    if refusal := _refusal(parsed, match, pools.namespace):
        return Verdict(key, refusal=refusal, pool=name, whole_card=whole)
    target = _target(parsed, match.pool, pools.namespace, template)
    return Verdict(target, doubt=_doubt(parsed, match.pool), pool=name, whole_card=whole)


def _without_pool(key: str, parsed: ParsedResource) -> Verdict:
    if not is_ours(parsed.prefix):
        return Verdict(key)
    slashed = resource_name(parsed.prefix, parsed.profile)
    return Verdict(slashed, doubt=f"no GPUPool offers {slashed}: create one, then the pod again")


def _refusal(parsed: ParsedResource, match: Match, namespace: str) -> str:
    plain = resource_name(match.pool.spec.resource_prefix, parsed.profile)
    if match.pool.spec.tenancy == "Shared":
        shared = f"pool '{match.pool.metadata.name}' is the same for all namespaces"
        return f"{shared}: ask for {plain}" if match.tenant else ""
    if match.tenant not in (None, namespace):
        return (
            f"it belongs to namespace '{match.tenant}':"
            f" ask for {plain}, which gives you devices of your own namespace"
        )
    return tenant_problem(namespace) or ""


def _doubt(parsed: ParsedResource, pool: GPUPool) -> str:
    if pool.spec.profile(parsed.profile):
        return ""
    missing = f"pool '{pool.metadata.name}' has no profile of {parsed.profile} devices"
    return f"{missing}: ask for one of {offered(pool)}"


def _target(parsed: ParsedResource, pool: GPUPool, namespace: str, template: bool) -> str:
    if template or pool.spec.tenancy == "Shared":
        return resource_name(parsed.prefix, parsed.profile)
    return tenant_resource_name(namespace, pool.spec.resource_prefix, parsed.profile)
