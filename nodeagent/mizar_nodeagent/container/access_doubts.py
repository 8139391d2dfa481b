"""Checks, as far as the node's files show it, whether the chosen way gives containers their cards:
a container that gets no card starts all the same, and its program finds none."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mizar_nodeagent.config import CardAccess, Way
from mizar_nodeagent.container import auto_strategy, cdi_files


@dataclass(frozen=True)
class Doubts:
    """Doubts about a way, each as a sentence, empty if there is none. `problem`: no container gets
    a card. `warning`: only some containers do. `remark`: a fact that is unknown or may be
    harmless."""

    problem: str = ""
    warning: str = ""
    remark: str = ""


NONE = Doubts()
"""No doubt."""


def doubts(
    ways: Collection[Way],
    access: CardAccess,
    runtime: str,
    reads_variable: bool,
    by_nri: bool = False,
) -> Doubts:
    """The doubts about `ways`, in which a container is given its card, as far as the node's files
    show them. Reads these files. `runtime`: the container runtime as in the node's status, such as
    containerd://2.2.9. `reads_variable`: the agent's own container shows that the node's default
    runtime reads NVIDIA_VISIBLE_DEVICES. `by_nri`: NRI gives the card, not the answer to
    Allocate."""
    if not {"CDI", "CDIAnnotations"}.isdisjoint(ways):
        if problem := cdi_files.kind_problem(access):
            return Doubts(problem=problem)
        return _of_cdi(access, runtime, by_nri) if {*ways} == {"CDI"} else NONE
    if {*ways} != {"EnvVar"} or reads_variable:
        return NONE
    found = _of_variable(access, runtime)
    if not found.problem and auto_strategy.refuses_variable(access):
        return _of_refusal(access)
    return found


def cdi_dropped(runtime: str) -> str:
    """A sentence that says that the runtime drops CDI devices that are given by NRI; empty if it
    gives them to containers, or its version is not known. `runtime`: as in the node's status, such
    as containerd://2.2.9."""
    if auto_strategy.gives_cdi_by_nri(runtime) is not False:
        return ""
    return (
        f"the node's container runtime, {runtime}, drops CDI devices that are given by NRI, as do "
        "containerd before 2.1 (except 1.7 from 1.7.30 on) and CRI-O before 1.34"
    )


def _of_cdi(access: CardAccess, runtime: str, by_nri: bool) -> Doubts:
    """The doubts whether the runtime reads CDI devices. Those of NRI it reads from containerd 2.1
    on whatever its configuration says."""
    name, version = auto_strategy.named(runtime)
    if not name or (by_nri and version >= (2, 1)) or auto_strategy.reads_cdi(access, runtime):
        return NONE
    if name != auto_strategy.CONTAINERD or version < (1, 7):
        return Doubts(
            problem=f"the node's container runtime, {runtime}, ignores CDI devices, as do "
            "containerd before 1.7 and CRI-O before 1.28, so no container gets its card: choose "
            "another nodeagent.cardAccess.strategy, or upgrade the container runtime"
        )
    path, found = access.containerd_config, auto_strategy.containerd(access, runtime)
    if found is None or not found.complete:
        return Doubts(
            remark=f"{path} (cardAccess.containerdConfig) does not show whether the node's "
            "containerd sets enable_cdi, without which containerd 1.7 ignores CDI devices"
        )
    return Doubts(
        problem=f"{path} on the node (cardAccess.containerdConfig, which must be the file of the "
        "kubelet's containerd) does not set enable_cdi to true, without which containerd "
        f"{version[0]}.{version[1]} ignores CDI devices, so no container gets its card: set it and "
        "restart containerd, or choose another nodeagent.cardAccess.strategy"
    )


def _of_refusal(access: CardAccess) -> Doubts:
    """A warning, no problem, since the node may use another file than this one, such as that of the
    GPU Operator."""
    return Doubts(
        warning=f"{access.nvidia_runtime_config} (cardAccess.nvidiaRuntimeConfig) on the node sets "
        f"{auto_strategy.VARIABLE} to false, so share containers start without their card: choose "
        f"another nodeagent.cardAccess.strategy, or set {auto_strategy.VOLUME_MOUNTS} to true "
        "there, by which Auto chooses VolumeMounts"
    )


def _of_variable(access: CardAccess, runtime: str) -> Doubts:
    """The doubts about giving cards by NVIDIA_VISIBLE_DEVICES. A default runtime other than
    NVIDIA's is only a remark, since the node may use another containerd than the one whose file was
    read. It is a problem or a warning only if CDI files name the node's cards as well."""
    found, path = auto_strategy.containerd(access, runtime), access.containerd_config
    if found is not None and found.nvidia_default:
        return NONE
    if found is None or not found.plain_default:
        return Doubts(
            remark=f"{path} (cardAccess.containerdConfig) does not show whether the node's default "
            "runtime is NVIDIA's, which reads NVIDIA_VISIBLE_DEVICES"
        )
    kinds = ", ".join(sorted(cdi_files.kinds_of_cards(access)))
    remedy = (
        f"the node's CDI files name its cards ({kinds}), so let nodeagent.cardAccess give them by "
        "CDI (containerd before 2.0 reads it with enable_cdi only), or make NVIDIA's runtime the "
        "default"
    )
    if not found.handlers:
        told = f"{path} on the node has no runtime of NVIDIA, so nothing reads the variable"
        nobody = f"no container gets its card by NVIDIA_VISIBLE_DEVICES: {told}"
        return Doubts(problem=f"{nobody}; {remedy}") if kinds else Doubts(remark=told)
    told = (
        "NVIDIA_VISIBLE_DEVICES is read only in pods whose runtimeClassName has the handler "
        f"{' or '.join(found.handlers)}, since {path} on the node has another runtime as the "
        "default: other share pods start without their card"
    )
    return Doubts(warning=f"{told}; {remedy}") if kinds else Doubts(remark=told)
