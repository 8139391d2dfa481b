"""runtime/program.c, compiled with NVIDIA's own runtimes, shared and static: the newest of each
major version, out of the packages of shim/cuda-headers.lock."""

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from unit.simgpu.harness import FLAGS, cached_program

RUNTIME = Path(__file__).parent / "runtime"
TOOLS = Path(__file__).parents[3] / "shim" / "tools"
WITHOUT_STATIC = "cu11"  # this package has no libcudart_static.a

sys.path.append(str(TOOLS))
from cuda_headers import Package, fetch, packages  # noqa: E402


def _wanted(path: Path) -> bool:
    """The wanted headers, in one folder: they name one another without a folder, except for
    crt/."""
    library = path.name.startswith("libcudart") or path.name == "libculibos.a"
    return library or (path.suffix == ".h" and path.parent.name == "include")


@dataclass(frozen=True)
class Build:
    """One way to make a program that uses CUDA's runtime."""

    package: Package
    static: bool

    def __str__(self) -> str:
        return f"{self.package.version}-{'static' if self.static else 'shared'}"

    def _linked(self, folder: Path) -> list[str]:
        if not self.static:
            (library,) = folder.glob("libcudart.so.*")
            return [str(library), f"-Wl,-rpath,{folder}"]
        archives = [folder / "libcudart_static.a", *folder.glob("libculibos.a")]
        return [*map(str, archives), "-ldl", "-lrt", "-lpthread"]

    def program(self) -> Path:
        """The compiled program; the test is skipped where NVIDIA's package cannot be had."""
        if platform.machine() != "x86_64":
            pytest.skip("shim/cuda-headers.lock pins CUDA's runtime for x86_64 alone")
        try:
            folder = fetch(self.package, "cuda-runtime", _wanted)
        except SystemExit as missing:
            pytest.skip(f"CUDA's runtime is needed: {missing}")
        source = RUNTIME / "program.c"
        headers = ["-isystem", str(folder), "-isystem", str(RUNTIME)]
        arguments = [*FLAGS, str(source), *headers, *self._linked(folder)]
        inputs = [source, RUNTIME / "crt" / "host_defines.h"]
        return cached_program(f"runtime-{self}", inputs, arguments)


def builds() -> list[Build]:
    """Every build of the newest runtime of each major version."""
    newest = {package.name: package for package in packages()}.values()
    return [
        Build(package, static)
        for package in newest
        for static in (False, True)
        if not (static and package.name.endswith(WITHOUT_STATIC))
    ]
