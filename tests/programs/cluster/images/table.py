"""The images and what each is built from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[4]

OPERATOR = "localhost/mizar/operator:dev"
NODEAGENT = "localhost/mizar/nodeagent:dev"
CUDA_SAMPLE = "localhost/mizar/cuda-sample:dev"
PAUSE = "localhost/mizar/pause:dev"


@dataclass(frozen=True)
class Image:
    """An image that a Dockerfile describes; `target` is the stage, or "" for the last one."""

    name: str
    dockerfile: Path
    context: Path
    target: str = ""


DOCKERFILE = REPOSITORY / "Dockerfile"
SAMPLE = REPOSITORY / "examples" / "sample"

IMAGES = (
    Image(OPERATOR, DOCKERFILE, REPOSITORY, "operator"),
    Image(NODEAGENT, DOCKERFILE, REPOSITORY, "nodeagent"),
    Image(CUDA_SAMPLE, SAMPLE / "Dockerfile", SAMPLE),
)
ALL = (*(image.name for image in IMAGES), PAUSE)


def short(name: str) -> str:
    """`localhost/mizar/operator:dev` -> `operator`."""
    return name.rpartition("/")[2].partition(":")[0]


def full_names(names: list[str] | None) -> list[str]:
    """All images, or those named in full or in short; ValueError for a name that is unknown."""
    if names is None:
        return list(ALL)
    known = {short(name): name for name in ALL} | {name: name for name in ALL}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown images: {', '.join(unknown)}; there are {', '.join(ALL)}")
    return [known[name] for name in names]
