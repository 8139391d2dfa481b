"""What definitions of Mizar's kinds lack that this operator knows."""

from pathlib import Path
from typing import Any

import pytest

from mizar_kube.errors import Forbidden, KubeError, Unavailable
from mizar_kube.kinds import Object
from mizar_operator.crd_check import PATH, lacking_fields
from support.chart import parsed

CRDS = Path(__file__).parents[3] / "crds"


class Api:
    """Tells schemas as an API server with these definitions does, or fails."""

    def __init__(self, definitions: list[Object], error: KubeError | None = None) -> None:
        self._definitions = definitions
        self._error = error

    async def request(self, method: str, path: str, **_: Any) -> Object:
        assert (method, path) == ("GET", PATH)
        if self._error is not None:
            raise self._error
        schemas = {f"share.mizar.v1alpha1.{kind_of(one)}": told(one) for one in self._definitions}
        part = {"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {"type": "object"}}
        return {"components": {"schemas": schemas | part}}


def kind_of(definition: Object) -> str:
    return str(definition["spec"]["names"]["kind"])


def told(definition: Object) -> Object:
    spec = definition["spec"]
    (version,) = spec["versions"]
    named = {"group": spec["group"], "version": version["name"], "kind": kind_of(definition)}
    schema: Object = version["schema"]["openAPIV3Schema"]
    return schema | {"x-kubernetes-group-version-kind": [named]}


@pytest.fixture
def definitions() -> list[Object]:
    """Those that the chart brings, by their kinds' names."""
    return [each for one in sorted(CRDS.glob("*.yaml")) for each in parsed(one.read_text())]


def without(definitions: list[Object], kind: str, *path: str) -> None:
    """Remove a field; `[]` in the path means the items of a list."""
    (found,) = (one for one in definitions if kind_of(one) == kind)
    node = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path[:-1]:
        node = node["items"] if name == "[]" else node["properties"][name]
    del node["properties"][path[-1]]


async def lacking(definitions: list[Object], error: KubeError | None = None) -> list[str]:
    return await lacking_fields(Api(definitions, error))  # type: ignore[arg-type]


async def test_those_of_the_chart_lack_nothing(definitions: list[Object]) -> None:
    assert len(definitions) == 3
    assert await lacking(definitions) == []


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("GPUPool", ["spec", "defaultQuota"]),
        ("GPUPool", ["spec", "defaultQuota", "namespaceSelector", "matchExpressions"]),
        ("GPUQuota", ["spec", "isolation", "compute"]),
        ("GPUQuota", ["status", "profiles", "[]", "ready"]),
        ("ShadowPod", ["status", "devices", "[]", "holder"]),
        ("ShadowPod", ["status", "conditions"]),
        ("ShadowPod", ["status"]),
    ],
)
async def test_a_field_that_is_missing_is_named(
    definitions: list[Object], kind: str, path: list[str]
) -> None:
    """Wherever it is; what is below it is not named."""
    without(definitions, kind, *path)
    assert await lacking(definitions) == [".".join([kind, *(one for one in path if one != "[]")])]


async def test_a_field_that_only_a_later_operator_knows_does_not_matter(
    definitions: list[Object],
) -> None:
    """As after a rollback, which leaves the definitions as they are."""
    for one in definitions:
        spec = one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        spec["properties"]["later"] = {"type": "string"}
    assert await lacking(definitions) == []


async def test_what_keeps_unknown_fields_lacks_none(definitions: list[Object]) -> None:
    for one in definitions:
        parts = one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        parts["spec"] = parts["status"] = {"x-kubernetes-preserve-unknown-fields": True}
    assert await lacking(definitions) == []


async def test_an_api_server_that_is_away_is_asked_again_without_a_word(
    definitions: list[Object], caplog: pytest.LogCaptureFixture
) -> None:
    """Readiness, which asks every two seconds, says that it does not answer."""
    caplog.set_level("INFO")
    assert await lacking(definitions, Unavailable("no answer")) == []
    assert not caplog.text


async def test_an_api_server_that_does_not_tell_is_believed_to_have_all(
    definitions: list[Object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert await lacking(definitions, Forbidden("no")) == []
    assert "does not publish the schemas" in caplog.text
    assert await lacking([]) == []
