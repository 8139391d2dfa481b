"""Objects of resource.k8s.io/v1 as NVIDIA's DRA driver and the scheduler write them."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def device(number: int, *effects: str, kind: str = "gpu", **more: Any) -> Object:
    """A card, with a taint of each of the effects."""
    product = more.get("product", "NVIDIA A100-SXM4-40GB")
    made: Object = {
        "name": f"gpu-{number}",
        "attributes": {
            "type": {"string": kind},
            "uuid": {"string": f"GPU-{number}"},
            "productName": {"string": product},
            "driverVersion": {"version": "580.65.6"},
        },
        "capacity": {"memory": {"value": more.get("memory", "40Gi")}},
    }
    if "profile" in more:
        made["attributes"]["profile"] = {"string": more["profile"]}
    if effects:
        made["taints"] = [{"key": "gpu.nvidia.com/xid", "effect": one} for one in effects]
    return made


def resource_slice(
    node: str = "n1", *devices: Object, version: int = 1, generation: int = 1, name: str = ""
) -> Object:
    """A slice of a node, whose pool has the node's name."""
    name = name or f"{node}-slice"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def device_class(
    resource: str | None = "nvidia.com/gpu", version: int = 1, name: str = "gpu.nvidia.com"
) -> Object:
    """The class of whole cards, by the resource by which pods request them."""
    made: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
    }
    if resource is not None:
        made["spec"]["extendedResourceName"] = resource
    return made


def resource_claim(name: str, namespace: str, *devices: str, **result: Any) -> Object:
    """A claim with devices of the pool n1, or without any yet."""
    results = [
        {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": one, **result}
        for one in devices
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}} if devices else {},
    }
