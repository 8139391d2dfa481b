"""A driver below a folder of its own, and a node without a driver: the agent's program itself is
run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import simgpu

READ = """
import asyncio, sys
import support.without_rich
from pathlib import Path
from mizar_nodeagent.cuda_context import measure
from mizar_nodeagent.nvml import Nvml

async def main():
    cards = Nvml(*map(Path, sys.argv[1:]))
    for uuid in sorted(await cards.read()):
        print(uuid, await cards.context_bytes(uuid))
    cards.close()

asyncio.run(main())
"""
COST = 200 << 20


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program without the driver's folders among those that are searched."""
    kept = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    return subprocess.run(
        [sys.executable, *command],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu"])
def test_nvml_and_cuda_come_from_the_drivers_root(tmp_path: Path, folder: str) -> None:
    with simgpu.create(tmp_path / "machine", cards=2, context_bytes=COST) as machine:
        paths = simgpu.environment(machine.directory)
        shutil.copytree(paths.pop("LD_LIBRARY_PATH"), tmp_path / "root" / folder)
        done = run("-c", READ, str(tmp_path / "root"), **paths)
        assert done.returncode == 0, done.stderr
        found = dict(line.split() for line in done.stdout.splitlines())
        assert found == {card.uuid: str(COST) for card in machine.cards}


def test_libraries_beside_the_drivers_are_left_alone(tmp_path: Path) -> None:
    """Another distribution's libc, with which no program of the agent's image starts."""
    with simgpu.create(tmp_path / "machine", cards=1, context_bytes=COST) as machine:
        paths = simgpu.environment(machine.directory)
        folder = tmp_path / "root" / "usr" / "lib64"
        shutil.copytree(paths.pop("LD_LIBRARY_PATH"), folder)
        (folder / "libc.so.6").write_bytes(b"of another world")
        done = run("-c", READ, str(tmp_path / "root"), **paths)
        assert done.stdout.split() == [machine.cards[0].uuid, str(COST)], done.stderr


def test_a_driver_of_the_node_that_no_runtime_gives_the_agent(tmp_path: Path) -> None:
    """As Debian has it: the links lead out of the folder by absolute paths of the node."""
    with simgpu.create(tmp_path / "machine", cards=1, context_bytes=COST) as machine:
        paths = simgpu.environment(machine.directory)
        node = tmp_path / "node"
        current, folder = Path("usr/lib/nvidia/current"), node / "usr/lib/x86_64-linux-gnu"
        shutil.copytree(paths.pop("LD_LIBRARY_PATH"), node / current)
        folder.mkdir()
        (node / "etc").mkdir()
        (node / "etc" / "alternatives").symlink_to("../usr/lib")
        for one in (node / current).iterdir():
            (folder / one.name).symlink_to(f"/etc/alternatives/nvidia/current/{one.name}")
        done = run("-c", READ, "/", str(node), **paths)
        assert done.stdout.split() == [machine.cards[0].uuid, str(COST)], done.stderr


def test_a_driver_that_the_runtime_gives_comes_before_the_nodes(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "machine", cards=1, context_bytes=COST) as machine:
        paths = simgpu.environment(machine.directory)
        library = tmp_path / "usr" / "lib64" / "libnvidia-ml.so.1"
        library.parent.mkdir(parents=True)
        library.write_bytes(b"of another world")
        done = run("-c", READ, "/", str(tmp_path), **paths)
        assert done.stdout.split() == [machine.cards[0].uuid, str(COST)], done.stderr


def test_a_node_without_a_driver_says_so(tmp_path: Path) -> None:
    done = run("-c", READ, "/", str(tmp_path))
    assert f"no libnvidia-ml.so.1 below the node's root {tmp_path}" in done.stderr


def test_an_agent_without_a_driver_ends_where_it_is_told_to(tmp_path: Path) -> None:
    flags = ("--node-name=n", f"--state-dir={tmp_path}", f"--driver-root={tmp_path}")
    done = run("-m", "mizar_nodeagent.main", *flags, "--fail-on-init-error")
    assert done.returncode == 1
    assert (
        f"failOnInitError is set, and there is no libnvidia-ml.so.1 below driverRoot {tmp_path}"
        in (done.stderr)
    )


def test_else_it_says_so_and_asks_again(tmp_path: Path) -> None:
    """The agent gets as far as the API server, which is not there either."""
    flags = ("--node-name=n", f"--state-dir={tmp_path}", f"--driver-root={tmp_path}")
    done = run("-m", "mizar_nodeagent.main", *flags, KUBECONFIG=str(tmp_path / "none"))
    assert done.returncode == 2
    assert "failOnInitError" not in done.stderr
