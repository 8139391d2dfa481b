"""Objects whose deletion Kopf has missed: the answer to the operator's next write tells of it."""

from __future__ import annotations

from typing import Any

import pytest

from mizar_kube.errors import NotServed, error_from_status
from mizar_kube.kinds import GPU_QUOTA, POD, SHADOW_POD, Object
from stateful.harness import Harness
from stateful.model import Model
from unit.operator.small_model import small_model

GPU = "team-a.mizar.share/gpu.2"


def _quota(model: Model) -> Object:
    found = model.api.find(GPU_QUOTA, "quota", "team-a")
    assert found is not None
    return found


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_a_quota_that_is_gone_is_forgotten(again: bool) -> None:
    """Until then, it would allow shadow pods and lend cards: until the next list, in minutes."""
    model = small_model()
    operator = Harness(model)
    operator.round()
    model.api.remove(quota := _quota(model))
    if again:
        model.add_quota("team-a", [{"devices": 2, "min": 0, "max": 0}])
    model.add_share("team-a", "p", GPU, 1)
    operator.sync([POD])
    operator.reconcile()
    known = operator.caches.quotas.get("quota", "team-a")
    assert known is None or known.metadata.uid != quota["metadata"]["uid"]
    for shadow in list(model.api.all(SHADOW_POD)):
        model.api.remove(shadow)
    operator.sync([POD, SHADOW_POD])
    operator.reconcile()
    assert not list(model.api.all(SHADOW_POD))


def test_a_page_of_a_proxy_does_not_say_that_a_quota_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_model()
    operator = Harness(model)
    operator.round()
    real = model.api.apply

    async def apply(obj: Object, **how: Any) -> Object:
        if obj["kind"] == "GPUQuota":
            raise error_from_status(404, {}, "PATCH gpuquotas team-a/quota")
        return await real(obj, **how)

    monkeypatch.setattr(model.api, "apply", apply)
    model.add_share("team-a", "p", GPU, 1)
    operator.sync([POD])
    assert isinstance(operator.reconcile(), NotServed)
    assert operator.caches.quotas.get("quota", "team-a") is not None
