"""Reads the names that NVIDIA publishes: CUDA's headers, from the packages of cuda-headers.lock,
and the functions of NVML, from the installed pynvml.

NVIDIA's headers are not kept in this repository but in ~/.cache/mizar/cuda-headers. Tests also use
fetch() to get the CUDA runtime of the same packages.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hook_table import SHIM, Entry, Function

LOCK = SHIM / "cuda-headers.lock"
TYPEDEFS = "cuda*Typedefs.h"
NEWER = (
    "CUDA {newest} is out, cuda-headers.lock ends with {last}: add it there, then run"
    " `make -C shim headers`"
)


LOOK = ("index", "versions", "--retries=1", "--timeout=10")


@dataclass(frozen=True)
class Package:
    """One line of cuda-headers.lock."""

    name: str
    version: str
    line: str


def packages() -> list[Package]:
    """The packages, oldest first. `make check` compares with the last one."""
    lines = [line for line in LOCK.read_text().splitlines() if line and line[0] != "#"]
    found = [re.match(r"([\w-]+)==([\d.]+) ", line) for line in lines]
    return [Package(m[1], m[2], m.string) for m in found if m]


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "mizar"


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _declares(path: Path) -> bool:
    return path.name == "cuda.h" or path.match(TYPEDEFS)


def _download(package: Package, into: Path, wanted: Callable[[Path], bool]) -> None:
    """Put the wanted files of the package into `into`, checked against the lock. The headers are
    the same on all platforms."""
    with tempfile.TemporaryDirectory() as scratch:
        lock = Path(scratch) / "lock"
        lock.write_text(package.line + "\n")
        platform = ["--only-binary=:all:", "--platform=manylinux2014_x86_64"]
        platform += ["--platform=manylinux1_x86_64", "--platform=manylinux_2_17_x86_64"]
        _pip("download", "-q", "--retries=1", "--timeout=20", "--no-deps", *platform,
             "--require-hashes", "-d", scratch, "-r", str(lock))  # fmt: skip
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                path = Path(name)
                if path.name and wanted(path):
                    (into / path.name).write_bytes(archive.read(name))


def fetch(
    package: Package, what: str = "cuda-headers", wanted: Callable[[Path], bool] = _declares
) -> Path:
    """The folder with the wanted files of the package, by default cuda.h and its typedefs.

    It is kept in the folder `what` of the cache. Raises SystemExit, which says why, if the package
    cannot be downloaded."""
    folder = _cache() / what / f"{package.name}-{package.version}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        _download(package, fresh, wanted)
        fresh.rename(folder)
    except subprocess.CalledProcessError as error:
        missed = f"{package.name} {package.version} could not be had"
        raise SystemExit(f"{missed}:\n{error.stderr}") from None
    except OSError:
        if not folder.is_dir():  # otherwise another process has fetched the same
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


# ---- what the headers declare ----


def functions(folder: Path) -> dict[Entry, str]:
    """Every entry in the typedefs, with its parameters."""
    pattern = r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d{4,5})(?:_(ptsz|ptds))?\)\(([^;]*)\);"
    text = "".join(path.read_text() for path in sorted(folder.glob(TYPEDEFS)))
    return {
        Entry(base, int(since), flavour): parameters
        for base, since, flavour, parameters in re.findall(pattern, text)
    }


def exports(folder: Path) -> set[str]:
    """The symbols that cuda.h declares, whatever macros it is compiled with."""
    text = (folder / "cuda.h").read_text()
    names = set(re.findall(r"CUDAAPI\s+(cu\w+)\s*\(", text))
    return names | {new for _, new in re.findall(r"#define (cu\w+)\s+(cu\w+)\s*$", text, re.M)}


def nvml_functions() -> set[str]:
    """Every NVML function that pynvml looks up."""
    spec = importlib.util.find_spec("pynvml")
    if not spec or not spec.origin:
        raise SystemExit("pynvml is not installed: run `make setup`")
    text = Path(spec.origin).read_text()
    return set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', text))


def newer() -> list[str]:
    """A line for the user if a CUDA newer than every pinned one is published, or if that cannot be
    found out."""
    last = packages()[-1]
    try:
        newest = re.search(r"\(([\d.]+)\)", _pip(*LOOK, last.name))
    except subprocess.CalledProcessError as error:
        why = error.stderr.strip().splitlines()[-1:]
        return [f"whether a newer CUDA is out cannot be seen now: {' '.join(why)}"]
    if not newest or newest[1].split(".")[:2] == last.version.split(".")[:2]:
        return []
    return [NEWER.format(newest=newest[1], last=last.version)]


def check_exports(folder: Path, known: list[Function], package: Package) -> list[str]:
    """Hooked functions of this CUDA for which cuda.h has another symbol than the hook table."""
    published, declared = functions(folder), exports(folder)
    return [
        f"{function.symbol} is not what cuda.h of CUDA {package.version} calls"
        f" {function.entry.base} {function.entry}"
        for function in known
        if function.hooked and not function.entry.flavour and function.entry in published
        and function.symbol not in declared
    ]  # fmt: skip


# ---- parameters ----


def _types(parameters: str) -> list[str]:
    """The types of the parameters, with `pointer` for every pointer and array."""
    found = []
    for one in parameters.split(","):
        one = one.strip()
        if one in ("", "void"):
            continue
        pointer = "*" in one or "[" in one
        words = [word for word in one.split() if word != "const"]
        named = len(words) > 1 and words[-1] not in ("int", "long", "char")
        found.append("pointer" if pointer else " ".join(words[:-1] if named else words))
    return found


def _sizes(types: Iterable[str], include: str, folder: Path) -> dict[str, int]:
    """sizeof of each type, by the compiler."""
    names = sorted(set(types) - {"pointer"})
    rows = "".join(f'printf("%zu %s\\n", sizeof({name}), "{name}");' for name in names)
    code = f'#include <stdio.h>\n#include "{include}"\nint main(void){{{rows}return 0;}}'
    with tempfile.TemporaryDirectory() as scratch:
        program = str(Path(scratch) / "sizes")
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-w", "-x", "c", "-", f"-I{folder}", "-o", program]
        command += ["-D__CUDA_API_VERSION_INTERNAL"]
        subprocess.run(command, input=code, text=True, check=True)
        told = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    pairs = (line.split(" ", 1) for line in told.splitlines())
    return {name: int(size) for size, name in pairs} | {"pointer": 8}


def _declared(path: Path) -> dict[str, list[str]]:
    """The parameter types of the driver functions in cuda_api.h, after macro expansion."""
    command = [os.environ.get("CC", "cc"), "-E", "-P", f"-I{SHIM / 'src'}", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ *CUresult (cu\w+) ?\(([^;]*?)\);", text, re.MULTILINE | re.DOTALL)
    return {name: _types(parameters) for name, parameters in found}


def check_parameters(folder: Path, published: dict[Entry, str], known: list[Function]) -> list[str]:
    """Functions whose declaration in cuda_api.h has parameters of other sizes than CUDA's own."""
    ours = _declared(SHIM / "src" / "base" / "cuda_api.h")
    theirs = {
        function.symbol: _types(published[function.entry])
        for function in known
        if function.entry in published and function.symbol in ours
    }
    width = _sizes((t for types in theirs.values() for t in types), "cuda.h", folder)
    own = _sizes((t for name in theirs for t in ours[name]), "base/cuda_api.h", SHIM / "src")
    return [
        f"{name} takes other parameters in shim/src/base/cuda_api.h than in cuda.h"
        for name, types in theirs.items()
        if [width[t] for t in types] != [own[t] for t in ours[name]]
    ]
