import io
import json
import tarfile
from pathlib import Path

import pytest

from cluster.errors import ClusterError
from cluster.loaded_images import Loaded


def archive(path: Path, *names: str) -> Path:
    """A docker archive with nothing in it but names."""
    data = json.dumps([{"RepoTags": list(names)}]).encode()
    with tarfile.open(path, "w") as tar:
        item = tarfile.TarInfo("manifest.json")
        item.size = len(data)
        tar.addfile(item, io.BytesIO(data))
    return path


def test_an_archive_is_there_once_it_was_added(tmp_path: Path) -> None:
    loaded, one = Loaded(tmp_path / "loaded.json"), archive(tmp_path / "one", "a:dev")
    assert not loaded.has(one)
    loaded.add([one])
    assert loaded.has(one)


def test_it_is_not_there_any_more_when_another_took_its_name(tmp_path: Path) -> None:
    loaded = Loaded(tmp_path / "loaded.json")
    one = archive(tmp_path / "one", "a:dev", "b:dev")
    other = archive(tmp_path / "other", "b:dev")
    loaded.add([one])
    loaded.add([other])
    assert loaded.has(other)
    assert not loaded.has(one)


def test_a_changed_archive_is_another(tmp_path: Path) -> None:
    loaded, one = Loaded(tmp_path / "loaded.json"), archive(tmp_path / "one", "a:dev")
    loaded.add([one])
    archive(one, "a:dev", "b:dev")
    assert not loaded.has(one)


def test_what_nodes_disagree_on_is_forgotten(tmp_path: Path) -> None:
    loaded, one = Loaded(tmp_path / "loaded.json"), archive(tmp_path / "one", "a:dev")
    loaded.add([one])
    loaded.forget(one)
    assert not loaded.has(one)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ClusterError, match="not a docker archive"):
        Loaded(tmp_path / "loaded.json").has(tmp_path / "text")
