"""The kinds of objects that Mizar handles, and references to single objects."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mizar_core import names

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind as the API server serves it: `Kind("apps", "v1", "deployments", "Deployment")`."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The apiVersion of objects of this kind."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """URL path of the collection, or of one object; a namespace of None means all of them."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        scope = ["namespaces", quote(namespace)] if self.namespaced and namespace else []
        parts = [root, *scope, self.plural, quote(name), subresource]
        return "/".join(part for part in parts if part)


@dataclass(frozen=True)
class Ref:
    """The name of one object. `namespace` is None for kinds of the whole cluster."""

    kind: Kind
    name: str
    namespace: str | None = None

    @property
    def path(self) -> str:
        """URL path of the object."""
        return self.kind.path(self.namespace, self.name)

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind.plural} {where}{self.name}"


POD = Kind("", "v1", "pods", "Pod")
NODE = Kind("", "v1", "nodes", "Node", namespaced=False)
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
SECRET = Kind("", "v1", "secrets", "Secret")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
EVENT = Kind("events.k8s.io", "v1", "events", "Event")
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
VOLUME_CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PERSISTENT_VOLUME = Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
RUNTIME_CLASS = Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
PRIORITY_CLASS = Kind(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
)
RESOURCE_SLICE = Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
DEVICE_CLASS = Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
RESOURCE_CLAIM = Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
MUTATING_WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
GPU_POOL = Kind(names.GROUP, names.VERSION, "gpupools", "GPUPool", namespaced=False)
GPU_QUOTA = Kind(names.GROUP, names.VERSION, "gpuquotas", "GPUQuota")
SHADOW_POD = Kind(names.GROUP, names.VERSION, "shadowpods", "ShadowPod")

KINDS: dict[tuple[str, str], Kind] = {
    (kind.api_version, kind.name): kind
    for kind in (
        POD,
        NODE,
        NAMESPACE,
        SECRET,
        CONFIG_MAP,
        EVENT,
        DEPLOYMENT,
        VOLUME_CLAIM,
        PERSISTENT_VOLUME,
        BUDGET,
        LEASE,
        RUNTIME_CLASS,
        PRIORITY_CLASS,
        RESOURCE_SLICE,
        DEVICE_CLASS,
        RESOURCE_CLAIM,
        MUTATING_WEBHOOKS,
        VALIDATING_WEBHOOKS,
        GPU_POOL,
        GPU_QUOTA,
        SHADOW_POD,
    )
}


def kind_of(obj: Object) -> Kind:
    """The kind of an object, by its apiVersion and kind. Raises LookupError if KINDS lacks it."""
    key = (str(obj.get("apiVersion", "")), str(obj.get("kind", "")))
    if key not in KINDS:
        raise LookupError(f"kind {key[1]!r} of {key[0]!r} is not listed in mizar_kube.kinds")
    return KINDS[key]


def ref_of(obj: Object) -> Ref:
    """The name of an object that carries apiVersion, kind and metadata."""
    meta = obj["metadata"]
    return Ref(kind_of(obj), str(meta["name"]), meta.get("namespace") or None)
