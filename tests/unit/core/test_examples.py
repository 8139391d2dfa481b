"""Every example is complete in itself: its quotas fit its pools, its pods fit their quotas."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mizar_core.models import GPUPool, GPUQuota
from mizar_core.models.meta import ObjectMeta
from mizar_core.names import DEFAULT_POOL, SPOT_RESOURCE, parse_resource
from mizar_core.validation import check_pool_among, check_quota_against_pool, check_quota_among
from support.kinds import parse_kind

ROOT = Path(__file__).resolve().parents[3]
INSTALLED = GPUPool(metadata=ObjectMeta(name=DEFAULT_POOL))
"""What the chart installs."""

EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*"))


def _objects(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.yaml"))
    return [body for path in files for body in yaml.safe_load_all(path.read_text())]


def _kinds(folder: Path) -> tuple[dict[str, GPUPool], list[GPUQuota]]:
    bodies = [one for one in _objects(folder) if one["apiVersion"].startswith("mizar.share/")]
    parsed = [parse_kind(one) for one in bodies]
    made = (one for one in parsed if isinstance(one, GPUPool))
    pools = {one.metadata.name: one for one in (INSTALLED, *made)}
    return pools, [one for one in parsed if isinstance(one, GPUQuota)]


def _requests(folder: Path) -> Iterator[tuple[str, str]]:
    """(namespace, resource) of every container."""
    for body in _objects(folder):
        spec = body.get("spec", {}).get("template", body).get("spec", {})
        for container in spec.get("containers", []):
            for resource in container["resources"]["limits"]:
                yield body["metadata"]["namespace"], resource


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_quotas_fit_their_pools(folder: Path) -> None:
    pools, quotas = _kinds(folder)
    assert quotas
    for pool in pools.values():
        assert check_pool_among(pool, pools.values()) == []
    for quota in quotas:
        assert check_quota_against_pool(quota, pools[quota.spec.pool]) == []
        assert check_quota_among(quota, quotas, pools) == []


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_pods_ask_for_what_their_quota_has(folder: Path) -> None:
    quotas = {quota.metadata.namespace: quota for quota in _kinds(folder)[1]}
    requests = list(_requests(folder))
    assert requests
    for namespace, resource in requests:
        parsed, spec = parse_resource(resource), quotas[namespace].spec
        if resource == SPOT_RESOURCE:
            assert spec.spot and spec.spot.max
        else:
            assert parsed and spec.profile(parsed.profile)


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_the_readme_says_how_to_apply_it(folder: Path) -> None:
    assert f"kubectl apply -f examples/{folder.name}\n" in (folder / "README.md").read_text()
