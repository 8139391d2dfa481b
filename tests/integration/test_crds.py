"""The custom resources on a real API server: what it refuses, fills in and shows."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from cluster import Cluster
from mizar_core.models import BUILT_IN_PROFILES, GPUPool
from mizar_kube.client import KubeClient
from mizar_operator.crd_check import lacking_fields
from support.kinds import parse_kind
from support.kube import Kube, Object
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = f"crds-{os.getpid()}"


@pytest.fixture(scope="module")
def kube(cluster: Cluster) -> Iterator[Kube]:
    """An API server that knows the custom resources, and a namespace for them."""
    kube = Kube(cluster)
    kube.apply(ROOT / "crds", {"apiVersion": "v1", "kind": "Namespace", **_meta(NAMESPACE, None)})
    kube.run("wait", "--for=condition=Established", "--timeout=60s", f"--filename={ROOT / 'crds'}")
    yield kube
    kube.run("delete", "gpupools", "--all")
    kube.run("delete", "namespace", NAMESPACE, "--wait=false")


def _meta(name: str, namespace: str | None = NAMESPACE) -> Object:
    return {"metadata": {"name": name} | ({"namespace": namespace} if namespace else {})}


def _object(kind: str, name: str, spec: Object, namespace: str | None = NAMESPACE) -> Object:
    head = {"apiVersion": "mizar.share/v1alpha1", "kind": kind}
    return {**head, **_meta(name, namespace), "spec": spec}


def _pool(spec: Object | None = None, name: str = "pool") -> Object:
    return _object("GPUPool", name, spec or {}, None)


def _quota(spec: Object | None = None, name: str = "quota") -> Object:
    profiles = [{"devices": 2, "max": 1}]
    return _object("GPUQuota", name, {"pool": "pool", "profiles": profiles, **(spec or {})})


def _shadow(spec: Object | None = None, name: str = "shadow-2-abcde") -> Object:
    base = {"pool": "pool", "quota": "quota", "devices": 2, "cards": 1}
    return _object("ShadowPod", name, {**base, **(spec or {})})


def _profiles(*each: tuple[int, int]) -> Object:
    return {"profiles": [{"devices": devices, "cards": cards} for devices, cards in each]}


def _memory(amount: Any) -> Object:
    return {"profiles": [{"devices": 2, "cards": 1, "memory": amount}]}


def _alias(alias: str, devices: int = 2) -> Object:
    return {"profiles": [{"devices": devices, "cards": 1, "alias": alias}]}


def _size(name: str, devices: int = 2, units: int = 4096) -> Object:
    size = {"name": name, "devices": devices, "unitsPerDevice": units}
    return {**_alias("a.example/vgpu"), "sizes": [size]}


def _numbers(**numbers: int) -> Object:
    return {"profiles": [{"devices": 2, **numbers}]}


def _tolerating(**toleration: Any) -> Object:
    return _pool({"tolerations": [toleration]})


def _selecting(requirement: Object) -> Object:
    """A pool with a default quota for the namespaces that this requirement selects."""
    selector = {"matchExpressions": [requirement]}
    profiles = [{"devices": 2, "max": 1}]
    return _pool({"defaultQuota": {"namespaceSelector": selector, "profiles": profiles}})


NO_SCALING = 'is not a scaling: write a number above 0 and at most 16, such as "1" or "1.5"'
TOO_LITTLE = "is too little memory for any CUDA program to start: write 64Mi or more"
ANOTHERS = "is in the domain of another device plugin, whose resources would be mixed up"
ABOVE_HARD = (
    "memoryScaling above 1 allocates more memory than the card has, which isolation.memory Hard"
    " forbids"
)
MPS = "backend MPS is not built yet: set it to Auto or Shim"
NO_MEMORY = "is not an amount of memory: write one above zero, such as 8Gi or 500Mi"
OF_WHOLE_CARDS = "is NVIDIA's own name for whole cards or their instances"
A_DNS_NAME = "resourcePrefix must be a DNS name with a dot, in lower case, such as mizar.share"
NOT_THEIRS = "must not contain kubernetes.io nor begin with requests., which belong to Kubernetes"
A_RESOURCE = "must be an extended resource with one slash, such as nvidia.com/gpu"
SHORT = "metadata.name must have at most 63 characters and no dot"

REFUSED = {
    "cards that do not divide": (
        _pool(_profiles((10, 3))),
        "10 devices cannot be spread evenly over 3 cards: make devices a multiple of cards",
    ),
    "more cards than devices": (
        _pool(_profiles((1, 2))),
        "1 devices cannot be spread evenly over 2 cards",
    ),
    "no cards": (_pool(_profiles((2, 0))), "cards in body should be greater than or equal to 1"),
    "a profile twice": (_pool(_profiles((2, 1), (2, 2))), 'Duplicate value: {"devices":2}'),
    "no profiles": (_pool({"profiles": []}), "should have at least 1 items"),
    "scaling zero": (_pool({"memoryScaling": "0"}), f'"0": {NO_SCALING}'),
    "scaling negative": (_pool({"memoryScaling": "-1"}), f'"-1": {NO_SCALING}'),
    "scaling a negative number": (_pool({"coreScaling": -1}), f"-1: {NO_SCALING}"),
    "scaling beyond 16": (_pool({"coreScaling": "16.5"}), f'"16.5": {NO_SCALING}'),
    "scaling no number": (_pool({"coreScaling": "double"}), f'"double": {NO_SCALING}'),
    "memory misspelt": (_pool(_memory("8GiB")), f'"8GiB": {NO_MEMORY}'),
    "memory negative": (_pool(_memory("-8Gi")), f'"-8Gi": {NO_MEMORY}'),
    "memory zero": (_pool(_memory(0)), f"0: {NO_MEMORY}"),
    "compute mode unknown": (
        _pool({"isolation": {"compute": "Fair"}}),
        'Unsupported value: "Fair": supported values: "None", "Hard", "Soft", "Weighted"',
    ),
    "a backend that enforces nothing": (
        _pool({"isolation": {"compute": "Hard", "backend": "None"}}),
        "backend None enforces no limits: set compute to None, or backend to Auto or Shim",
    ),
    "a backend that is not built": (_pool({"isolation": {"backend": "MPS"}}), MPS),
    "a quota's backend that is not built": (_quota({"isolation": {"backend": "MPS"}}), MPS),
    "little reserve": (_pool({"spot": {"reserve": "1Mi"}}), "too little memory"),
    "a borrower's grace beyond what owners bear": (
        _pool({"spot": {"graceSeconds": 31}}),
        "spot.graceSeconds in body should be less than or equal to 30",
    ),
    "a namespace that cannot be": (
        _pool({"spot": {"namespaces": ["Team"]}}),
        "spec.spot.namespaces[0]",
    ),
    "a default quota of nothing": (
        _pool({"defaultQuota": {"profiles": []}}),
        "spec.defaultQuota.profiles in body should have at least 1 items",
    ),
    "a default quota's least above its most": (
        _pool({"defaultQuota": {"profiles": [{"devices": 2, "min": 2, "max": 1}]}}),
        "min 2 is more than max 1: lower min or raise max",
    ),
    "a selector without values": (
        _selecting({"key": "team", "operator": "In"}),
        "with operator In or NotIn there must be values, with Exists or DoesNotExist none",
    ),
    "a selector with values too many": (
        _selecting({"key": "team", "operator": "Exists", "values": ["a"]}),
        "with operator In or NotIn there must be values, with Exists or DoesNotExist none",
    ),
    "a selector of what is no label": (
        _selecting({"key": "a b", "operator": "Exists"}),
        "key must be a label key, such as kubernetes.io/metadata.name",
    ),
    "a selector of what is no label's value": (
        _selecting({"key": "team", "operator": "In", "values": ["a b"]}),
        "values must be label values: letters and digits",
    ),
    "a label that no namespace has": (
        _pool(
            {
                "defaultQuota": {
                    "namespaceSelector": {"matchLabels": {"team": "a b"}},
                    "profiles": [{"devices": 2, "max": 1}],
                }
            }
        ),
        "a label is not valid on a namespace: write it as kubectl get namespaces",
    ),
    "a spot quota below nothing": (
        _quota({"spot": {"max": -1}}),
        "spec.spot.max in body should be greater than or equal to 0",
    ),
    "a quota that grants nothing": (
        _quota({"profiles": []}),
        "the quota grants nothing: list the profiles that the namespace may use in profiles, or",
    ),
    "a quota that says nothing": (_object("GPUQuota", "gpus", {}), "the quota grants nothing: "),
    "a spot quota without a number": (_quota({"spot": {}}), "spec.spot.max: Required value"),
    "more memory than there is": (_pool({"memoryScaling": "1.5"}), ABOVE_HARD),
    "more memory than there is, without quotes": (_pool({"memoryScaling": 2}), ABOVE_HARD),
    "compute too small to count": (
        _pool({"coreScaling": "0.0001", **_profiles((2, 1))}),
        "coreScaling leaves less than a basis point of a card's time to a device: raise it",
    ),
    "memory of some bytes": (_pool(_memory(1024)), f"1024: {TOO_LITTLE}"),
    "memory below 64Mi": (_pool(_memory("63Mi")), f'"63Mi": {TOO_LITTLE}'),
    "prefix no DNS name": (_pool({"resourcePrefix": "Mizar_Share.x"}), A_DNS_NAME),
    "prefix without a dot": (_pool({"resourcePrefix": "mizar"}), A_DNS_NAME),
    "prefix with a slash": (_pool({"resourcePrefix": "mizar.share/gpu"}), A_DNS_NAME),
    "prefix of Kubernetes": (_pool({"resourcePrefix": "gpu.kubernetes.io"}), NOT_THEIRS),
    "prefix of quotas": (_pool({"resourcePrefix": "requests.example.com"}), NOT_THEIRS),
    "prefix of NVIDIA": (_pool({"resourcePrefix": "nvidia.com"}), f'"nvidia.com": {ANOTHERS}'),
    "prefix below Intel's": (_pool({"resourcePrefix": "gpu.intel.com"}), ANOTHERS),
    "prefix of spot pods": (_pool({"resourcePrefix": "mizar.spot"}), ANOTHERS),
    "prefix of the cards": (
        _pool({"resourcePrefix": "cards.example", "physicalResource": "cards.example/gpu"}),
        "resourcePrefix is the prefix of physicalResource, which another device plugin offers",
    ),
    "alias of whole cards": (_pool(_alias("nvidia.com/gpu")), OF_WHOLE_CARDS),
    "alias of instances": (_pool(_alias("nvidia.com/mig-2g.10gb")), OF_WHOLE_CARDS),
    "alias of a tenant's": (_pool(_alias("a.mizar.share/gpu.2")), "is a name that Mizar uses"),
    "alias of Kubernetes": (_pool(_alias("x.kubernetes.io/a")), "must be an extended"),
    "alias without a slash": (_pool(_alias("vgpu")), "must be an extended resource"),
    "alias of the cards": (
        _pool({"physicalResource": "a.example/b", **_alias("a.example/b")}),
        "each alias must be unique and differ from physicalResource",
    ),
    "an alias twice": (
        _pool({"profiles": _alias("a.b/c")["profiles"] + _alias("a.b/c", 4)["profiles"]}),
        "each alias must be unique",
    ),
    "size of whole cards": (_pool(_size("nvidia.com/gpu")), OF_WHOLE_CARDS),
    "size by an alias": (
        _pool(_size("a.example/vgpu")),
        "the name of a size must differ from physicalResource and from each alias",
    ),
    "size of no profile": (
        _pool(_size("a.example/mib", devices=4)),
        "devices of a size must be those of a profile of the pool",
    ),
    "size of no unit": (_pool(_size("a.example/mib", units=0)), "greater than or equal to 1"),
    "prefix too long": (
        _pool({"resourcePrefix": "gpu." + "a" * 180}),
        "may not be more than 180 bytes",
    ),
    "physical resource dotted": (_pool({"physicalResource": "nvidia.com.gpu"}), A_RESOURCE),
    "physical resource of quotas": (_pool({"physicalResource": "requests.x.com/gpu"}), A_RESOURCE),
    "a toleration without key and operator": (
        _tolerating(effect="NoSchedule"),
        "a toleration without a key must have operator Exists: it then tolerates every taint",
    ),
    "a toleration of any value": (
        _tolerating(key="a", operator="Exists", value="b"),
        "with operator Exists there must be no value: leave it out, or write operator Equal",
    ),
    "seconds without NoExecute": (
        _tolerating(key="a", operator="Exists", effect="NoSchedule", tolerationSeconds=3),
        "tolerationSeconds needs effect NoExecute: set the effect or leave the seconds out",
    ),
    "a toleration's key": (
        _tolerating(key="a b", operator="Exists"),
        "key must be a taint key, such as nvidia.com/gpu",
    ),
    "a toleration's value": (
        _tolerating(key="a", value="b c"),
        "value must be a taint value: letters and digits, with -, _ and . between them",
    ),
    "a toleration's operator": (
        _tolerating(key="a", operator="Gt", value="1"),
        'Unsupported value: "Gt": supported values: "Exists", "Equal"',
    ),
    "a label that no node has": (
        _pool({"nodeSelector": {"a b": "c"}}),
        "a label is not valid on a node",
    ),
    "a label's value that no node has": (
        _pool({"nodeSelector": {"a": "b c"}}),
        "a label is not valid on a node",
    ),
    "a runtime class that cannot be": (
        _pool({"runtimeClassName": "NVIDIA"}),
        '"NVIDIA": is not a valid object name',
    ),
    "a runtime class with an empty label": (
        _pool({"runtimeClassName": "a..b"}),
        '"a..b": is not a valid object name',
    ),
    "alias with an empty label": (_pool(_alias("a..b/c")), "must be an extended resource"),
    "physical resource with an empty label": (_pool({"physicalResource": "a..b/c"}), A_RESOURCE),
    "pool's name too long": (_pool(name="p" * 64), SHORT),
    "pool's name with a dot": (_pool(name="p.q"), SHORT),
    "a field that does not exist": (
        _pool({"idleTimeout": 3}),
        'unknown field "spec.idleTimeout"',
    ),
    "max below min": (
        _quota(_numbers(min=2, max=1)),
        "min 2 is more than max 1: lower min or raise max",
    ),
    "max negative": (_quota(_numbers(max=-1)), "max in body should be greater than or equal to 0"),
    "max left out": (_quota(_numbers(min=0)), "spec.profiles[0].max: Required value"),
    "profile out of range": (
        _quota({"profiles": [{"devices": 300, "max": 1}]}),
        "devices in body should be less than or equal to 256",
    ),
    "quota's name too long": (_quota(name="q" * 64), SHORT),
    "quota's compute mode unknown": (
        _quota({"isolation": {"compute": "Fair"}}),
        'Unsupported value: "Fair"',
    ),
    "maxCards negative": (_quota({"maxCards": -1}), "maxCards in body should be greater than or"),
    "shadow pod that does not divide": (
        _shadow({"devices": 3, "cards": 2}),
        "3 devices cannot be spread evenly over 2 cards",
    ),
}

ONLY_THE_SERVER_KNOWS = {
    "a profile twice",
    "a backend that enforces nothing",
    "a backend that is not built",
    "a quota's backend that is not built",
    "more memory than there is",
    "more memory than there is, without quotes",
    "compute too small to count",
    "pool's name too long",
    "pool's name with a dot",
    "quota's name too long",
    "a field that does not exist",
}

ACCEPTED = {
    "a pool with nothing said": _pool(),
    "ten over one": _pool(_profiles((10, 1))),
    "memory per device": _pool(_memory("3Gi")),
    "memory in bytes": _pool(_memory(3221225472)),
    "the least memory per device": _pool(_memory("64Mi")),
    "scalings": _pool(
        {
            "memoryScaling": "1.5",
            "coreScaling": 2,
            "isolation": {"memory": "Oversubscribe"},
        }
    ),
    "less memory than there is": _pool({"memoryScaling": "0.5"}),
    "tolerations": _pool(
        {
            "tolerations": [
                {"operator": "Exists"},
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "team", "value": "a_b.c", "effect": "NoExecute", "tolerationSeconds": 60},
                {"key": "example.com/empty", "operator": "Equal", "value": ""},
            ]
        }
    ),
    "a selector": _pool({"nodeSelector": {"topology.kubernetes.io/zone": "a-1", "empty": ""}}),
    "isolation in part": _pool({"isolation": {"compute": "Weighted"}}),
    "a default quota": _pool({"defaultQuota": {"profiles": [{"devices": 2, "max": 1}]}}),
    "a default quota with all there is": _pool(
        {
            "defaultQuota": {
                "namespaceSelector": {
                    "matchLabels": {"gpu": "true", "example.com/team": ""},
                    "matchExpressions": [
                        {"key": "team", "operator": "NotIn", "values": ["a", "b"]},
                        {"key": "example.com/trial", "operator": "DoesNotExist"},
                    ],
                },
                "profiles": [{"devices": 2, "min": 1, "max": 1}, {"devices": 4, "max": 2}],
                "maxCards": 4,
                "isolation": {"compute": "Hard"},
                "idleTimeoutSeconds": 60,
            }
        }
    ),
    "a quota": _quota(),
    "a quota with all there is": _quota(
        {"maxCards": 4, "isolation": {"memory": "Oversubscribe"}, "idleTimeoutSeconds": 0}
    ),
    "a shadow pod": _shadow(),
    "a quota for borrowers alone": _object("GPUQuota", "borrows", {"spot": {"max": 2}}),
}

FOREVER = {
    "prefix": (
        _pool(name="forever"),
        {"resourcePrefix": "other.share"},
        "resourcePrefix cannot be changed: make another GPUPool with the new prefix",
    ),
    "tenancy": (
        _pool(name="forever"),
        {"tenancy": "Shared"},
        "tenancy cannot be changed: make another GPUPool and move quotas to it",
    ),
    "the physical resource": (
        _pool(name="forever"),
        {"physicalResource": "amd.com/gpu"},
        "physicalResource cannot be changed: make another GPUPool and move quotas to it",
    ),
    "a profile's cards": (
        _pool(_profiles((4, 2)), name="forever"),
        _profiles((4, 1)),
        "cards of a profile cannot be changed while shadow pods of the old shape may run",
    ),
    "a quota's pool": (
        _quota(name="forever"),
        {"pool": "another"},
        "pool cannot be changed: make another GPUQuota for the other pool",
    ),
    "a shadow pod's cards": (
        _shadow(name="forever"),
        {"cards": 2},
        "spec cannot be changed: delete this ShadowPod",
    ),
}


def _create(kube: Kube, body: Object, *flags: str) -> tuple[int, str]:
    return kube.attempt("create", "--filename=-", *flags, input=yaml.safe_dump(body))


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_manifest_is_refused_with_a_sentence(kube: Kube, case: str) -> None:
    body, sentence = REFUSED[case]
    status, answer = _create(kube, body, "--dry-run=server")
    assert status != 0 and sentence in answer


@pytest.mark.parametrize("case", sorted(REFUSED.keys() - ONLY_THE_SERVER_KNOWS))
def test_the_models_refuse_it_too(case: str) -> None:
    with pytest.raises(ValidationError):
        parse_kind(REFUSED[case][0])


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_good_manifest_is_accepted(kube: Kube, case: str) -> None:
    status, answer = _create(kube, ACCEPTED[case], "--dry-run=server", "--output=json")
    assert status == 0, answer
    parse_kind(yaml.safe_load(answer))


@pytest.mark.parametrize("case", FOREVER)
def test_what_must_not_change_cannot(kube: Kube, case: str) -> None:
    body, change, sentence = FOREVER[case]
    kube.apply(body)
    changed = {**body, "spec": {**body["spec"], **change}}
    status, answer = kube.attempt("apply", "--filename=-", input=yaml.safe_dump(changed))
    kube.run("delete", "--filename=-", input=yaml.safe_dump(body))
    assert status != 0 and sentence in answer


def test_a_profile_may_come_and_go_and_its_memory_change(kube: Kube) -> None:
    kube.apply(_pool(_profiles((2, 1), (4, 2)), name="changing"))
    kube.apply(_pool(_profiles((2, 1), (10, 1)), name="changing"))
    kube.apply(_pool(_memory("2Gi"), name="changing"))
    assert (kube.get("gpupool", "changing") or {})["spec"]["profiles"] == [
        {"devices": 2, "cards": 1, "memory": "2Gi"}
    ]


@pytest.mark.parametrize("said", [{}, {"spec": {}}, {"spec": {"isolation": {}}}])
def test_defaults_are_those_of_the_models(kube: Kube, said: Object) -> None:
    body = {"apiVersion": "mizar.share/v1alpha1", "kind": "GPUPool", **_meta("bare", None), **said}
    status, answer = _create(kube, body, "--dry-run=server", "--output=json")
    assert status == 0, answer
    pool = GPUPool.from_dict(yaml.safe_load(answer))
    assert pool.spec == GPUPool().spec and pool.spec.profiles == BUILT_IN_PROFILES
    written = yaml.safe_load(answer)["spec"]
    assert written["resourcePrefix"] == "mizar.share" and written["memoryScaling"] == "1"


def test_status_is_written_on_its_own(kube: Kube) -> None:
    kube.apply({**_quota(name="status"), "status": {"ready": 7}})
    assert "status" not in (kube.get("gpuquota", "status", NAMESPACE) or {})
    _patch_status(kube, "gpuquota", "status", {"ready": -3})
    assert (kube.get("gpuquota", "status", NAMESPACE) or {})["status"] == {"ready": -3}


def _patch_status(kube: Kube, kind: str, name: str, status: Object) -> None:
    patch = f"--patch={yaml.safe_dump({'status': status})}"
    where = ["--subresource=status", "--type=merge", f"--namespace={NAMESPACE}"]
    kube.run("patch", kind, name, *where, patch)


def _condition(type: str, status: str) -> Object:
    return {
        "type": type,
        "status": status,
        "reason": "Told",
        "lastTransitionTime": "2025-01-31T12:00:00Z",
    }


def _table(kube: Kube, *what: str) -> dict[str, str]:
    """The one row that kubectl prints, by column (columns are two spaces or more apart)."""
    head, row = kube.run("get", *what, f"--namespace={NAMESPACE}").splitlines()
    names = re.split(r"\s{2,}", head.strip())
    starts = [head.index(name) for name in names]
    ends = [*starts[1:], None]
    return {name: row[at:end].strip() for name, at, end in zip(names, starts, ends, strict=True)}


def test_columns_of_a_pool(kube: Kube) -> None:
    kube.apply(_pool(name="columns"))
    cards = GPUPool().status.cards.changed(total=4, held=1, healthy=3).to_dict()
    _patch_status(kube, "gpupool", "columns", {"cards": cards})
    row = _table(kube, "gpool", "columns")
    age = row.pop("AGE")
    assert row.pop("LENT") == "0"
    assert row == {"NAME": "columns", "CARDS": "1/4", "HEALTHY": "3", "IDLE-TIMEOUT": "300"}
    assert re.fullmatch(r"\d+s", age)


def test_columns_of_a_quota(kube: Kube) -> None:
    kube.apply(_quota(name="columns"))
    figures = {"ready": -1, "inUse": 2, "waiting": 1, "cards": 1}
    conditions = [_condition("Exhausted", "True"), _condition("Satisfied", "False")]
    _patch_status(kube, "gpuquota", "columns", {**figures, "conditions": conditions})
    row = _table(kube, "gquota", "columns")
    row.pop("AGE")
    assert row == {
        "NAME": "columns",
        "POOL": "pool",
        "READY": "-1",
        "IN-USE": "2",
        "WAITING": "1",
        "CARDS": "1",
        "SATISFIED": "False",
    }


def test_columns_of_a_shadow_pod(kube: Kube) -> None:
    kube.apply(_shadow())
    name = "shadow-2-abcde"
    told = {"phase": "Ready", "node": "node-1", "usage": "0/2", "idleSince": "2025-01-31T12:00:00Z"}
    _patch_status(kube, "shadowpod", name, told)
    row = _table(kube, "shadow", name)
    row.pop("AGE")
    idle = row.pop("IDLE-SINCE")
    assert row == {
        "NAME": name,
        "PHASE": "Ready",
        "NODE": "node-1",
        "PROFILE": "2",
        "IN-USE": "0/2",
    }
    assert re.fullmatch(r"[0-9ydh]+", idle)


def test_one_word_lists_all_of_mizar(kube: Kube) -> None:
    kube.apply(_pool(name="listed"), _quota(name="listed"), _shadow(name="listed"))
    listed = kube.run("get", "mizar", f"--namespace={NAMESPACE}", "--output=name").split()
    assert {
        "gpupool.mizar.share/listed",
        "gpuquota.mizar.share/listed",
        "shadowpod.mizar.share/listed",
    } <= set(listed)


def test_two_managers_share_a_status_without_conflict(kube: Kube) -> None:
    """Operator and node agent apply parts of one ShadowPod's status; neither removes the other's
    part."""
    name = "two-managers"
    kube.apply(_shadow(name=name))
    head = {key: value for key, value in _shadow(name=name).items() if key != "spec"}
    for manager, status in (
        ("mizar-operator", {"phase": "Ready", "conditions": [_condition("Scheduled", "True")]}),
        ("mizar-nodeagent", {"node": "node-1", "conditions": [_condition("Ready", "True")]}),
        ("mizar-operator", {"phase": "Draining", "conditions": [_condition("Scheduled", "True")]}),
    ):
        flags = ["--server-side", "--subresource=status", f"--field-manager={manager}"]
        kube.run("apply", *flags, "--filename=-", input=yaml.safe_dump({**head, "status": status}))
    status = (kube.get("shadowpod", name, NAMESPACE) or {})["status"]
    assert (status["phase"], status["node"]) == ("Draining", "node-1")
    assert sorted(one["type"] for one in status["conditions"]) == ["Ready", "Scheduled"]


BUDGET = 10_000_000
"""What a rule of a definition may cost, by Kubernetes' estimate, for all objects in a list."""
LARGEST = 3 * 1024 * 1024 - 2
"""Bytes of the largest request: as long is a number-or-string, for Kubernetes 1.30."""


