import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from cluster.binaries.errors import SetupError
from cluster.images import archive, build, clone_store, settings, table
from cluster.images.table import full_names


def make_layer(folder: Path) -> Path:
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        archive.add_bytes(tar, "pause", b"program", mode=0o755)
    return layer


def test_an_archive_is_what_docker_save_writes(tmp_path: Path) -> None:
    file = tmp_path / "image.tar"
    archive.write(file, "localhost/x:dev", make_layer(tmp_path), {"Entrypoint": ["/pause"]})
    with tarfile.open(file) as tar:
        (entry,) = json.loads(content(tar, "manifest.json"))
        assert entry["RepoTags"] == ["localhost/x:dev"]
        config = json.loads(content(tar, entry["Config"]))
        (layer,) = entry["Layers"]
        assert config["config"] == {"Entrypoint": ["/pause"]}
        assert config["rootfs"]["diff_ids"] == [f"sha256:{layer.removesuffix('.tar')}"]
        assert content(tar, layer) == (tmp_path / "layer.tar").read_bytes()


def content(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


def test_equal_content_gives_equal_archives(tmp_path: Path) -> None:
    files = [tmp_path / "one.tar", tmp_path / "two.tar"]
    for file in files:
        archive.write(file, "localhost/x:dev", make_layer(tmp_path), {})
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_derived_image_is_its_base_with_one_more_layer(tmp_path: Path) -> None:
    base, file = tmp_path / "base.tar", tmp_path / "image.tar"
    archive.write(base, "localhost/x:dev", make_layer(tmp_path), {"Entrypoint": ["/pause"]})
    archive.write_derived(file, "localhost/x:next", base, {"usr/lib/shim": b"library"})
    with tarfile.open(file) as tar:
        (entry,) = json.loads(content(tar, "manifest.json"))
        assert entry["RepoTags"] == ["localhost/x:next"]
        config = json.loads(content(tar, entry["Config"]))
        assert config["config"] == {"Entrypoint": ["/pause"]}
        hashes = [hashlib.sha256(content(tar, one)).hexdigest() for one in entry["Layers"]]
        assert config["rootfs"]["diff_ids"] == [f"sha256:{one}" for one in hashes]
        below, above = (io.BytesIO(content(tar, one)) for one in entry["Layers"])
        assert below.getvalue() == (tmp_path / "layer.tar").read_bytes()
    with tarfile.open(fileobj=above) as layer:
        assert layer.getmember("usr/lib/shim").mode == 0o755
        assert content(layer, "usr/lib/shim") == b"library"


def test_names_may_be_short() -> None:
    assert full_names(["operator", table.PAUSE]) == [table.OPERATOR, table.PAUSE]
    assert full_names(None) == list(table.ALL)
    with pytest.raises(ValueError, match="unknown images: operato; there are"):
        full_names(["operato"])


def test_building_without_root_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SetupError, match=r"needs root.*sudo"):
        build._require_root("x")


PIP = """\
:env:.default-timeout='180'
:env:.index-url='https://mirror.example/simple'
global.cert='/etc/ssl/ca.crt'
global.index-url='https://other.example/simple'
global.find-links='/opt/wheels'
install.extra-index-url='https://a.example\\nhttps://b.example'
"""


def test_pip_in_a_build_uses_the_network_as_pip_outside_does() -> None:
    known = settings.parse(PIP)
    assert known["index-url"] == "https://mirror.example/simple"
    assert settings.pip_conf(known, with_bundle=True).splitlines() == [
        "[global]",
        "index-url = https://mirror.example/simple",
        "extra-index-url = https://a.example",
        "    https://b.example",
        "timeout = 180",
        "cache-dir = /run/mizar-build/pip",
        "disable-pip-version-check = true",
        "cert = /run/mizar-build/ca.crt",
    ]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    (folder / "content").mkdir(parents=True)
    (folder / "content/blob").write_text("blob")
    (folder / "meta").mkdir()
    (folder / "meta/metadata.db").write_text("database")
    return folder


def test_a_clone_shares_content_but_not_databases(store: Path, tmp_path: Path) -> None:
    clone = tmp_path / "nodes" / "root"
    clone_store(store, clone)
    assert (clone / "content/blob").samefile(store / "content/blob")
    (clone / "meta/metadata.db").write_text("changed")
    assert (store / "meta/metadata.db").read_text() == "database"


def test_a_clone_never_goes_over_something(store: Path, tmp_path: Path) -> None:
    clone_store(store, tmp_path / "root")
    with pytest.raises(SetupError, match="exists already"):
        clone_store(store, tmp_path / "root")
