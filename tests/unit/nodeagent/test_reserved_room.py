"""Room that is reserved for a file, so that a full disk does not keep it from being replaced."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from mizar_nodeagent import files, reserved_room
from mizar_nodeagent.reserved_room import RESERVED_BYTES, ReservedRoom

TMPFS = ("unshare", "--map-root-user", "--mount", "sh", "-c")
MOUNT = 'mount -t tmpfs -o "$1" none "$2" && shift && shift && exec "$@"'
may_mount = subprocess.run([*TMPFS, MOUNT, "sh", "size=1m", "/tmp", "true"]).returncode == 0

ON_A_FULL_DISK = """
import sys
from pathlib import Path
from mizar_nodeagent.files import write_atomically
from mizar_nodeagent.reserved_room import ReservedRoom

path = Path(sys.argv[1]) / "file"
path.write_bytes(b"old")
room = ReservedRoom(path)
room.reserve(0)
try:
    for number in range(9999):
        (path.parent / str(number)).write_bytes(b"x" * 999)
except OSError as error:
    print(error.strerror)
for size in (1, 5000, 200_000, 7, 256 << 10):
    content = b"n" * size
    try:
        write_atomically(path, content)
    except OSError:
        assert room.put(content)
    else:
        raise AssertionError("the disk is not full")
    assert path.read_bytes().rstrip() == content
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.json"
    path.write_bytes(b"old")
    return path


@pytest.fixture
def room(path: Path) -> ReservedRoom:
    room = ReservedRoom(path)
    room.reserve(0)
    return room


def files_of(path: Path) -> list[Path]:
    return [path.with_suffix(f".reserve-{number}") for number in (1, 2)]


@pytest.mark.skipif(not may_mount, reason="this user may not mount a tmpfs")
@pytest.mark.parametrize("bounds", ["size=2m", "size=9m,nr_inodes=20"])
def test_on_a_full_disk_any_number_of_contents_follow_each_other(
    tmp_path: Path, bounds: str
) -> None:
    """No block is free, or no inode."""
    mount = [*TMPFS, MOUNT, "sh", bounds, str(tmp_path)]
    command = [*mount, sys.executable, "-c", ON_A_FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "No space left on device\n"), done.stderr


def test_its_files_have_all_of_their_blocks(room: ReservedRoom, path: Path) -> None:
    for file in files_of(path):
        assert file.stat().st_size == RESERVED_BYTES <= 512 * file.stat().st_blocks


def test_it_is_twice_of_what_is_used(room: ReservedRoom, path: Path) -> None:
    room.reserve(RESERVED_BYTES // 2)
    assert {one.stat().st_size for one in files_of(path)} == {RESERVED_BYTES}
    room.reserve(RESERVED_BYTES // 2 + 1)
    assert {one.stat().st_size for one in files_of(path)} == {2 * RESERVED_BYTES}
    inodes = [one.stat().st_ino for one in files_of(path)]
    room.reserve(0)
    assert [one.stat().st_ino for one in files_of(path)] == inodes


def test_what_is_longer_is_not_put(room: ReservedRoom, path: Path) -> None:
    assert not room.put(b"n" * (RESERVED_BYTES + 1))
    assert path.read_bytes() == b"old"


def test_an_interrupted_put_leaves_the_old_content(
    room: ReservedRoom, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is killed in the midst of writing, or the power is cut."""

    def interrupted(file: Path, content: bytes) -> None:
        files.overwrite(file, content[:7])
        raise KeyboardInterrupt

    monkeypatch.setattr(reserved_room, "overwrite", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            room.put(b"newer than what is there")
        assert path.read_bytes() == b"old"


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_an_error_leaves_the_old_content(
    room: ReservedRoom, path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(reserved_room, "overwrite", Mock(side_effect=OSError(code, "no")))
    assert not room.put(b"new")
    assert path.read_bytes() == b"old"


def test_a_file_that_cannot_be_written_leaves_the_other(
    room: ReservedRoom, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of the disk is bad."""
    bad = files_of(path)[0]

    def overwrite(file: Path, content: bytes) -> None:
        if file == bad:
            raise OSError(errno.EIO, "Input/output error")
        files.overwrite(file, content)

    monkeypatch.setattr(reserved_room, "overwrite", overwrite)
    assert room.put(b"new")
    assert path.read_bytes().rstrip() == b"new"


def test_a_file_that_is_missing_is_put(room: ReservedRoom, path: Path) -> None:
    path.unlink()
    assert room.put(b"new")
    assert path.read_bytes().rstrip() == b"new"


def test_where_files_cannot_change_places_each_room_does_once(
    room: ReservedRoom, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_exchange", Mock(side_effect=OSError(errno.EINVAL, "no")))
    for content in (b"new", b"newer"):
        assert room.put(content)
        assert path.read_bytes().rstrip() == content
    assert not room.put(b"newest")
    assert path.read_bytes().rstrip() == b"newer"


def test_files_change_places_in_one_step(room: ReservedRoom, path: Path) -> None:
    """Both inodes stay, and with them their blocks."""
    first = files_of(path)[0]
    before = first.stat().st_ino, path.stat().st_ino
    assert room.put(b"new")
    assert (path.stat().st_ino, first.stat().st_ino) == before


def test_a_full_disk_keeps_what_was_reserved(
    room: ReservedRoom, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(errno.EDQUOT, "Disk quota exceeded"))
    monkeypatch.setattr(reserved_room, "write_atomically", full)
    room.reserve(RESERVED_BYTES)
    full.assert_called_once()
    assert {one.stat().st_size for one in files_of(path)} == {RESERVED_BYTES}
