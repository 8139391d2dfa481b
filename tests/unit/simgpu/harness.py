"""Snippets in C that call the simulated driver, compiled once, and how to run them."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import simgpu
from simgpu.build import SOURCES, cache_root, compile_c, compiled, compiler, content_hash

HERE = Path(__file__).parent / "snippets"
FLAGS = ("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE")
SECONDS = 20


def compile_snippets(extra: tuple[str, ...] = ()) -> Path:
    """The program with every snippet, compiled once per content."""
    libraries = compiled(extra)
    inputs = [*HERE.iterdir(), SOURCES / "cuda_abi.h"]
    program = (
        cache_root()
        / "simgpu-snippets"
        / content_hash(inputs, compiler(), str(libraries), *FLAGS, *extra)
    )
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=program.parent)) / "snippets"
        sources = [str(path) for path in HERE.glob("*.c")]
        linked = [f"-L{libraries}", "-l:libcuda.so.1", "-Wl,--no-as-needed"]
        compile_c([*FLAGS, *extra, f"-I{SOURCES}", *sources, *linked, "-o", str(draft)])
        draft.rename(program)
        shutil.rmtree(draft.parent)
    return program


def snippet_names() -> list[str]:
    """Every SNIPPET in the sources that needs no command line."""
    text = "".join(path.read_text() for path in sorted(HERE.glob("*.c")))
    names = re.findall(r"^SNIPPET\((\w+)\)", text, flags=re.MULTILINE)
    return [name for name in names if "_" in name]


@dataclass
class Bench:
    """A machine and the means to run programs on it."""

    machine: simgpu.Machine
    snippets: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        return os.environ | simgpu.environment(self.machine.directory) | more

    def run(self, *command: str, **more: str) -> str:
        """The output of a snippet; its standard error is the test's failure."""
        done = subprocess.run(
            [str(self.snippets), *command],
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        """A snippet that goes on; ended with the test."""
        process = subprocess.Popen(
            [str(self.snippets), *command],
            env=self.environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def python(self, code: str) -> str:
        """The output of a Python program; NVML is found as in a container."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        self.machine.close()
