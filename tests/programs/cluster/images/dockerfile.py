"""Reads from a Dockerfile which stages a target needs and which files they copy.

Only that is understood which decides whether an image must be built again; buildah reads
the rest.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field


@dataclass
class Stage:
    """A FROM and what follows it."""

    name: str
    base: str
    lines: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)  # that it copies from
    sources: list[str] = field(default_factory=list)  # paths in the build context


@dataclass(frozen=True)
class Needs:
    """What a target depends on: the instructions of its stages and the paths they copy."""

    lines: list[str]
    sources: list[str]


def needs(text: str, target: str = "") -> Needs:
    """What `target` (or the last stage) needs; ValueError if there is no such stage."""
    head, stages = _parse(text)
    if not stages or (target and target not in stages):
        raise ValueError(f"the Dockerfile has no stage {target or 'at all'}")
    used = _closure(stages, target or list(stages)[-1])
    lines = head + [line for stage in used for line in stage.lines]
    return Needs(lines, list(dict.fromkeys(path for stage in used for path in stage.sources)))


def instructions(text: str) -> list[str]:
    """The instructions, each on one line; comments and empty lines are gone."""
    kept = (line for line in text.splitlines() if not re.match(r"\s*(#|$)", line))
    return [line.strip() for line in re.sub(r"\\\s*\n", " ", "\n".join(kept)).splitlines()]


def _parse(text: str) -> tuple[list[str], dict[str, Stage]]:
    head: list[str] = []
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for line in instructions(text):
        word = line.split()[0].upper()
        if word == "FROM":
            current = _from(line, len(stages))
            stages[current.name] = current
        elif current:
            _read(word, line, current)
        (current.lines if current else head).append(line)
    return head, stages


def _from(line: str, number: int) -> Stage:
    words = [word for word in line.split()[1:] if not word.startswith("--")]
    named = len(words) == 3 and words[1].upper() == "AS"
    return Stage(words[2] if named else str(number), words[0])


def _read(word: str, line: str, stage: Stage) -> None:
    if word in ("COPY", "ADD"):
        _read_copy(line, stage)
    elif word == "RUN":
        for mount in re.findall(r"--mount=(\S+)", line):
            _read_mount(dict(part.partition("=")[::2] for part in mount.split(",")), stage)


def _read_copy(line: str, stage: Stage) -> None:
    flags = dict(re.findall(r"--(\w+)=(\S+)", line))
    rest = re.sub(r"--\w+(=\S+)?\s+", "", line.split(None, 1)[1]).strip()
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    if "from" in flags:
        stage.stages.append(flags["from"])
    else:
        stage.sources.extend(path for path in words[:-1] if "://" not in path)


def _read_mount(mount: dict[str, str], stage: Stage) -> None:
    if "from" in mount:
        stage.stages.append(mount["from"])
    elif mount.get("type", "bind") == "bind":
        stage.sources.append(mount.get("source") or mount.get("src") or ".")


def _closure(stages: dict[str, Stage], target: str) -> list[Stage]:
    used: set[str] = set()
    waiting = [target]
    while waiting:
        name = waiting.pop()
        if name in stages and name not in used:
            used.add(name)
            waiting.extend([stages[name].base, *stages[name].stages])
    return [stage for name, stage in stages.items() if name in used]