def test_rules_of_memory_are_within_the_budget_of_kubernetes_1_30() -> None:
    """Later versions estimate less, so that the API server of these tests takes more than that.
    There, each mention of quantity or isQuantity, and each comparison of types by ==, costs a
    tenth of the field's size."""
    (crd,) = yaml.safe_load_all((ROOT / "crds" / "gpupools.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    profiles = spec["properties"]["profiles"]
    rules = profiles["items"]["properties"]["memory"]["x-kubernetes-validations"]
    assert len(rules) == 2
    for one in rules:
        uses = len(re.findall(r"(?:isQ|q)uantity\(self\)|type\(self\) ==", one["rule"]))
        assert uses * profiles["maxItems"] * (LARGEST // 10) < BUDGET, one["rule"]


@pytest.fixture
def older(kube: Kube) -> Iterator[list[Object]]:
    """Definitions of an earlier version, as helm made them: without a pool's default quota, and
    without the devices of a shadow pod's status."""
    older = [yaml.safe_load(one.read_text()) for one in sorted((ROOT / "crds").glob("*.yaml"))]
    for kind, part, field in (
        ("GPUPool", "spec", "defaultQuota"),
        ("ShadowPod", "status", "devices"),
    ):
        (one,) = (each for each in older if each["spec"]["names"]["kind"] == kind)
        schema = one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
        del schema["properties"][field]
        schema.pop("x-kubernetes-validations", None)
    kube.run("replace", "--field-manager=helm", "--filename=-", input=yaml.safe_dump_all(older))
    yield older
    kube.run("replace", f"--filename={ROOT / 'crds'}")


def test_an_operator_finds_out_that_definitions_are_older(
    kube: Kube, cluster: Cluster, older: list[Object]
) -> None:
    """What they lack is named until the commands of docs/upgrade.md replace those of helm."""

    async def lacking() -> list[str]:
        async with await KubeClient.connect(cluster.kubeconfig) as client:
            return await lacking_fields(client)

    wanted = ["GPUPool.spec.defaultQuota", "ShadowPod.status.devices"]
    wait_for("the API server to tell", lambda: asyncio.run(lacking()) == wanted, timeout=60)
    (line,) = re.findall(
        r"^kubectl (apply .*)/crds", (ROOT / "docs/upgrade.md").read_text(), re.MULTILINE
    )
    upgrade = f"{line.replace('charts/mizar', str(ROOT / 'charts/mizar'))}/crds"
    kube.run(*upgrade.split())
    wait_for("the upgrade to be told", lambda: asyncio.run(lacking()) == [], timeout=60)


def test_a_status_with_a_field_that_definitions_lack_is_refused(
    kube: Kube, older: list[Object]
) -> None:
    """As a whole: this is why an operator does not get ready beside them."""
    name = "older"
    kube.apply(_shadow(name=name))
    head = {key: value for key, value in _shadow(name=name).items() if key != "spec"}
    status = {"phase": "Ready", "devices": [{"id": "a/b-0", "card": "GPU-1"}]}
    flags = ["--server-side", "--subresource=status", "--field-manager=mizar-operator"]

    def refused() -> bool:
        body = yaml.safe_dump({**head, "status": status})
        code, said = kube.attempt("apply", *flags, "--filename=-", input=body)
        return code != 0 and "field not declared in schema" in said

    wait_for("the status to be refused", refused, timeout=60)
    assert "phase" not in (kube.get("shadowpod", name, NAMESPACE) or {}).get("status", {})
