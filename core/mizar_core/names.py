"""Every name that users and other programs see: resources, labels, annotations, reasons, condition
types. They are parsed and printed here and in `device_ids` only.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Literal

from mizar_core.errors import NameRefused

GROUP: Final = "mizar.share"
VERSION: Final = "v1alpha1"
ApiVersion = Literal["mizar.share/v1alpha1"]
API_VERSION: ApiVersion = "mizar.share/v1alpha1"

PLURALS: Final = {"GPUPool": "gpupools", "GPUQuota": "gpuquotas", "ShadowPod": "shadowpods"}

DEFAULT_PREFIX: Final = "mizar.share"
DEFAULT_POOL: Final = "default"
"""Name of the GPUPool of quotas that name none."""

PHYSICAL_RESOURCE: Final = "nvidia.com/gpu"

DRA_DRIVER: Final = "gpu.nvidia.com"
"""The name of NVIDIA's DRA driver, which allocates cards instead of NVIDIA's device plugin."""

DRA_RESOURCE: Final = f"deviceclass.resource.kubernetes.io/{DRA_DRIVER}"
"""The resource by which pods can request cards of that driver without a ResourceClaim even if its
DeviceClass has no extendedResourceName: Kubernetes gives each class such a name."""

MIG_RESOURCE: Final = "nvidia.com/mig-"
"""Prefix of the resources of MIG devices of strategy mixed; their size follows, such as 1g.5gb."""
WHOLE_CARDS: Final = ("nvidia.com/gpu.shared", MIG_RESOURCE, "nvidia.com/pgpu")
"""Prefixes of the other resources by which NVIDIA's device plugins offer cards."""

SPOT_RESOURCE: Final = "mizar.spot/gpu"
"""The resource that spot pods request: whole cards that are lent while their owners are idle."""

SPOT_SUFFIX: Final = "-spot"
"""Suffix that turns a card's UUID into the ID of its spot device."""

LABEL_SHADOW_POD: Final = "mizar.share/shadow-pod"
LABEL_SHARE_POD: Final = "mizar.share/share-pod"
"""Set to "true" at admission on every pod that requests devices, so that the operator watches only
these and not all pods of the cluster. On a pod that requests none it does nothing."""

MIRROR: Final = "kubernetes.io/config.mirror"
"""Kubernetes' annotation of the object that a kubelet makes for a static pod."""

LABEL_SPOT_POD: Final = "mizar.share/spot-pod"
"""Set to "true" at admission on every pod that requests a spot card, so that operator and node
agents watch only these."""

LABEL_IN_USE: Final = "mizar.share/in-use"
"""Set to "true" on a shadow pod while a container holds one of its devices."""

LABEL_NODE: Final = "mizar.share/node"
"""On a node: its name, as its node agent writes it. Shadow pods exclude nodes by it."""

LABEL_POOL: Final = "mizar.share/pool"
LABEL_QUOTA: Final = "mizar.share/quota"
LABEL_PROFILE: Final = "mizar.share/profile"
LABEL_DEFAULT_QUOTA: Final = "mizar.share/default-quota"
"""On a GPUQuota that the operator created: the name of the pool whose default quota it is."""
LABEL_ANTI_AFFINITY: Final = "mizar.share/apart"
"""Prefix of the labels, completed by `-` and a digest, of shadow pods that must not share a node
because their share pods must not."""

ANNOTATION_CARVE: Final = "mizar.share/carve"
ANNOTATION_DRAIN: Final = "mizar.share/drain"
ANNOTATION_SEQUENCE: Final = "mizar.share/sequence"
ANNOTATION_RESOURCE: Final = "mizar.share/resource"
ANNOTATION_CARDS: Final = "mizar.share/cards"
"""On a container, not a pod: UUIDs of the cards that the runtime component has the runtime give
it."""
ANNOTATION_SAME_CARD: Final = "mizar.share/same-card"
"""On a share pod, "true" demands that all devices of a container be on one card; otherwise it does
not start. "false" accepts several cards, even where the pool's sameCard is true."""

ANNOTATION_WITHOUT_LIMITS: Final = "mizar.share/without-limits"
"""On a share pod: names of its containers, with commas between them, that opt out of the shim. They
run without limits where pool and quota permit it (isolation.mayOptOut)."""

ANNOTATION_LOW_POWER: Final = "mizar.share/low-power"
"""On a pod that holds a card, "true" is its owner's consent to lend the card while the pod is idle,
where the pool lends cards."""

