"""Invariant 7: where limits cannot be kept there is no CUDA, and the reason is given once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.effort import EFFORT, SEED, times

from .conftest import run
from .shell import OUT_OF_MEMORY, SUCCESS, SYSTEM_NOT_READY, Shell
from .slot import MIB, Card, Slot, card_uuid


def flip(path: Path, offset: int) -> None:
    """Flips one bit of the file, in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


WRONG: dict[str, tuple[Callable[[Slot], object], str]] = {
    "no limits": (lambda slot: slot.limits.unlink(), "limits cannot be opened"),
    "no usage": (lambda slot: slot.usage.unlink(), "usage cannot be opened"),
    "zero bytes": (lambda slot: truncate(slot.limits, 0), "limits is empty"),
    "zeroed": (lambda slot: slot.limits.write_bytes(bytes(8192)), "limits is empty"),
    "short": (lambda slot: truncate(slot.limits, 4096), "limits has the wrong size"),
    "magic": (lambda slot: flip(slot.limits, 0), "limits is not a limits file"),
    "version": (lambda slot: flip(slot.limits, 8), "limits has a different version"),
    "limit": (lambda slot: flip(slot.limits, 1024 + 64 + 5), "limits is damaged"),
    "usage magic": (lambda slot: flip(slot.usage, 0), "usage is not a usage file"),
    "usage version": (lambda slot: flip(slot.usage, 8), "usage has a different version"),
    "usage shape": (lambda slot: flip(slot.usage, 20), "usage has different table sizes"),
    "usage short": (lambda slot: truncate(slot.usage, 4096), "usage has the wrong size"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_no_cuda(wrong: str, env: dict[str, str], slot: Slot) -> None:
    spoil, reason = WRONG[wrong]
    spoil(slot)
    with Shell(env, start=False) as shell:
        assert shell("init").code == SYSTEM_NOT_READY
        shell("use", 0)
        assert shell.alloc(512) == SYSTEM_NOT_READY
        shell.send("exit")
        errors = shell.errors()
    assert errors.count("\n") == 1
    assert errors.startswith("mizar: CUDA is refused: ")
    assert reason in errors


def test_a_writer_that_died(env: dict[str, str], slot: Slot) -> None:
    flip(slot.limits, slot.offset("mizar_limits.seq"))  # 2 -> 6: another even number is sound
    with slot.limits.open("r+b") as file:
        file.seek(slot.offset("mizar_limits.seq"))
        file.write(b"\7")
    with Shell(env, start=False) as shell:
        assert shell("init").code == SYSTEM_NOT_READY
        slot.seq = 8
        slot.set_limits(*slot.cards)  # its successor writes everything again
        assert shell("init").code == SUCCESS
        shell.send("exit")
        assert "being written" in shell.errors()


def test_limits_that_come_late(env: dict[str, str], slot: Slot) -> None:
    slot.limits.write_bytes(bytes(8192))
    with Shell(env, start=False) as shell:
        assert shell("init").code == SYSTEM_NOT_READY
        slot.set_limits(Card(card_uuid(0), 64 * MIB))
        assert shell("init").code == SUCCESS


def hide(shell: Shell, slot: Slot) -> None:
    slot.path.rename(slot.path.with_name("elsewhere"))


def jail(shell: Shell, slot: Slot) -> None:
    if shell("jail").code:
        pytest.skip("may not chroot")


def start_time(pid: int) -> int:
    """When the process started, in ticks since boot: field 22 of its stat."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.mark.parametrize("away", [hide, jail])
def test_a_process_that_can_no_longer_see_mizars_folder_is_limited(
    away: Callable[[Shell, Slot], None], env: dict[str, str], slot: Slot
) -> None:
    """Which folder the shim uses is decided when the program starts, and the folder is kept
    open."""
    with Shell(env, start=False) as shell:
        assert shell("pid").code == shell.process.pid
        away(shell, slot)
        assert shell("init").code == SUCCESS
        shell("use", 0)
        assert shell.alloc(65 * MIB) == OUT_OF_MEMORY
        assert shell.alloc(60 * MIB) == SUCCESS


@pytest.mark.parametrize("forked", [False, True])
def test_a_process_that_can_no_longer_see_proc_still_records_its_pid_and_start_time(
    forked: bool, env: dict[str, str], slot: Slot
) -> None:
    """The node agent takes a process whose start time it does not find for one without the shim."""
    with Shell(env, start=False) as shell:
        jail(shell, slot)
        pid = shell("fork").detail if forked else shell("pid").code
        assert shell("init").code == SUCCESS
        shell("use", 0)
        assert shell.alloc(MIB) == SUCCESS
        assert slot.said_of_itself(0, "pid") == pid
        assert slot.said_of_itself(0, "start_time", 8) == start_time(pid)
        assert slot.said_of_itself(0, "pid_ns", 8) == Path(f"/proc/{pid}/ns/pid").stat().st_ino


def test_a_program_that_hides_mizars_folder_before_it_loads_cuda_is_limited(
    env: dict[str, str], slot: Slot
) -> None:
    """Nothing of the shim was called then, but what runs when it is loaded."""
    elsewhere = slot.path.with_name("elsewhere")
    done = run("past/dynamic", str(slot.path), str(elsewhere), env=env)
    assert done.stdout == f"{OUT_OF_MEMORY}\n"


def test_a_process_that_cannot_open_mizars_folder_has_no_cuda(
    env: dict[str, str], slot: Slot
) -> None:
    """Only where nothing is there are there no limits: a sandbox may forbid to look."""
    slot.path.rename(slot.path.with_name("elsewhere"))
    slot.path.symlink_to(slot.path)  # to open it fails, and not because it is not there
    with Shell(env, start=False) as shell:
        assert shell("init").code == SYSTEM_NOT_READY
        shell.send("exit")
        assert "CUDA is refused: " in shell.errors()


def test_a_process_without_proc_has_no_cuda(env: dict[str, str]) -> None:
    hide_proc = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*hide_proc, "true"], capture_output=True).returncode:
        pytest.skip("may not mount")
    with Shell(env, start=False, under=hide_proc) as shell:
        assert shell("init").code == SYSTEM_NOT_READY
        shell.send("exit")
        assert "CUDA is refused: /proc/self/stat cannot be read" in shell.errors()


def test_a_process_that_closes_all_its_files_is_limited(env: dict[str, str], slot: Slot) -> None:
    with Shell(env, start=False) as shell:
        assert shell("close").code == 0
        assert shell("init").code == SUCCESS
        shell("use", 0)
        assert shell.alloc(65 * MIB) == OUT_OF_MEMORY


def test_a_process_that_closes_all_its_files_and_no_longer_sees_mizars_folder_has_no_cuda(
    env: dict[str, str], slot: Slot
) -> None:
    with Shell(env, start=False) as shell:
        assert shell("close").code == 0
        hide(shell, slot)
        assert shell("init").code == SYSTEM_NOT_READY


@pytest.mark.parametrize("when", ["before", "during"])
def test_damaged_regions_lift_no_limit(when: str, env: dict[str, str], slot: Slot) -> None:
    run("fuzz", when, str(times(50)), str(SEED), env=env)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_no_damaged_word_lifts_a_limit(mode: int, env: dict[str, str], slot: Slot) -> None:
    """Whatever any word of the regions says, also about GPU time. Here one word in `one_in`."""
    one_in = max(1, round(12 / EFFORT))
    slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=mode, core_share=5000))
    run("fuzz", "words", str(one_in), str(mode), env=env, timeout=100)
