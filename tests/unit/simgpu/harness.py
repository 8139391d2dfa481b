"""Snippets in C that call the simulated driver, compiled once, and how to run them."""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import simgpu
from simgpu.build import SOURCES, cache_root, compile_c, compiled, compiler, content_hash
from support.waiting import PATIENCE_S

HERE = Path(__file__).parent / "snippets"
FLAGS = ("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror")
SAMPLE = Path(__file__).parents[3] / "examples" / "sample" / "cuda-sample.c"
NAMESPACE = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child")
"""Runs a command in a PID namespace of its own."""
SANITIZE = tuple(os.environ.get("SIMGPU_CFLAGS", "").split())  # say, -fsanitize=address


def cached_program(name: str, inputs: list[Path], arguments: list[str]) -> Path:
    """A compiled program, made once per content of its inputs."""
    key = content_hash(inputs, compiler(), *arguments)
    program = cache_root() / "simgpu-tests" / f"{name}-{key}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=program.parent)) / name
        compile_c([*arguments, "-o", str(draft)])
        draft.rename(program)
        draft.parent.rmdir()
    return program


def compile_snippets() -> Path:
    """The program with every snippet."""
    sources = [str(path) for path in sorted(HERE.glob("*.c"))]
    linked = [f"-L{compiled(SANITIZE)}", "-l:libcuda.so.1"]
    arguments = [*FLAGS, "-D_GNU_SOURCE", *SANITIZE, f"-I{SOURCES}", *sources, *linked]
    return cached_program("snippets", [*HERE.iterdir(), SOURCES / "cuda_abi.h"], arguments)


def compile_sample() -> Path:
    """examples/sample, without anything of the simulated driver."""
    return cached_program("cuda-sample", [SAMPLE], [*FLAGS, str(SAMPLE)])


def snippet_names(source: str = "*") -> list[str]:
    """Every SNIPPET in the sources, or in one of them, that needs no command line."""
    text = "".join(path.read_text() for path in sorted(HERE.glob(f"{source}.c")))
    names = re.findall(r"^SNIPPET\((\w+)\)", text, flags=re.MULTILINE)
    return [name for name in names if "_" in name]


@dataclass
class Bench:
    """A machine and the means to run programs on it."""

    machine: simgpu.Machine
    snippets: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self, **more: str) -> dict[str, str]:
        found = simgpu.environment(self.machine.directory)
        if SANITIZE:
            found["LD_LIBRARY_PATH"] = str(compiled(SANITIZE))
            found["ASAN_OPTIONS"] = "detect_leaks=0"  # contexts live as long as the process
        return os.environ | found | more

    def call(self, *command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Run any program on the machine."""
        return subprocess.run(
            [str(word) for word in command],
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def run(self, *command: str, **more: str) -> str:
        """The output of a snippet; anything on its standard error fails the test."""
        done = self.call(self.snippets, *command, **more)
        assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        """A snippet that goes on running; it is ended with the test."""
        return self._start(str(self.snippets), *command, **more)

    def start_python(self, code: str) -> subprocess.Popen[str]:
        """A Python program that goes on running; it is ended with the test."""
        return self._start(sys.executable, "-c", code)

    def _start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            env=self.environment(**more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def python(self, code: str) -> str:
        """The output of a Python program; NVML is found as in a container."""
        done = self.call(sys.executable, "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def end(self) -> None:
        for process in self.started:
            with process:  # closes its pipes and waits for it
                process.kill()
        self.machine.close()
