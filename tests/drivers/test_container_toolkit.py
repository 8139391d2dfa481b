"""NVIDIA's container toolkit of the version that $MIZAR_NVIDIA_TOOLKIT names, on a node with
simulated cards: `make nvidia-toolkit`. It is no part of `make drivers`, since it has to be built
first.

nvidia-ctk writes the node's CDI file, which the node agent reads; nvidia-container-runtime gets the
containers that the agent's answers make, and a program in runc's place shows what it makes of them.
The driver's files have the names of real ones. Mode legacy is left out: it needs
libnvidia-container.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import simgpu
from cluster import nvidia_toolkit
from cluster.binaries.progress import Progress
from mizar_nodeagent.config import CardAccess, Way
from mizar_nodeagent.container import auto_strategy, card_access, cdi_files

VARIABLE = "MIZAR_NVIDIA_TOOLKIT"
VERSION = "580.65.06"
MODES = ("auto", "jit-cdi", "cdi")
pytestmark = pytest.mark.timeout(3600)
IN_OWN_PROC = """\
mount -t tmpfs none /proc/driver && cp -r "$0/proc/driver/nvidia-caps" /proc/driver && exec "$@"
"""


@dataclass
class ToolkitNode:
    """A node with a whole card and one that MIG divides. `driver`: the root of its driver."""

    programs: Path
    folder: Path
    card: str
    instance: str

    @property
    def driver(self) -> Path:
        return self.folder / "driver"

    @property
    def access(self) -> CardAccess:
        """The agent's settings for this node."""
        config = self.folder / "nvidia-container-runtime" / "config.toml"
        return CardAccess(cdi_dirs=(self.folder / "cdi",), nvidia_runtime_config=config)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the toolkit, which looks for MIG's numbers in /proc/driver."""
        env = {**os.environ, **simgpu.environment(self.folder), "XDG_CONFIG_HOME": str(self.folder)}
        argv = [str(self.programs / program), *arguments]
        inside = ["unshare", "--mount", "sh", "-c", IN_OWN_PROC, str(self.folder), *argv]
        return subprocess.run(inside, env=env, capture_output=True, text=True, timeout=60)

    def configure(self, mode: str, *, marks: bool, variable: bool) -> None:
        """Configure the runtime. `marks`: it takes cards from volume mounts; `variable`: also from
        the variable."""
        path = self.access.nvidia_runtime_config
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f"{auto_strategy.VOLUME_MOUNTS} = {json.dumps(marks)}\n"
            f"{auto_strategy.VARIABLE} = {json.dumps(variable)}\n"
            f"[nvidia-container-cli]\nroot = '{self.driver}'\n"
            f"[nvidia-container-runtime]\nmode = '{mode}'\nruntimes = ['{self.folder}/runc']\n"
            f"[nvidia-container-runtime.modes.cdi]\nspec-dirs = ['{self.folder}/cdi']\n"
        )

    def nodes_given(self, way: Way, uuid: str) -> set[str]:
        """The cards' device nodes that runc gets for a container of this card. Raises
        RuntimeRefused."""
        parts = card_access.parts(way, [uuid], {}, self.access)
        spec = self._container(parts)
        bundle = self.folder / "bundle"
        bundle.mkdir(exist_ok=True)
        (bundle / "config.json").write_text(json.dumps(spec))
        done = self.run("nvidia-container-runtime", "create", "--bundle", str(bundle), "x")
        if done.returncode:
            raise RuntimeRefused(done.stderr)
        changed = json.loads((bundle / "config.json").read_text())
        paths = [one["path"] for one in changed["linux"].get("devices", ())]
        return {one for one in paths if one not in ("/dev/nvidiactl", "/dev/nvidia-uvm")}

    @staticmethod
    def _container(parts: card_access.Parts) -> dict[str, object]:
        mounts = [
            {"destination": str(one.container_path), "source": str(one.host_path), "type": "bind"}
            for one in parts.mounts
        ]
        env = [f"{name}={value}" for name, value in parts.env.items()]
        return {
            "ociVersion": "1.2.0",
            "process": {"cwd": "/", "args": ["x"], "env": env},
            "root": {"path": "rootfs"},
            "mounts": mounts,
            "annotations": dict(parts.annotations),
            "linux": {},
        }


