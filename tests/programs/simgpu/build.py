"""Compiles the simulated libraries, once for each version of their sources."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from simgpu.generate import generate

SOURCES = Path(__file__).parent / "src"
CFLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden")
LDFLAGS = (
    "-shared",
    "-Wl,-Bsymbolic",  # a preloaded shim must not intercept the driver's own calls
    "-Wl,-z,nodelete,-z,defs,-z,relro",
    f"-Wl,--version-script={SOURCES / 'exports.map'}",
)
STATE = (
    *("state.c", "process_slots.c", "usage.c"),
    *("clock.c", "time_sharing.c", "harsh.c", "missing.c"),
)
NOT_DRIVER = ("admin.c", *STATE)

CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
ADMIN = "libsimgpu-admin.so"


class BuildError(RuntimeError):
    """The compiler rejected the sources. The message is the compiler's."""


def cache_root() -> Path:
    """The folder of compiled files: ${MIZAR_CACHE:-${XDG_CACHE_HOME:-~/.cache}/mizar}."""
    if own := os.environ.get("MIZAR_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "mizar"


def compiler() -> str:
    return os.environ.get("CC", "cc")


def content_hash(paths: list[Path], *words: str) -> str:
    """A short hash of the files' names and contents and of `words`."""
    digest = hashlib.sha256("\0".join(words).encode())
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def compile_c(arguments: list[str]) -> None:
    """Run the compiler. Raises BuildError with its messages."""
    done = subprocess.run([compiler(), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{compiler()} failed:\n{done.stderr.strip()}")


def _library_sources() -> dict[str, list[str]]:
    everything = sorted(path.name for path in SOURCES.glob("*.c"))
    nvml = [name for name in everything if name.startswith("nvml_")]
    driver = [name for name in everything if name not in NOT_DRIVER and name not in nvml]
    return {
        CUDA: [*STATE, *driver],
        NVML: [*STATE, *nvml],
        ADMIN: [*STATE, "admin.c"],
    }


def _compile_into(folder: Path, extra: tuple[str, ...]) -> None:
    generated = generate(SOURCES, folder / "generated")
    stubs = {CUDA: generated.driver_stubs, NVML: generated.nvml_stubs, ADMIN: None}
    for name, sources in _library_sources().items():
        inputs = [str(SOURCES / source) for source in sources]
        if stub := stubs[name]:
            inputs.append(str(stub))
        flags = [
            *CFLAGS,
            *extra,
            *LDFLAGS,
            f"-Wl,-soname,{name}",
            f"-I{SOURCES}",
            f"-I{generated.folder}",
        ]
        compile_c([*flags, *inputs, "-o", str(folder / name), "-pthread"])
    shutil.rmtree(generated.folder)


def compiled(extra: tuple[str, ...] = ()) -> Path:
    """The folder with the three libraries, compiled if necessary. Several processes may call this
    at once."""
    inputs = [*SOURCES.iterdir(), Path(__file__).parent / "generate.py"]
    key = content_hash(inputs, compiler(), *CFLAGS, *LDFLAGS[:-1], *extra)
    done = cache_root() / "simgpu" / key
    if done.is_dir():
        return done
    done.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=done.parent))
    try:
        _compile_into(draft, extra)
        draft.chmod(0o755)
        draft.rename(done)
    except OSError:
        if not done.is_dir():  # otherwise another process has compiled the same
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return done


def build(dest: Path | str) -> Path:
    """Put libcuda.so.1 and libnvidia-ml.so.1 into `dest`, under the names that programs load.

    Returns `dest`. The libraries are compiled once per content of the sources and kept in the
    cache. Raises BuildError with the compiler's messages."""
    dest = Path(dest)
    dest.mkdir(parents=True, exist_ok=True)
    source = compiled()
    for name in (CUDA, NVML):
        draft = dest / f".{name}.{os.getpid()}"
        shutil.copyfile(source / name, draft)
        draft.chmod(0o755)
        draft.replace(dest / name)
    return dest
