"""Reports processes that no limits bind, in events on their pods, and kills them where
isolation.enforcement is Strict.

Most of them run without the shim. The others are the largest processes of containers that hold far
more memory than they may. Several audits must agree (compare.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mizar_core.names import EventReason
from mizar_kube.logs import get_logger
from mizar_nodeagent.audit.compare import AuditResult, ProcessWithoutShim
from mizar_nodeagent.audit.kill import kill
from mizar_nodeagent.container.slots import Notify
from mizar_nodeagent.pods import Key

log = get_logger(__name__)

STEADY: Final = 3
"""Number of audits, auditor.EVERY_S apart, that must find a process before it is reported or
killed: a process that is just ending is no longer registered, but NVML may still list it."""


class ProcessesWithoutShim:
    """The processes that each of the last STEADY audits found, and the reports about them. `warn`:
    emits a warning event on a pod. `is_strict`: returns whether the process must be killed. `proc`:
    the node's /proc. `found`: the processes."""

    def __init__(
        self, warn: Notify, is_strict: Callable[[ProcessWithoutShim], bool], proc: Path
    ) -> None:
        self._warn = warn
        self._is_strict = is_strict
        self._proc = proc
        self._results: list[AuditResult] = []
        self._reported: set[tuple[str, int]] = set()
        self.found: Sequence[ProcessWithoutShim] = ()

    def add(self, result: AuditResult) -> None:
        """Add one more audit's result; report and kill the processes that all of the last STEADY
        audits have found. What was found on a card that does not answer now is kept, but leads to
        no new report."""
        before = {_identity(one) for one in self.found}
        result = replace(result, without_shim=[*result.without_shim, *self._of_silent(result)])
        self._results = [*self._results, result][-STEADY:]
        always = _found_by_all(self._results) if len(self._results) == STEADY else []
        new = [one for one in always if one.uuid not in result.silent]
        old = [one for one in always if one.uuid in result.silent and _identity(one) in before]
        self.found = [*new, *old]
        for one in new:
            outcome = kill(one.process, self._proc) if self._is_strict(one) else ""
            self._report(one, outcome)
        self._reported &= {_identity(one) for one in result.without_shim}

    def _of_silent(self, result: AuditResult) -> list[ProcessWithoutShim]:
        """What the audit before found on the cards that do not answer."""
        earlier = self._results[-1].without_shim if self._results else ()
        return [one for one in earlier if one.uuid in result.silent]

    def by_pod(self) -> dict[Key, str] | None:
        """A sentence about each pod with such processes; None before STEADY audits."""
        if len(self._results) < STEADY:
            return None
        return {
            (one.owner.namespace, one.owner.pod): _sentence(one) for one in reversed(self.found)
        }

    def _report(self, found: ProcessWithoutShim, outcome: str) -> None:
        if _identity(found) in self._reported:
            return
        self._reported.add(_identity(found))
        sentence = "; ".join(filter(None, (_sentence(found), outcome)))
        log.warning(
            "a process uses a card without the shim",
            problem=sentence,
            card=found.uuid,
            **found.owner.names,
        )
        self._warn(found.owner, EventReason.ISOLATION_NOT_ENFORCED, sentence)


def _found_by_all(results: Sequence[AuditResult]) -> list[ProcessWithoutShim]:
    always = set.intersection(*({_identity(one) for one in it.without_shim} for it in results))
    return [one for one in results[-1].without_shim if _identity(one) in always]


def _identity(found: ProcessWithoutShim) -> tuple[str, int]:
    return found.uuid, found.process.pid


def _sentence(found: ProcessWithoutShim) -> str:
    process = found.process
    if found.permitted is not None:
        return (
            f"container {found.owner.container} holds far more memory of card {found.uuid} than "
            f"its limit of {found.permitted >> 20} MiB: process {process.name} ({process.key[0]}) "
            f"has {found.bytes >> 20} MiB, so the usage that it reports is wrong"
        )
    return (
        f"process {process.name} ({process.key[0]}) of container {found.owner.container} "
        f"holds {found.bytes >> 20} MiB of card {found.uuid} without Mizar's shim, so its "
        "limits don't apply to it: the program is statically linked, does not use glibc, bypasses "
        "/etc/ld.so.preload, or has loaded a second libcuda; use a glibc image, a dynamically "
        "linked program and only the node's driver, or isolation.backend None"
    )
