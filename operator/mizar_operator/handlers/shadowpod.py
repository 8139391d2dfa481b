"""Watches ShadowPods, which hold the cards that node agents carve into devices."""

from __future__ import annotations

from typing import Any

import kopf

from mizar_core.names import GROUP, VERSION
from mizar_core.planning.snapshot import ShadowView
from mizar_kube.kinds import SHADOW_POD
from mizar_operator.caches import Caches
from mizar_operator.handlers import Add, Memo


@kopf.on.event(GROUP, VERSION, SHADOW_POD.plural)
async def shadowpod(event: kopf.RawEvent, memo: Memo, **_: Any) -> None:
    """A ShadowPod was created, changed (mostly: its node agent reported) or deleted."""
    memo.caches.shadows.tell(event["type"], dict(event["object"]))


def follow(caches: Caches, add: Add) -> None:
    """Request a plan for the shadow pod's pool. One that another client deleted is drained, checked
    live and released (`planning.lifecycle`, `delete_guard`); one that became idle is drained after
    its timeout, for which the plan itself says when it is due (`planning.reap`)."""

    def changed(old: ShadowView | None, new: ShadowView | None) -> None:
        for shadow in (old, new):
            if shadow is not None:
                add(caches.key_of_pool(shadow.pool))

    caches.shadows.on_change(changed)
