"""Every hook, through every way in which a program can get hold of it."""

from __future__ import annotations

import pytest

from .conftest import run, shim_env
from .slot import MIB, Card, Slot, card_uuid

HOOKS = [
    "cuInit",
    "cuMemAlloc",
    "cuMemAlloc_v2",
    "cuMemAllocPitch",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuMemFree",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz",
    "cuMemGetInfo",
    "cuMemGetInfo_v2",
    "cuDeviceTotalMem",
    "cuDeviceTotalMem_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
]
OBJECTS = [
    "cuMemCreate",
    "cuMemImportFromShareableHandle",
    "cuMemExportToShareableHandle",
    "cuMulticastBindMem",
    "cuMemMapArrayAsync",
    "cuCtxCreate",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetLimit",
    "cuCtxFromGreenCtx",
    "cuGreenCtxDestroy",
    "cuArrayCreate",
    "cuArrayCreate_v2",
    "cuArray3DCreate",
    "cuArray3DCreate_v2",
    "cuMipmappedArrayCreate",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuLibraryGetKernel",
    "cuLibraryGetModule",
    "cuMemPoolCreate",
    "cuMemPoolImportPointer",
    "cuDeviceGraphMemTrim",
    "cuGraphInstantiate",
    "cuImportExternalMemory",
    "cuExternalMemoryGetMappedBuffer",
    "cuExternalMemoryGetMappedMipmappedArray",
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
]
OVERSUBSCRIBED = [
    "oversubscribed",
    "oversubscribed_async",
    "oversubscribed_elsewhere",
    "oversubscribed_green",
    "oversubscribed_nowhere",
    "oversubscribed_apart",
]
MORE = [
    "pitch",
    "foreign_card",
    "many",
    "small",
    "nvml_processes",
    *OVERSUBSCRIBED,
    "nothing_async",
    "locality_domain",
    "locality_domain_graph",
    "locality_domain_import",
    "default_host_pool",
    "unmap_beside_host_memory",
    "sparse_array_ends_with_its_context",
    "cuMemCreate_fails",
    "create_unremembered",
    "unmap_waits",
    "map_waits",
    "release_waits",
    "export_waits",
    "multicast_waits",
    "multicast_kept",
    "cuMemCreate_elsewhere",
    "import_makes_room",
    "first_context_too_large",
    "context_kept",
    "unseen_context",
    "unmeasured_context",
    "contexts_beyond_the_table",
    "pool_waits",
    "pool_reuse",
    "pool_gives_way",
    "pool_is_empty_after_its_context",
    "deferred_free_ends_with_its_context",
    "pool_grain",
    "capture",
    "import_in_context",
    "imports_wait",
    "import_unremembered",
    "ipc_of_another_card",
    "ipc_again",
]
WAYS = ["link", "dlsym", "default", "next", "found_dlsym", "proc", "proc_v1"]


def test_every_snippet_is_run(env: dict[str, str]) -> None:
    assert set(run("snippets", env=env).stdout.split()) == {*HOOKS, *OBJECTS, *MORE}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", HOOKS)
def test_hook(hook: str, way: str, env: dict[str, str]) -> None:
    run("snippets", hook, way, env=env)


@pytest.mark.parametrize("way", ["link", "dlsym", "proc"])
@pytest.mark.parametrize("hook", OBJECTS)
def test_object(hook: str, way: str, env: dict[str, str]) -> None:
    run("snippets", hook, way, env=env)


@pytest.mark.parametrize("hook", HOOKS)
def test_dlvsym(hook: str, slot: Slot) -> None:
    run("snippets", hook, "dlvsym", env=shim_env(slot.path, driver="versioned"))


@pytest.mark.parametrize("snippet", MORE)
def test_more(snippet: str, env: dict[str, str]) -> None:
    run("snippets", snippet, "dlsym", env=env)


LAUNCHES = [
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx",
    "cuLaunchKernelEx_ptsz",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernel_ptsz",
    "cuLaunchCooperativeKernelMultiDevice",
    "cuLaunch",
    "cuLaunchGrid",
    "cuLaunchGridAsync",
    "cuGraphLaunch",
    "cuGraphLaunch_ptsz",
]


def test_every_launch_is_run(env: dict[str, str]) -> None:
    assert run("launches", env=env).stdout.split() == LAUNCHES


@pytest.mark.parametrize("way", ["link", "dlsym", "proc", "proc_v1"])
@pytest.mark.parametrize("mode", ["free", "metered"])
@pytest.mark.parametrize("launch", LAUNCHES)
def test_launch(launch: str, mode: str, way: str, env: dict[str, str], slot: Slot) -> None:
    slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=int(mode == "metered")))
    run("launches", launch, way, mode, env=env)


@pytest.mark.parametrize("snippet", OVERSUBSCRIBED)
def test_oversubscription(snippet: str, env: dict[str, str], slot: Slot) -> None:
    slot.set_limits(Card(card_uuid(0), 64 * MIB, memory_mode=1))
    run("snippets", snippet, "proc", env=env | {"OVERSUBSCRIBE": "1"})