ANNOTATION_MAY_BE_LOST: Final = "mizar.share/may-be-lost"
"""On a spot pod without a controller, "true" accepts that nothing replaces the pod when it loses
its card."""

ANNOTATION_SPOT_NOTICE: Final = "mizar.share/spot-notice"
"""On a spot pod: the seconds of notice, by SIGUSR1, that it requests before it loses its card. The
pool limits them."""

ANNOTATION_SPOT_GRACE: Final = "mizar.share/spot-grace"
"""On a spot pod: the seconds between SIGTERM and SIGKILL that it requests for when it loses its
card; 0 by default. The pool limits them. The pod computes nothing in this time."""

SPOT_GATE: Final = "mizar.share/spot"
"""The scheduling gate that holds a spot pod back until it is its turn to borrow cards."""

SCALE_UP_DELAY: Final = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
"""The annotation by which cluster-autoscaler ignores a waiting pod for a time, such as 8760h
(filterOutYoungPods in its core/static_autoscaler.go)."""

PREEMPTION_GATE: Final = "mizar.share/preemption"
"""The scheduling gate that holds back a share pod which may preempt others, until devices are free
for it or no shadow pod can be created for it."""

HAMI_REGISTER: Final = "hami.io/node-nvidia-register"
HAMI_HANDSHAKE: Final = "hami.io/node-handshake"
"""Annotations that HAMi's device plugin writes on a node: its cards, and when they were last
reported."""
HAMI_POD_NODE: Final = "hami.io/vgpu-node"
HAMI_POD_DEVICES: Final = "hami.io/vgpu-devices-allocated"
"""Annotations of a pod that HAMi's scheduler writes: its node, and its containers' devices."""

FINALIZER_DRAIN: Final = "mizar.share/drain"

ANNOTATIONS_IN_USE: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations that keep autoscalers from removing a pod, and so its node."""

BUDGET_NAME: Final = "mizar-shadow-pods-in-use"
"""Name of the PodDisruptionBudget of a namespace's shadow pods in use."""

NODE_LABEL_CARD_MODEL: Final = "nvidia.com/gpu.product"
NODE_LABEL_CARD_MEMORY: Final = "nvidia.com/gpu.memory"

FIELD_MANAGER_OPERATOR: Final = "mizar-operator"
FIELD_MANAGER_SPOT: Final = "mizar-operator-spot"
"""Field manager of the parts of statuses about lending, which the operator plans separately."""

FIELD_MANAGER_NODEAGENT: Final = "mizar-nodeagent"

MAIN_CONTAINER: Final = "main"
"""Container name in the annotations of `container_devices_ids` and `container_devices_from`: the
kubelet's Allocate call does not give the container's name, so the runtime component expects this
one."""

LABEL_MAX: Final = 63
"""The most characters of a DNS label, and of a Kubernetes label's value."""

PREFIX_MAX: Final = 253 - len("requests.") - LABEL_MAX - len(".")
"""The most characters of a resource prefix: with a namespace before it, Kubernetes must still
accept `requests.{namespace}.{prefix}` as a DNS name of at most 253 characters."""


FOREIGN_DOMAINS: Final = (
    "aliyun.com",
    "amazonaws.com",
    "amd.com",
    "aws.amazon.com",
    "cambricon.com",
    "enflame.com",
    "furiosa.ai",
    "google.com",
    "habana.ai",
    "huawei.com",
    "hygon.com",
    "iluvatar.ai",
    "intel.com",
    "kubevirt.io",
    "metax-tech.com",
    "mizar.spot",
    "mthreads.com",
    "nvidia.com",
    "qualcomm.com",
    "rebellions.ai",
    "tencent.com",
    "volcano.sh",
    "xilinx.com",
)
"""Domains of the resources of other device plugins, and of Mizar's own spot pods: a pool's resource
prefix must not be in any of them."""


