"""Share pods that reach past their share, and such as only look like it."""

from typing import Any

from support.objects import Object, of_each_kind, share_pod

CUDA = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
STORAGE = {"name": "NVIDIA_GDS", "value": "enabled"}
FIELD = {"fieldRef": {"fieldPath": "metadata.name"}}
SECRET = {
    "name": "NVIDIA_VISIBLE_DEVICES",
    "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}},
}
KEYS = {"configMapRef": {"name": "a"}}


def capabilities(value: str) -> Object:
    return {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": value}


def mount(path: str) -> Object:
    return {"main": {"volumeMounts": [{"name": "v", "mountPath": path}]}}


def host(path: str) -> Object:
    return {"spec": {"volumes": [{"name": "v", "hostPath": {"path": path}}]}}


def context(**fields: Any) -> Object:
    return {"securityContext": fields}


VISIBLE = "sets NVIDIA_VISIBLE_DEVICES or a similar variable, which can expose cards beyond"
MOUNTED = "container main mounts a volume over /etc/ld.so.preload, /run/mizar,"
HOST = "where the node keeps limits, devices or containers"
PRIVILEGED = "is privileged or has one of the capabilities SYS_ADMIN"

# What differs from a plain share pod: of its container, of one beside it, of its spec and metadata.
ESCAPES: dict[str, tuple[Object, str]] = {
    "all cards": ({"main": {"env": [CUDA]}}, f"container main {VISIBLE}"),
    "no card for a share": ({"main": {"env": [VOID]}}, VISIBLE),
    "cards by a secret": ({"main": {"env": [SECRET]}}, VISIBLE),
    "cards by a prefix": ({"main": {"envFrom": [{**KEYS, "prefix": "NVIDIA_"}]}}, VISIBLE),
    "cards by half a prefix": ({"main": {"envFrom": [{**KEYS, "prefix": "NV"}]}}, VISIBLE),
    "all cards beside": ({"beside": {"env": [CUDA]}}, f"container beside {VISIBLE}"),
    "all cards before": ({"before": {"env": [CUDA]}}, f"container before {VISIBLE}"),
    "a secret beside": ({"beside": {"env": [SECRET]}}, VISIBLE),
    "CDI": ({"metadata": {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}}, "cdi.k8s.io/"),
    **{
        f"more of the driver: {one}": (
            {"main": {"env": [capabilities(one)]}},
            "main sets NVIDIA_DRIVER_...",
        )
        for one in ("all", "compute,utility,video", "compute,", "")
    },
    "more of the driver, from elsewhere": (
        {"main": {"env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "valueFrom": FIELD}]}},
        "main sets NVIDIA_DRIVER_...",
    ),
    "another requirement on the driver": (
        {"main": {"env": [{"name": "NVIDIA_DRIVER_ROOT", "value": "compute"}]}},
        "main sets NVIDIA_DRIVER_...",
    ),
    **{
        f"more devices by {name}": (
            {"main": {"env": [{"name": name, "value": value}]}},
            "a variable such as NVIDIA_GDS",
        )
        for name, value in (("NVIDIA_NVSWITCH", "enabled"), ("NVIDIA_IMEX_CHANNELS", "0"))
    },
    **{
        f"the neighbours' memory by {name}": (
            {"main": {"env": [{"name": name, "value": "81920"}]}},
            "NVIDIA_GPU_MEMORY_..., which can reserve memory",
        )
        for name in ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT")
    },
    "storage past the node": ({"main": {"env": [STORAGE]}}, "a variable such as NVIDIA_GDS"),
    **{
        f"mount {path}": (mount(path), MOUNTED)
        for path in (
            "/etc/ld.so.preload",
            "/etc//./ld.so.preload/",
            "etc/ld.so.preload",
            "/tmp/../etc/ld.so.preload",
            "/etc",
            "/",
            "/run",
            "/run/mizar",
            "/var/run",
            "/var/run/mizar/limits",
            "/var/run/nvidia-container-devices/all",
        )
    },
    **{
        f"cards by a mount {where}: {path}": (
            {where: {"volumeMounts": [{"name": "v", "mountPath": path}]}, **host("/dev/null")},
            f"container {where} mounts a volume over",
        )
        for where, path in (
            ("beside", "/var/run/nvidia-container-devices/all"),
            ("before", "/run//nvidia-container-devices/cdi/nvidia.com/gpu/all"),
            ("beside", "/var/run/x/../nvidia-container-devices/all"),
        )
    },
    **{
        f"host {path}": (host(path), f"a share pod may not have hostPath {path}, {HOST}")
        for path in (
            "/",
            "/var",
            "/var/lib/mizar",
            "/var/lib/mizar/slots",
            "/var/lib/kubelet/device-plugins",
            "/etc",
            "/etc/cdi",
            "/var/run/cdi",
            "/run/containerd/containerd.sock",
            "//var//lib/./kubelet/",
            "/proc",
            "/proc/",
            "/proc/1/root",
            "/proc/1/root/var/lib/mizar",
            "/./proc//self/root/var/lib/mizar/slots",
            "proc/thread-self/root",
            "/dev",
            "/dev/fd",
            "/dev//fd/7",
            "/dev/stdin",
            "/dev/core",
            "/run/k3s/containerd",
            "/var/run/k3s/containerd/containerd.sock",
            "//var/./run",
            "/var//run/k3s",
            "/run/docker.sock",
            "/run/systemd/private",
            "/var/lib/rancher/k3s/agent/containerd",
            "/var/snap/microk8s/common/run",
            "/etc/kubernetes/manifests",
            "/opt/nri/plugins",
            "/sys",
            "/sys/fs/cgroup",
            "/sys/bus/pci/devices",
            "/sysroot/ostree/deploy/rhcos/var/lib/mizar",
            "/mnt/stateful_partition/var/lib/mizar",
        )
    },
    "hostPID": ({"spec": {"hostPID": True}}, "a share pod may not have hostPID"),
    "privileged": ({"main": context(privileged=True)}, f"container main {PRIVILEGED}"),
    "privileged beside": ({"beside": context(privileged=True)}, f"container beside {PRIVILEGED}"),
    "SYS_ADMIN": ({"main": context(capabilities={"add": ["SYS_ADMIN"]})}, PRIVILEGED),
    "DAC_READ_SEARCH": ({"main": context(capabilities={"add": ["DAC_READ_SEARCH"]})}, PRIVILEGED),
    "every capability": ({"before": context(capabilities={"add": ["all"]})}, PRIVILEGED),
}

ONE_OF_EACH = (
    *("all cards", "all cards before", "CDI", "more of the driver: all", "mount /etc"),
    *("host /sys", "hostPID", "privileged beside"),
)
"""Cases of ESCAPES, at least one for each sentence."""

NO_ESCAPE: dict[str, Object] = {
    "nothing": {},
    **{
        f"of the driver {one}": {"main": {"env": [capabilities(one)]}}
        for one in ("compute,utility", "utility,compute", "compute")
    },
    "no card beside": {"beside": {"env": [VOID]}},
    "other variables": {"main": {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}},
    "a config map": {"main": {"envFrom": [KEYS, {**KEYS, "prefix": "APP_"}]}},
    "mounts below": mount("/run/app"),
    "mounts that sound alike": mount("/etc/ld.so.preload.d"),
    "mounts beside": {"beside": {"volumeMounts": [{"name": "v", "mountPath": "/etc"}]}},
    "mounts above": {"beside": {"volumeMounts": [{"name": "v", "mountPath": "/var/run"}]}},
    "folders of one's own": host("/var/lib/mizarre"),
    "logs": host("/var/log"),
    **{
        f"host {path}": host(path)
        for path in (
            "/dev/shm",
            "/dev/fdisk",
            "/processed",
            "/srv/proc/1/root",
            "/run/k3sdata",
            "/run/app/k3s",
            "/mnt/data",
            "/opt/app",
        )
    },
    "capabilities": {"main": context(capabilities={"add": ["NET_ADMIN"]}, privileged=False)},
    "annotations": {"metadata": {"annotations": {"example.com/x": "y"}}},
}


def escaping(tenant: str, changes: Object) -> Object:
    """A share pod between a container before it and one beside it, with changes."""
    pod = share_pod(tenant, "escapes", volumes=[{"name": "v", "emptyDir": {}}])
    (main,) = pod["spec"]["containers"]
    plain = {**main, "resources": {}}
    pod["spec"]["containers"] = [
        {**main, **changes.get("main", {})},
        {**plain, "name": "beside", **changes.get("beside", {})},
    ]
    pod["spec"]["initContainers"] = [{**plain, "name": "before", **changes.get("before", {})}]
    pod["spec"] |= changes.get("spec", {})
    pod["metadata"] |= changes.get("metadata", {})
    return pod


KINDS = ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob")


def templated(pod: Object, kind: str) -> Object:
    """An object of one of KINDS whose pods are like this one, but would have no node."""
    spec = {**pod["spec"], "nodeSelector": {"mizar.share/nowhere": "true"}}
    if kind not in ("Job", "CronJob"):
        spec["restartPolicy"] = "Always"
    meta = pod["metadata"]
    return of_each_kind(meta["namespace"], "escapes", spec, meta.get("annotations"))[kind]
