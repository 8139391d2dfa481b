"""Marks on shadow pods in use, by which eviction and autoscalers leave them alone."""

from __future__ import annotations

from mizar_core.planning.actions import SetInUse
from mizar_core.planning.draft import Draft
from mizar_core.planning.stages import Stage

_MARKED = frozenset({Stage.STARTING, Stage.READY, Stage.DRAINING})


def protect(draft: Draft) -> None:
    """Mark who has come into use, and take the mark off who has gone out of it."""
    for shadow, stage in list(draft.in_order()):
        pod = shadow.pod
        if stage in _MARKED and pod is not None and pod.in_use != shadow.held:
            draft.do(SetInUse(shadow.key, shadow.held))
