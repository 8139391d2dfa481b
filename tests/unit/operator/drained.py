"""Two shadow pods on a node: one is drained, and a share pod uses the other."""

from __future__ import annotations

from mizar_core.planning.snapshot import ShadowView
from mizar_kube.kinds import POD, SHADOW_POD, Object
from stateful.harness import Harness
from unit.operator.small_model import small_model

GPU = "team-a.mizar.share/gpu.2"


class Cluster:
    """`shadow` and `pod` are of the drained one, `beside` is the other ShadowPod; share pod `two`
    holds both of its devices. The operator's caches know all that."""

    def __init__(self) -> None:
        self.model = small_model()
        self.operator = Harness(self.model)
        self.shadow = self._used_by("one")
        self.beside = self._used_by("two")
        self.model.api.start_delete(self.find_pod("one"))
        self.rounds(2, seconds=61)
        while not self.known.drained:
            self.operator.reconcile()
            self.operator.catch_up()

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

    def _used_by(self, share: str) -> Object:
        """A new ShadowPod, both devices of which the share pod holds."""
        before = [one["metadata"]["name"] for one in self.model.api.all(SHADOW_POD)]
        self.model.add_share("team-a", share, GPU, 2)
        self.rounds(5)
        found = list(self.model.api.all(SHADOW_POD))
        (made,) = (one for one in found if one["metadata"]["name"] not in before)
        return made
