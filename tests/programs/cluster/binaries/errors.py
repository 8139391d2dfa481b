"""What can go wrong on the way to a program or an image: each says what to do next."""

from __future__ import annotations

from pathlib import Path

from cluster.errors import ClusterError


class SetupError(ClusterError):
    """Something that the cluster needs cannot be had."""


class CommandFailed(SetupError):
    """A command failed or took too long; the message contains the last lines of its log."""

    def __init__(self, what: str, how: str, log: Path, tail: str) -> None:
        shown = tail or "(it printed nothing)"
        super().__init__(f"{what} {how}; the last lines of {log}:\n{shown}")
        self.log = log


class SourceRefused(SetupError):
    """A folder that the user named does not hold what it must hold."""


class NotAvailable(SetupError):
    """A source does not have it (unreachable, absent, corrupt): the next source is tried."""


class Busy(SetupError):
    """Another run holds the lock for longer than its work can take."""