class EventReason(StrEnum):
    """Reasons of the events that Mizar posts."""

    SHADOW_CREATED = "ShadowCreated"
    SHADOW_READY = "ShadowReady"
    SHADOW_UNSCHEDULABLE = "ShadowUnschedulable"
    SHADOW_LOST = "ShadowLost"
    SHADOW_DRAINING = "ShadowDraining"
    SHADOW_REAPED = "ShadowReaped"
    QUOTA_EXCEEDED = "QuotaExceeded"
    NO_POOL = "NoPool"
    NO_QUOTA = "NoQuota"
    NO_CARD_FREE = "NoCardFree"
    NO_NODE_FITS = "NoNodeFits"
    SHADOW_REFUSED = "ShadowRefused"
    UNKNOWN_PROFILE = "UnknownProfile"
    WAITING_FOR_SHADOW = "WaitingForShadow"
    TOO_MANY_DEVICES = "TooManyDevices"
    NOT_ADMITTED = "NotAdmitted"
    SEVERAL_CARDS = "SeveralCards"
    DEVICE_GIVEN_TWICE = "DeviceGivenTwice"
    NODE_AGENT_SILENT = "NodeAgentSilent"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    DEVICE_HEALTHY = "DeviceHealthy"
    DEVICE_GRANTED = "DeviceGranted"
    LIMITS_CHANGED = "LimitsChanged"
    CARD_LOST = "CardLost"
    CARD_RENUMBERED = "CardRenumbered"
    SHARE_EVICTED = "ShareEvicted"
    ISOLATION_NOT_ENFORCED = "IsolationNotEnforced"
    OPT_OUT_REFUSED = "OptOutRefused"
    NO_CARD_ACCESS = "NoCardAccess"
    STARTED_WITHOUT_DEVICE = "StartedWithoutDevice"
    PLANNING_FAILED = "PlanningFailed"
    SPOT_WAITING = "SpotWaiting"
    SPOT_GRANTED = "SpotGranted"
    SPOT_EVICTED = "SpotEvicted"
    OWNER_ASLEEP = "OwnerAsleep"
    OWNER_WOKE = "OwnerWoke"


class SpotEvictionReason(StrEnum):
    """Why a spot pod loses its card: the label `reason` of `mizar_spot_evictions_total`, and the
    reason of the pod's condition DisruptionTarget."""

    OWNER_BACK = "OwnerBack"
    """An owner of the card that declared itself low-power works again."""
    OWNER_ALIVE = "OwnerAlive"
    """A pod that never agreed to lend holds the card now."""
    OWNER_GONE = "OwnerGone"
    """No pod holds the card any more: the scheduler may give it to any pod."""
    DEVICE_LOST = "DeviceLost"
    """The card has failed or is gone from the node."""
    QUOTA_RECLAIM = "QuotaReclaim"
    """The namespace has more spot cards than its quota permits now."""
    DRAIN = "Drain"
    """The pool lends no cards any more."""


class CreationReason(StrEnum):
    """Why a shadow pod is created: the label `reason` of `mizar_shadow_pods_created_total`."""

    DEMAND = "Demand"
    """A share pod waits for devices."""
    WARM = "Warm"
    """Its quota keeps a minimum of shadow pods warm."""


class ReapReason(StrEnum):
    """Why an unused shadow pod is deleted: the label `reason` of
    `mizar_shadow_pods_reaped_total`."""

    IDLE = "Idle"
    """It was idle for its timeout."""
    OVER_QUOTA = "OverQuota"
    """Its quota allows fewer now."""
    PREEMPTED = "Preempted"
    """Another pod waits for its cards."""
    REPLACED = "Replaced"
    """A share pod of its quota waits for another one."""
    UNNEEDED = "Unneeded"
    """It never got a card, and no share pod waits for it any more."""
    AGENT_SILENT = "AgentSilent"
    """Its node's agent never offered its devices."""
    UNWANTED = "Unwanted"
    """Its quota, its pool or its shape is gone, or its cards have failed."""
    OTHER = "Other"
    """It was deleted by another client, or by an operator that ended before it counted the
    deletion."""


class LossReason(StrEnum):
    """How a shadow pod lost its cards: the label `reason` of `mizar_shadow_pods_lost_total`."""

    NODE_GONE = "NodeGone"
    POD_DELETED = "PodDeleted"
    """Its pod was deleted or evicted."""
    CARD_LOST = "CardLost"
    """The node agent reports that one of its cards is gone or is held by another pod."""
    POD_ENDED = "PodEnded"


class ConditionType(StrEnum):
    """Types of the conditions in the status of Mizar's own kinds."""

    READY = "Ready"
    SCHEDULED = "Scheduled"
    POD_IN_USING = "PodInUsing"
    HEALTHY = "Healthy"
    DRAINING = "Draining"
    SATISFIED = "Satisfied"
    EXHAUSTED = "Exhausted"
    LENDING = "Lending"


