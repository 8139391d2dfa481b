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


def doubts(ways: Collection[Way], access: CardAccess, runtime: str, reads_variable: bool) -> Doubts:
    """The doubts about `ways`, in which a container is given its card, from a look at the node's
    files. `runtime`: as in the node's status. `reads_variable`: the agent's own container shows
    that the node's default runtime reads NVIDIA_VISIBLE_DEVICES."""
    if not {"CDI", "CDIAnnotations"}.isdisjoint(ways):
        return Doubts(problem=cdi_files.kind_problem(access))
    if {*ways} != {"EnvVar"} or reads_variable:
        return NONE
    return _of_variable(access, runtime)


def cdi_dropped(runtime: str) -> str:
    """A sentence that says that the runtime drops CDI devices that are given by NRI; empty if it
    gives them to containers, or its version is not known. `runtime`: as in the node's status."""
    if auto_strategy.gives_cdi_by_nri(runtime) is not False:
        return ""
    return (
        f"the node's container runtime, {runtime}, drops CDI devices that are given by NRI, as do "
        "containerd before 2.1 (except 1.7 from 1.7.30 on) and CRI-O before 1.34"
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
