"""A plan creates the pod of a shadow pod while another deletes the shadow pod: plans of two pools
run side by side, and a ShadowPod whose pool is deleted passes from one to the other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mizar_core.planning.actions import CreatePod, DeleteShadow, RemoveFinalizer
from mizar_core.planning.node_fit import Needs
from mizar_core.planning.snapshot import Snapshot
from mizar_kube.client import KubeClient
from mizar_kube.events import EventRecorder
from mizar_kube.kinds import POD, SHADOW_POD, Object
from mizar_operator.apply import Applier
from mizar_operator.manifests import PodSettings
from unit.operator.drained import Cluster

NOTHING = Needs()


@pytest.fixture
def cluster() -> Cluster:
    """The drained shadow pod has lost its pod."""
    found = Cluster()
    found.model.api.remove(found.pod)
    found.operator.sync([POD])
    return found


def _applier(cluster: Cluster) -> Applier:
    client, events = (
        cast(KubeClient, cluster.model.api),
        cast(EventRecorder, cluster.operator.events),
    )
    return Applier(client, cluster.operator.caches, events, PodSettings("pause"))


def _shadow_pods(cluster: Cluster) -> tuple[Object | None, Object | None]:
    name = cluster.shadow["metadata"]["name"]
    find = cluster.model.api.find
    return find(SHADOW_POD, name, "team-a"), find(POD, name, "team-a")


@pytest.mark.parametrize("action", [DeleteShadow, RemoveFinalizer])
def test_nothing_is_deleted_while_its_pod_is_created(
    action: type, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, applier, snapshot = cluster.known.key, _applier(cluster), cluster.operator.snapshot()
    create, found = cluster.model.api.create, []

    async def slow_create(obj: Object, **more: Any) -> Object:
        found.append(await applier.apply(snapshot, [action(key)]))
        return await create(obj, **more)

    monkeypatch.setattr(cluster.model.api, "create", slow_create)
    asyncio.run(applier.apply(snapshot, [CreatePod(key, NOTHING)]))
    assert [one.used for one in found] == [{cluster.shadow["metadata"]["uid"]}]
    assert None not in _shadow_pods(cluster)


def test_a_shadow_pod_that_is_deleted_gets_no_pod(cluster: Cluster) -> None:
    key, snapshot = cluster.known.key, cluster.operator.snapshot()
    _apply(cluster, snapshot, DeleteShadow(key))
    _apply(cluster, snapshot, CreatePod(key, NOTHING))
    assert _shadow_pods(cluster) == (None, None)


def _apply(cluster: Cluster, snapshot: Snapshot, action: Any) -> None:
    result = asyncio.run(_applier(cluster).apply(snapshot, [action]))
    assert result.done == [action]