POD_CONDITION_CARD_ACCESS: Final = "mizar.share/card-access"
"""The condition of a node agent's pod that says how containers on its node get their cards; False
while none can get any."""
POD_CONDITION_SETTINGS: Final = "mizar.share/node-settings"
"""The condition of a node agent's pod that says whether overrides apply on its node; False while
they cannot be used."""
POD_CONDITION_ISOLATION: Final = "mizar.share/isolation-enforced"
"""The condition of a share pod: False while a process of it uses a card past its limits."""

POD_CONDITION_ACTIVE: Final = "mizar.share/active"
"""The condition of a low-power owner's pod: False while its card may be lent or is lent."""
POD_CONDITION_BORROWS: Final = "mizar.share/borrows"
"""The condition of a spot pod whose message says which cards it has and whose they are."""


Form = Literal["slashed", "dotted"]

DNS_SUBDOMAIN: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""Regular expression of the names of most kinds of objects, but for their length."""

_NAME_PART = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
EXTENDED_RESOURCE: Final = f"{DNS_SUBDOMAIN}/{_NAME_PART}"
"""Regular expression of the names of device plugins' resources, such as nvidia.com/gpu."""

QUALIFIED_NAME: Final = f"({DNS_SUBDOMAIN}/)?{_NAME_PART}"
"""Regular expression of the keys of labels and taints that Kubernetes accepts."""

LABEL_VALUE: Final = "([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
"""Regular expression of the values of labels and taints that Kubernetes accepts."""

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"
_PROFILE = r"[1-9][0-9]{0,3}"
_RESOURCE_PART = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

_IS_LABEL = re.compile(_LABEL)
_IS_SUBDOMAIN = re.compile(_SUBDOMAIN)
_RESOURCE = re.compile(rf"(?P<prefix>{_SUBDOMAIN})(?P<separator>[/.])gpu\.(?P<profile>{_PROFILE})")


@dataclass(frozen=True, slots=True)
class ParsedResource:
    """`mizar.share/gpu.2` taken apart: prefix `mizar.share`, profile 2, form `slashed`.

    The prefix of a tenant's resource includes the namespace: see `tenant_of`.
    """

    prefix: str
    profile: int
    form: Form


def is_foreign(prefix: str) -> bool:
    """Whether a resource prefix lies in the domain of another device plugin."""
    return any(prefix == one or prefix.endswith(f".{one}") for one in FOREIGN_DOMAINS)


def is_dns_label(text: str) -> bool:
    """Whether Kubernetes accepts `text` as the name of a namespace."""
    return _IS_LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """Whether Kubernetes accepts `text` as the name of most kinds of objects."""
    return len(text) <= 253 and _IS_SUBDOMAIN.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """Whether Kubernetes accepts `text` as the key of a label or a taint."""
    return re.fullmatch(QUALIFIED_NAME, text) is not None


def is_label_value(text: str) -> bool:
    """Whether Kubernetes accepts `text` as the value of a label or a taint."""
    return re.fullmatch(LABEL_VALUE, text) is not None


def resource_name(prefix: str, profile: int) -> str:
    """The extended resource of a profile: `mizar.share/gpu.2`."""
    return f"{prefix}/gpu.{profile}"


def tenant_resource_name(namespace: str, prefix: str, profile: int) -> str:
    """The resource of a profile for one namespace alone: `team-a.mizar.share/gpu.2`.

    Raises NameRefused for a namespace whose resource Kubernetes would not accept.
    """
    if problem := tenant_problem(namespace):
        raise NameRefused(problem)
    return resource_name(f"{namespace}.{prefix}", profile)


def tenant_problem(namespace: str) -> str | None:
    """Why the namespace cannot be a tenant of a PerNamespace pool; None if it can."""
    if not is_dns_label(namespace):
        return f"'{namespace}' is not a valid namespace name"
    if namespace == "requests":
        # Kubernetes reads requests.* as the keys of a ResourceQuota, never as a resource.
        return "the namespace 'requests' cannot have shared GPUs: use another name"
    return None


@lru_cache(maxsize=1024)
def parse_resource(name: str) -> ParsedResource | None:
    """The parts of a profile's resource name, in either form; None for any other name."""
    match = _RESOURCE.fullmatch(name)
    if match is None:
        return None
    form: Form = "slashed" if match["separator"] == "/" else "dotted"
    return ParsedResource(match["prefix"], int(match["profile"]), form)


