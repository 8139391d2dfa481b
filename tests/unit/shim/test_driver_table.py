"""Every function of the driver is classified, and hooked where its class says so."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from .slot import ROOT

TOOL = ROOT / "shim" / "tools" / "driver_table.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("driver_table", TOOL)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["driver_table"] = module
    spec.loader.exec_module(module)
    return module


def test_the_hook_table_agrees(tool: ModuleType) -> None:
    assert tool.check_hooks() == []
    assert len(tool.read_table()) > 680


def test_a_new_function_is_noticed(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "cudaTypedefs.h").write_text(
        "typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)(void);\n"
        "typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v14000)(void);\n"
        "typedef CUresult (CUDAAPI *PFN_cuMemAllocQuantum_v14000_ptsz)(void);\n"
    )
    assert tool.check_headers(tmp_path) == [
        "cuMemAlloc of CUDA 14000 (-) is not in driver.txt",
        "cuMemAllocQuantum of CUDA 14000 (ptsz) is not in driver.txt",
    ]
