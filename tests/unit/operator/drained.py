"""Two shadow pods on a node: one is drained, and a share pod uses the other."""

from __future__ import annotations

import copy
import functools

from mizar_core.planning.snapshot import ShadowView
from mizar_kube.kinds import POD, SHADOW_POD, Object
from stateful.harness import Harness
from stateful.model import Model
from unit.operator.small_model import small_model

GPU = "team-a.mizar.share/gpu.2"


class Cluster:
    """`shadow` and `pod` are of the drained one, `beside` is the other ShadowPod; share pod `two`
    holds both of its devices. The operator has just started, and its caches know all that."""

    def __init__(self) -> None:
        model, shadow, beside = _built()
        self.model = copy.deepcopy(model)
        self.operator = Harness(self.model)
        self.shadow = self._find_shadow(shadow)
        self.beside = self._find_shadow(beside)

    @property
    def pod(self) -> Object:
        """The drained shadow pod's own pod."""
        return self.find_pod(self.shadow["metadata"]["name"])

    @property
    def known(self) -> ShadowView:
        """The drained shadow pod as the operator knows it."""
        name = self.shadow["metadata"]["name"]
        (found,) = (one for one in self.operator.snapshot().shadows if one.name == name)
        return found

    def find_pod(self, name: str) -> Object:
        """A pod, itself and no copy."""
        found = self.model.api.find(POD, name, "team-a")
        assert found is not None
        return found

    def rounds(self, count: int, seconds: float = 1) -> None:
        """Let every part of the cluster act."""
        for _ in range(count):
            self.operator.round(seconds)

    def _find_shadow(self, name: str) -> Object:
        found = self.model.api.find(SHADOW_POD, name, "team-a")
        assert found is not None
        return found


@functools.cache
def _built() -> tuple[Model, str, str]:
    """The cluster, built once, and the names of both ShadowPods."""
    model = small_model()
    operator = Harness(model)
    shadow, beside = (_used_by(name, model, operator) for name in ("one", "two"))
    pod = model.api.find(POD, "one", "team-a")
    assert pod is not None
    model.api.start_delete(pod)
    for _ in range(2):
        operator.round(61)
    while not _is_drained(shadow, operator):
        operator.reconcile()
        operator.catch_up()
    return model, shadow, beside


def _used_by(share: str, model: Model, operator: Harness) -> str:
    """The name of a new ShadowPod, both devices of which the share pod holds."""
    before = {one["metadata"]["name"] for one in model.api.all(SHADOW_POD)}
    model.add_share("team-a", share, GPU, 2)
    for _ in range(5):
        operator.round()
    (made,) = {one["metadata"]["name"] for one in model.api.all(SHADOW_POD)} - before
    return str(made)


def _is_drained(name: str, operator: Harness) -> bool:
    return any(one.drained for one in operator.snapshot().shadows if one.name == name)
