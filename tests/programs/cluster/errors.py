"""The errors of clusters; each says what to do."""

from __future__ import annotations

from pathlib import Path


class ClusterError(Exception):
    """A cluster cannot do what was asked of it."""


class SpecError(ClusterError):
    """A cluster cannot be made as it was described."""


class AlreadyUp(ClusterError):
    """A cluster of that name runs, or is being started, already."""


class NotUp(ClusterError):
    """There is no cluster of that name, or it does not run any more."""


class NotSupported(ClusterError):
    """This kind of cluster has no access to its nodes."""


class CommandFailed(ClusterError):
    """A command (kubectl, helm, one on a node) ended with an error."""

    def __init__(self, argv: list[str], returncode: int, stdout: str, stderr: str) -> None:
        said = (stderr.strip() or stdout.strip())[-4000:]
        super().__init__(f"`{' '.join(argv)}` ended with {returncode}: {said}")
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


class ComponentFailed(ClusterError):
    """A part of the cluster ended, or did not do its work in time; shows its last log lines."""

    def __init__(self, what: str, logs: dict[Path, str]) -> None:
        tails = [f"the last lines of {log}:\n{tail}" for log, tail in logs.items()]
        super().__init__("\n".join([what, *tails]))