def alias_problem(alias: str) -> str | None:
    """Why a profile cannot have this name as its alias; None if it can."""
    domain, slash, name = alias.partition("/")
    if not (slash and is_dns_subdomain(domain) and re.fullmatch(_RESOURCE_PART, name)):
        return "is not an extended resource such as nvidia.com/vgpu"
    if "kubernetes.io" in domain or domain.startswith("requests."):
        return "belongs to Kubernetes"
    if alias == PHYSICAL_RESOURCE or alias.startswith(WHOLE_CARDS):
        return "is NVIDIA's own name for whole cards or their instances"
    if parse_resource(alias) or domain == SPOT_RESOURCE.partition("/")[0]:
        return "is a name that Mizar uses for other resources"
    return None


def is_mig(physical: str) -> bool:
    """Whether this resource stands for MIG devices of one size, such as nvidia.com/mig-1g.5gb."""
    return physical.startswith(MIG_RESOURCE)


def may_be_of_dra_driver(physical: str) -> bool:
    """Whether pods can get what this resource stands for from NVIDIA's DRA driver: whole cards, or
    MIG devices of one size."""
    return physical == PHYSICAL_RESOURCE or is_mig(physical)


def card_model_label(physical: str) -> str:
    """The key of the node label with the model of the cards that are offered as this resource. GPU
    feature discovery labels each size of MIG devices separately; for all other resources, the label
    of whole cards applies."""
    return f"{physical}.product" if is_mig(physical) else NODE_LABEL_CARD_MODEL


def card_memory_label(physical: str) -> str:
    """The key of the node label with the memory, in MiB, of a card that is offered as this
    resource."""
    return f"{physical}.memory" if is_mig(physical) else NODE_LABEL_CARD_MEMORY


def is_mizars(resource: str) -> bool:
    """Whether Mizar's own device plugins offer a resource of this name."""
    return resource == SPOT_RESOURCE or parse_resource(resource) is not None


def tenant_of(parsed_prefix: str, pool_prefix: str) -> str | None:
    """The namespace in `{namespace}.{pool_prefix}`; None if there is none."""
    namespace, dot, rest = parsed_prefix.partition(".")
    return namespace if dot and rest == pool_prefix and is_dns_label(namespace) else None


def shadow_name(quota_uid: str, profile: int, sequence: int) -> str:
    """The name of a quota and profile's shadow pod number `sequence`; the same input always gives
    the same name."""
    digest = hashlib.sha256(f"{quota_uid}/{profile}/{sequence}".encode()).digest()
    return f"shadow-{profile}-{base64.b32encode(digest).decode().lower()[:5]}"


def spot_device_id(uuid: str) -> str:
    """The ID of a card's spot device: `GPU-…-spot`."""
    return f"{uuid}{SPOT_SUFFIX}"


def card_of_spot_device(device: str) -> str | None:
    """The card's UUID in the ID of a spot device; None for any other ID."""
    uuid = device.removesuffix(SPOT_SUFFIX)
    return uuid if uuid and uuid != device else None


def container_devices_ids(container: str = MAIN_CONTAINER) -> str:
    """The key of the annotation that names the cards of a spot container, by physical resource:
    `{"nvidia.com/gpu":["GPU-…"]}`."""
    return f"mizar.k8s.io/container-devices-ids.{container}"


def container_devices_from(container: str = MAIN_CONTAINER) -> str:
    """The key of the annotation that says from which shadow pod a container's devices come."""
    return f"mizar.k8s.io/container-devices-from.{container}"


def gives_way(namespace: str, pod: str) -> str:
    """The words by which a node agent's refusal to start a container names the pod that has to be
    replaced, since the kubelet gave one of its devices to another container as well. The operator
    looks for them in the pod's status."""
    return f"pod {namespace}/{pod} gives way"


def starts_after(namespace: str, pod: str) -> str:
    """The words by which such a refusal names the pod that keeps the device."""
    return f"and {namespace}/{pod} starts after that"


def who_starts_after(refusal: str) -> tuple[str, str] | None:
    """The pod (namespace, name) that the refusal says keeps the device; None if it names none."""
    found = re.search(r"and ([^\s/]+)/([^\s/]+) starts after that", refusal)
    return (found[1], found[2]) if found else None