class RuntimeRefused(Exception):
    """NVIDIA's runtime creates no container."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolkitNode]:
    version = os.environ.get(VARIABLE)
    if not version:
        pytest.skip(f"${VARIABLE} names no version")
    programs = nvidia_toolkit.build(version, Progress())
    folder = tmp_path_factory.mktemp("node")
    with simgpu.create(folder, cards=2, memory_mib=40960) as machine:
        whole, divided = machine.cards
        instance, _ = machine.divide(divided.uuid, "1g.5gb", "2g.10gb")
    libraries = folder / "driver" / "lib64"
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (libraries / f"{name}.{VERSION}").hardlink_to(libraries / f"{name}.1")
    # The runtime finds device nodes below the driver's root.
    subprocess.run(["cp", "-a", folder / "dev", folder / "driver" / "dev"], check=True)
    shutil.copy("/bin/true", folder / "runc")
    made = ToolkitNode(programs, folder, whole.uuid, instance)
    options = (f"--driver-root={made.driver}", f"--output={folder}/cdi/nvidia.yaml")
    done = made.run("nvidia-ctk", "cdi", "generate", *options)
    assert done.returncode == 0, done.stderr
    yield made


def test_the_agent_reads_the_file_of_nvidia_ctk(node: ToolkitNode) -> None:
    cards = (node.card, node.instance)
    assert cdi_files.named_cards(node.access) > set(cards)
    assert cdi_files.kind_in_use(node.access) == "nvidia.com/gpu"
    minors = cdi_files.minors_of_nodes(node.access, cards)
    assert minors == {node.card: {0}, node.instance: {1}}


WAYS: dict[Way, tuple[str, ...]] = {
    "EnvVar": MODES,
    "VolumeMounts": MODES,
    # In jit-cdi, the runtime leaves annotations to containerd and CRI-O.
    "CDIAnnotations": ("auto", "cdi"),
}


@pytest.mark.parametrize(
    ("way", "mode"), [(way, mode) for way, modes in WAYS.items() for mode in modes]
)
def test_a_container_gets_its_card_alone(node: ToolkitNode, way: Way, mode: str) -> None:
    node.configure(mode, marks=True, variable=way == "EnvVar")
    assert node.nodes_given(way, node.card) == {"/dev/nvidia0"}
    card, *capabilities = sorted(node.nodes_given(way, node.instance), reverse=True)
    assert card == "/dev/nvidia1" and len(capabilities) == 2
    assert all(one.startswith("/dev/nvidia-caps/nvidia-cap") for one in capabilities)


@pytest.mark.parametrize("mode", MODES)
def test_with_cdi_the_runtime_adds_nothing(node: ToolkitNode, mode: str) -> None:
    """The kubelet's runtime gives the CDI device."""
    node.configure(mode, marks=True, variable=True)
    assert node.nodes_given("CDI", node.card) == set()


@pytest.mark.parametrize("mode", MODES)
def test_a_variable_that_is_refused_gives_no_card(node: ToolkitNode, mode: str) -> None:
    """There is no error: what the agent warns of."""
    node.configure(mode, marks=False, variable=False)
    assert node.nodes_given("EnvVar", node.card) == set()
    assert auto_strategy.refuses_variable(node.access)


@pytest.mark.parametrize("mode", MODES)
def test_volume_mounts_that_are_not_taken_start_no_container(node: ToolkitNode, mode: str) -> None:
    node.configure(mode, marks=False, variable=True)
    with pytest.raises(RuntimeRefused, match="/var/run/nvidia-container-devices"):
        node.nodes_given("VolumeMounts", node.card)
