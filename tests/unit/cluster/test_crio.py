"""The configuration of nodes whose runtime is CRI-O, and what they run instead of runc."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from cluster import crio
from cluster.binaries.errors import SetupError

DEFAULT, NVIDIA, CONMON = Path("/c/crun"), Path("/c/nvidia"), Path("/c/conmon")


def test_its_configuration_is_toml_with_nri_on() -> None:
    handlers = {"crun": DEFAULT, "nvidia": NVIDIA}
    text = crio.config(Path("/p"), Path("/opt/cni bin"), Path("/etc/cni"), handlers, CONMON)
    found = tomllib.loads(text)["crio"]
    assert found["nri"] == {"enable_nri": True}
    assert found["network"]["plugin_dirs"] == ["/opt/cni bin"]
    assert found["image"]["pause_image"] == "localhost/mizar/pause:dev"
    runtime = found["runtime"]
    assert (runtime["default_runtime"], runtime["pinns_path"]) == ("crun", "/p/pinns")
    assert {name: one["runtime_path"] for name, one in runtime["runtimes"].items()} == {
        "crun": "/c/crun",
        "nvidia": "/c/nvidia",
    }
    assert {one["monitor_path"] for one in runtime["runtimes"].values()} == {"/c/conmon"}


@pytest.mark.parametrize(
    ("may_lower", "score", "left"),
    [(True, -998, -998), (False, -998, 0), (False, 1000, 1000)],
)
def test_containers_keep_their_oom_score_where_it_cannot_be_lowered(
    tmp_path: Path, may_lower: bool, score: int, left: int
) -> None:
    spec = tmp_path / "config.json"
    spec.write_text(f'\t"oomScoreAdj": {score}\n')
    program = tmp_path / "run"
    program.write_text(crio.script("echo", may_lower))
    words = ["--root=/r", "create", "--bundle", str(tmp_path), "--pid-file", "/p", "name"]
    done = subprocess.run(["sh", str(program), *words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == words
    assert spec.read_text() == f'\t"oomScoreAdj": {left}\n'


@pytest.mark.parametrize("version", ["1.36.3", "v1.36", "v1.36.3/../.."])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(SetupError, match="is no version of CRI-O"):
        crio.folder(version)
