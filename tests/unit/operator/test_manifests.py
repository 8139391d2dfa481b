"""The manifests of a shadow pod's pod, as the API server gets them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from mizar_core.carve import Carve
from mizar_core.names import ANNOTATION_CARVE
from mizar_core.planning.feasible_nodes import pool_needs
from mizar_operator import manifests
from mizar_operator.manifests import PodSettings
from property.plan.snapshots import node, pool, quota, shadow

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
GOLDEN = Path(__file__).parents[2] / "golden" / "plan" / "shadow-pod.yaml"
NODES = [
    replace(node(model), labels=frozenset({("zone", "a"), ("nvidia.com/gpu.product", model)}))
    for model in ("A100", "H100", "T4")
]
POOL = pool(
    nodeSelector={"zone": "a"},
    cardModels=["*100"],
    tolerations=[{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}],
    runtimeClassName="nvidia",
    profiles=[{"devices": 2, "cards": 1, "memory": "7Gi"}],
    isolation={"compute": "Hard"},
)
QUOTA = quota("team-a", isolation={"memory": "Oversubscribe"})


def _pod(**changes: Any) -> Any:
    given = {
        "shadow": shadow(),
        "pool": POOL,
        "quota": QUOTA,
        "pod_settings": PodSettings("pause:1", "shadow-pods", 35),
        "needs": pool_needs(POOL, NODES),
    }
    return manifests.pod(**{**given, **changes})


def test_pod() -> None:
    assert _pod() == yaml.safe_load(GOLDEN.read_text())


def test_the_agent_reads_what_the_operator_wrote() -> None:
    carve = Carve.from_json(_pod()["metadata"]["annotations"][ANNOTATION_CARVE])
    assert carve.memory == 7 << 30
    assert (carve.isolation.memory, carve.isolation.compute) == ("Oversubscribe", "Hard")
    assert carve.resource == "team-a.mizar.share/gpu.2"


def test_no_known_model_is_not_any_model() -> None:
    made = _pod(needs=pool_needs(POOL, []))
    (term,) = made["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "Exists"}]}


def test_no_affinity_where_any_model_will_do() -> None:
    made = _pod(needs=pool_needs(pool(), NODES))
    assert "affinity" not in made["spec"]
    assert "nodeSelector" not in made["spec"]


def test_a_toleration_of_the_pool_is_not_said_twice() -> None:
    same = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    made = _pod(needs=pool_needs(pool(tolerations=[same]), NODES))
    assert made["spec"]["tolerations"] == [same]


def test_labels_of_the_cluster_come_beside_its_own() -> None:
    more = {"team": "platform", "mizar.share/shadow-pod": "false", "hami.io/webhook": "look"}
    notes = {"example.com/inject": "false", ANNOTATION_CARVE: "{}"}
    settings = PodSettings("pause:1", memory="128Mi", labels=more, annotations=notes)
    plain, made = _pod(pod_settings=PodSettings("pause:1")), _pod(pod_settings=settings)
    assert made["metadata"]["labels"] == {
        **plain["metadata"]["labels"],
        "team": "platform",
        "hami.io/webhook": "look",
    }
    assert made["metadata"]["annotations"] == {
        **plain["metadata"]["annotations"],
        "example.com/inject": "false",
    }
    (container,) = made["spec"]["containers"]
    assert container["resources"]["requests"]["memory"] == "128Mi"
    assert container["resources"]["limits"]["memory"] == "128Mi"


def test_priority_class() -> None:
    """A pool's own, or else that of the settings, which is the chart's."""
    assert _pod()["spec"]["priorityClassName"] == "shadow-pods"
    assert "priorityClassName" not in _pod(pod_settings=PodSettings("pause:1"))["spec"]
    of_its_own = _pod(pool=pool(priorityClassName="batch"))
    assert of_its_own["spec"]["priorityClassName"] == "batch"


def test_the_cards_of_the_profile_are_asked_for() -> None:
    made = _pod(shadow=replace(shadow(devices=4), cards=2))
    limits = made["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "2"


def test_shadow_pods_are_packed_beside_their_other_constraints() -> None:
    packed = pool(nodePolicy="Binpack", cardModels=["*100"])
    affinity = _pod(pool=packed, needs=pool_needs(packed, NODES))["spec"]["affinity"]
    (preferred,) = affinity["podAffinity"][PREFERRED]
    assert preferred == {
        "weight": 100,
        "podAffinityTerm": {
            "labelSelector": {"matchLabels": {"mizar.share/shadow-pod": "true"}},
            "topologyKey": "kubernetes.io/hostname",
            "namespaceSelector": {},
        },
    }
    assert affinity["nodeAffinity"] == _pod()["spec"]["affinity"]["nodeAffinity"]
