"""The hook table is made of cuda_calls.txt, and every function of the driver has a class there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from .slot import ROOT


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    folder = str(ROOT / "shim" / "tools")
    sys.path.insert(0, folder)
    import hook_table

    yield hook_table
    sys.path.remove(folder)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_table_is_the_one_of_its_sources(tool: ModuleType) -> None:
    assert tool.TABLE.read_text() == tool.table(), tool.STALE


def test_the_whole_driver_is_classified(tool: ModuleType) -> None:
    functions = tool.read_driver()
    assert len(functions) > 700
    assert len({function.entry for function in functions}) == len(functions)
    assert len({function.symbol for function in functions}) == len(functions)


def test_symbols_follow_from_versions(tool: ModuleType, tmp_path: Path) -> None:
    table = write(
        tmp_path / "cuda_calls.txt",
        "[takes, hooked]  # why",
        "cuAlloc 2000 3020 7000_ptsz",
        "[passes]",
        "cuPass 2000",
    )
    made = [(str(f.entry), f.symbol, f.hooked) for f in tool.read_driver(table)]
    assert made == [
        ("2000", "cuAlloc", True),
        ("3020", "cuAlloc_v2", True),
        ("7000_ptsz", "cuAlloc_v2_ptsz", True),
        ("2000", "cuPass", False),
    ]


def test_what_is_written(tool: ModuleType, tmp_path: Path) -> None:
    table = write(
        tmp_path / "cuda_calls.txt",
        "[takes, hooked]",
        "cuAlloc 2000 7000_ptsz",
        "cuAllocNow 11000",
        "[passes]",
        "cuPass 13000",
    )
    text = tool.render(
        tool.read_driver(table), {"nvmlOne": True, "nvmlTwo": False}, {"cuAlloc", "cuPass"}
    )
    assert [line for line in text.splitlines() if line[:4] in ("HOOK", "NEED", "NEWE")] == [
        "NEWEST_CUDA(13000)",
        *(f'HOOK(LIBC, {name}, "", 0, ANY)' for name in tool.LIBC),
        'HOOK(CUDA, cuAlloc, "cuAlloc", 2000, ANY)',
        'HOOK(CUDA, cuAlloc_ptsz, "cuAlloc", 7000, PER_THREAD)',
        'HOOK(CUDA, cuAllocNow, "cuAllocNow", 11000, ANY)',
        'HOOK(NVML, nvmlOne, "", 0, ANY)',
        "NEED(CUDA, cuPass)",
    ]


def test_a_new_function_is_noticed(tool: ModuleType, tmp_path: Path) -> None:
    import cuda_headers

    write(
        tmp_path / "cudaTypedefs.h",
        "typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)(CUdeviceptr *dptr, size_t bytes);",
        "typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v14000)(void);",
        "typedef CUresult (CUDAAPI *PFN_cuMemAllocQuantum_v14000_ptsz)(void);",
    )
    published = cuda_headers.functions(tmp_path)
    assert tool.check_entries(published, tool.read_driver(), "14.0") == [
        tool.UNCLASSIFIED.format(name="cuMemAlloc", entry="14000", release="14.0"),
        tool.UNCLASSIFIED.format(name="cuMemAllocQuantum", entry="14000_ptsz", release="14.0"),
    ]


def test_a_new_function_of_nvml_is_noticed(tool: ModuleType) -> None:
    published = {"nvmlDeviceGetMemoryInfo_v9", "nvmlDeviceGetTemperature_v9"}
    (wrong,) = tool.check_nvml(published, tool.read_nvml())
    assert wrong.startswith("nvmlDeviceGetMemoryInfo_v9 of NVML has no class: put it")
