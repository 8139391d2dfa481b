import multiprocessing
import os
import signal
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from cluster.binaries import cache
from cluster.binaries.errors import Busy
from cluster.binaries.progress import Progress

fork = multiprocessing.get_context("fork")


def fill(into: Path) -> None:
    (into / "program").write_text("made")


def never(into: Path) -> None:
    raise AssertionError("made again")


def test_an_entry_is_made_once(tmp_path: Path) -> None:
    made = cache.entry(tmp_path, "thing-1", fill)
    assert cache.entry(tmp_path, "thing-1", never) == made
    assert (made / "program").read_text() == "made"


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def break_off(into: Path) -> None:
        fill(into)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cache.entry(tmp_path, "thing-1", break_off)
    assert [path.name for path in tmp_path.iterdir()] == [".thing.lock"]


def _fill_and_hang(folder: Path, started: Event) -> None:
    def hang(into: Path) -> None:
        fill(into)
        started.set()
        signal.pause()

    cache.entry(folder, "thing-1", hang)


def test_a_kill_in_the_middle_leaves_no_broken_entry_and_no_lock(tmp_path: Path) -> None:
    started = fork.Event()
    process = fork.Process(target=_fill_and_hang, args=(tmp_path, started))
    process.start()
    assert started.wait(10)
    with pytest.raises(Busy, match=f"process {process.pid} has held .*: end it"):  # noqa: SIM117
        with cache.locked(tmp_path / ".thing.lock", Progress.silent(), limit=0):
            pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    assert not (tmp_path / "thing-1").exists()
    made = cache.entry(tmp_path, "thing-1", fill)
    assert [path.name for path in made.iterdir()] == ["program"]


def _count(folder: Path, barrier: object, made: Path) -> None:
    def counted(into: Path) -> None:
        with made.open("a") as file:
            file.write("x")
        fill(into)

    barrier.wait(10)  # type: ignore[attr-defined]
    cache.entry(folder, "thing-1", counted)


def test_two_at_once_make_it_once(tmp_path: Path) -> None:
    made, barrier = tmp_path / "made", fork.Barrier(3)
    folder = tmp_path / "store"
    processes = [fork.Process(target=_count, args=(folder, barrier, made)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(10)
        assert process.exitcode == 0
    assert made.read_text() == "x"


def test_what_a_killed_run_left_goes_with_the_next_version(tmp_path: Path) -> None:
    (tmp_path / ".thing.tmp").mkdir()
    cache.entry(tmp_path, "thing-2", fill)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".thing.lock", "thing-2"]


def test_the_latest_used_are_kept(tmp_path: Path) -> None:
    for number, name in enumerate(("a-1", "a-2", "a-3", "b-1")):
        cache.entry(tmp_path, name, fill)
        os.utime(tmp_path / name, (number, number))
    cache.keep_latest(tmp_path, "a-*", tmp_path / "a-1", 2)
    assert sorted(path.name for path in tmp_path.glob("[ab]-*")) == ["a-1", "a-3", "b-1"]


def test_the_root_is_what_the_user_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MIZAR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.root() == tmp_path / "mizar"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.root() == Path("/home/someone/.cache/mizar")
