"""The generator of the CRDs: nothing drifts, and what would lose meaning is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.crd_schema import Converter, without_defaults

ROOT = Path(__file__).resolve().parents[3]
CRDS = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]


def _version(crd: dict[str, Any]) -> dict[str, Any]:
    (version,) = crd["spec"]["versions"]
    return dict(version)


def test_committed_files_are_what_the_models_say() -> None:
    command = [sys.executable, "hack/gen_crds.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_three_kinds_have_the_names_that_users_type() -> None:
    names = {crd["spec"]["names"]["kind"]: crd["spec"]["names"]["shortNames"] for crd in CRDS}
    assert names == {"GPUPool": ["gpool"], "GPUQuota": ["gquota"], "ShadowPod": ["shadow"]}
    scopes = {crd["spec"]["names"]["kind"]: crd["spec"]["scope"] for crd in CRDS}
    assert scopes == {"GPUPool": "Cluster", "GPUQuota": "Namespaced", "ShadowPod": "Namespaced"}


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["kind"])
def test_no_tool_prunes_a_definition_and_all_of_its_objects(crd: dict[str, Any]) -> None:
    assert crd["metadata"]["annotations"] == {
        "helm.sh/resource-policy": "keep",
        "argocd.argoproj.io/sync-options": "Prune=false",
        "kustomize.toolkit.fluxcd.io/prune": "disabled",
    }


@pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd["spec"]["names"]["kind"])
def test_status_is_a_subresource_without_defaults(crd: dict[str, Any]) -> None:
    version = _version(crd)
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert version["subresources"]["status"] == {}
    assert without_defaults(status) == status


def test_a_shadow_pod_says_how_many_pods_it_stands_for() -> None:
    """Tenants' PodDisruptionBudgets ask, if they select all pods of their namespace."""
    (crd,) = (one for one in CRDS if one["spec"]["names"]["kind"] == "ShadowPod")
    version = _version(crd)
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    replicas = {key: spec["replicas"][key] for key in ("default", "minimum", "maximum")}
    assert replicas == {"default": 1, "minimum": 1, "maximum": 1}
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"


def test_a_union_is_refused() -> None:
    union = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    with pytest.raises(ValueError, match="no unions"):
        Converter({}).convert(union)


def test_a_word_that_kubernetes_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="no 'patternProperties'"):
        Converter({}).convert({"type": "object", "patternProperties": {}})


def test_optional_fields_are_not_null() -> None:
    optional = {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "X"}
    assert Converter({}).convert(optional) == {"type": "integer"}
