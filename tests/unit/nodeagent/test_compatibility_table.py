"""The table for users of HAMi and of NVIDIA's plugin names all that they can set there, and nothing
that does not exist here."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from mizar_core.models import GPUPoolSpec, Isolation, Profile
from mizar_nodeagent.config import CardAccess, Config
from mizar_nodeagent.overrides.model import MOUNTED, PLAIN

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "compatibility.md"
METRICS = ROOT / "docs" / "metrics.md"
VALUES = ROOT / "charts" / "mizar" / "values.yaml"

NVIDIA_FLAGS = """
cdi-annotation-prefix cdi-feature-flags config-file container-driver-root dev-root
device-discovery-strategy device-id-strategy device-list-strategy driver-root driver-root-ctr-path
fail-on-init-error gdrcopy-enabled gds-enabled imex-channel-ids imex-required kubelet-socket
mig-strategy mofed-enabled mps-root nvidia-cdi-hook-path nvidia-ctk-path nvidia-dev-root
nvidia-driver-root pass-device-specs restart-on-device-unhealthy
"""
"""Flags of NVIDIA's plugin: cmd/nvidia-device-plugin/main.go."""
NVIDIA_VARIABLES = """
CDI_ANNOTATION_PREFIX CDI_FEATURE_FLAGS CONFIG_FILE CONTAINER_DRIVER_ROOT DEVICE_DISCOVERY_STRATEGY
DEVICE_ID_STRATEGY DEVICE_LIST_STRATEGY DP_DISABLE_HEALTHCHECKS DP_ENABLE_HEALTHCHECKS
DRIVER_ROOT_CTR_PATH FAIL_ON_INIT_ERROR GDRCOPY_ENABLED GDS_ENABLED IMEX_CHANNEL_IDS IMEX_REQUIRED
KUBELET_SOCKET MIG_STRATEGY MOFED_ENABLED MPS_ROOT NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH
NVIDIA_DEV_ROOT NVIDIA_DRIVER_ROOT PASS_DEVICE_SPECS RESTART_ON_DEVICE_UNHEALTHY
"""
"""Environment variables of NVIDIA's plugin: the same file, and internal/rm/health.go."""
NVIDIA_KEYS = """
resources.gpus resources.migs sharing.mps sharing.timeSlicing.failRequestsGreaterThanOne
sharing.timeSlicing.renameByDefault sharing.timeSlicing.replicas
sharing.timeSlicing.resources[].devices sharing.timeSlicing.resources[].rename
"""
"""Settings in the file of --config-file that are not flags."""
HAMI = """
--device-cores-scaling --device-memory-scaling --device-split-count --disable-core-limit
--node-name --resource-name ACTIVE_OOM_KILLER CUDA_DEVICE_MEMORY_LIMIT_i
CUDA_DEVICE_MEMORY_SHARED_CACHE CUDA_DEVICE_SM_LIMIT CUDA_DISABLE_CONTROL CUDA_OVERSUBSCRIBE
CUDA_TASK_PRIORITY GPU_CORE_UTILIZATION_POLICY LIBCUDA_LOG_LEVEL filterdevices
hami.io/gpu-scheduler-policy hami.io/node-scheduler-policy hami.io/webhook
knownMigGeometries nodeconfig nodeconfig[].operatingmode nouse-gputype
nouse-gpuuuid nvidia.com/numa-bind nvidia.com/priority nvidia.com/use-gputype
nvidia.com/use-gpuuuid nvidia.com/vgpu-mode overwriteEnv runtimeClassName
"""
"""Settings of HAMi: of its device plugin, its device configuration, its library, and of pods."""


def rows() -> Iterator[tuple[str, str]]:
    """The rows of the tables of settings: the setting there, and the setting here."""
    settings, _, _ = TABLE.read_text().partition("## Any size per pod")
    for line in settings.splitlines():
        if line.startswith("| ") and not line.startswith("| there"):
            _, there, here, _ = re.split(r"(?<!\\)\|", line)
            yield there, here


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


THERE = {name.partition(":")[0] for there, _ in rows() for name in quoted(there)}


@pytest.mark.parametrize(
    "names",
    [
        [f"--{name}" for name in NVIDIA_FLAGS.split()],
        NVIDIA_VARIABLES.split(),
        NVIDIA_KEYS.split(),
        HAMI.split(),
    ],
    ids=["flags", "variables", "keys", "HAMi"],
)
def test_all_that_can_be_set_there_is_in_the_table(names: list[str]) -> None:
    assert not [name for name in names if name not in THERE]


def fields(kind: type[BaseModel], prefix: str = "") -> set[str]:
    return {prefix + to_camel(name) for name in kind.model_fields}


def values() -> Iterator[str]:
    """The chart's values, down to two levels: `nodeagent.overrides`."""
    for name, inside in yaml.safe_load(VALUES.read_text()).items():
        yield from (f"{name}.{one}" for one in inside) if isinstance(inside, dict) else [name]


def test_each_setting_that_it_names_exists() -> None:
    """Of pools and quotas, of the node agent, and of the chart. Such a name has a capital letter or
    a dot in it and may have a value, as `isolation.compute: None`."""
    known = {
        *fields(GPUPoolSpec),
        *fields(Isolation, "isolation."),
        *fields(Profile, "profiles[]."),
        *fields(Config),
        *fields(CardAccess),
        *fields(CardAccess, "cardAccess."),
        *values(),
    }
    texts = {name.partition(":")[0] for _, here in rows() for name in quoted(here)}
    named = {one for one in texts if re.fullmatch(r"[a-z]+(\[\])?([A-Z.][a-zA-Z]+)+", one)}
    elsewhere = {"kubernetes.io"}
    assert {"resourcePrefix", "profiles[].alias", "nodeagent.overrides", "driverRoot"} <= named
    assert not named - known - elsewhere


def test_each_metric_that_it_names_exists() -> None:
    named = {one for _, here in rows() for one in re.findall(r"\bmizar_\w+", here)}
    assert named and named <= set(re.findall(r"^\| `(mizar_\w+)`", METRICS.read_text(), re.M))


def test_it_says_exactly_what_overrides_may_have() -> None:
    (said,) = [here for _, here in rows() if "`nodeagent.overrides`" in here]
    may = quoted(said.partition("but for")[0]) - {"nodeagent.overrides"}
    assert may == {*map(to_camel, PLAIN), "cardAccess"} and set(PLAIN) < Config.model_fields.keys()
    same = quoted(said.partition("but for")[2].partition("which")[0])
    # Only the chart sets hostRoot.
    assert same == {to_camel(name) for name in MOUNTED} - {"hostRoot"}
    assert "`resourcePrefix`" in said, "the price of another pool"
