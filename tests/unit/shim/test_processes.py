"""All processes of a container share one limit, whatever becomes of them."""

from __future__ import annotations

import fcntl
import os
import platform
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.effort import times
from support.waiting import wait_for

from .conftest import run, shim_env
from .shell import OUT_OF_MEMORY, SUCCESS, SYSTEM_NOT_READY, Shell
from .slot import MIB, Card, Slot, card_uuid


def wait_for_death(shell: Shell) -> None:
    """Wait until the kernel is done with the process, which stays a zombie until it is reaped."""
    os.waitid(os.P_PID, shell.process.pid, os.WEXITED | os.WNOWAIT)


def test_two_processes_share_the_limit(env: dict[str, str]) -> None:
    with Shell(env) as one, Shell(env) as other:
        assert one.alloc(40 * MIB) == SUCCESS
        assert other.alloc(30 * MIB) == OUT_OF_MEMORY
        assert other.alloc(24 * MIB) == SUCCESS
        assert one.free_and_total() == (0, 64 * MIB)
        assert one("free", 0).code == SUCCESS
        assert other.alloc(40 * MIB) == SUCCESS


def test_a_killed_process_gives_back_everything(env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as one, Shell(env) as other:
        assert one.alloc(40 * MIB) == SUCCESS
        one.kill()
        wait_for_death(one)
        assert other.alloc(64 * MIB) == SUCCESS
        assert slot.used(0) == 64 * MIB


HALF_ENDED = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(3600,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(%d, 0)  # exit: of this thread alone
"""
SYS_EXIT = {"x86_64": 60, "aarch64": 93}


@contextmanager
def half_ended() -> Iterator[subprocess.Popen[str]]:
    """A process whose first thread has ended and another has not."""
    command = [sys.executable, "-c", HALF_ENDED % SYS_EXIT[platform.machine()]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            stat = Path(f"/proc/{process.pid}/stat")
            wait_for("its end", lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("jailed", [False, True])
def test_what_a_process_had_stays_its_own_until_its_last_thread_has_ended(
    jailed: bool, env: dict[str, str], slot: Slot
) -> None:
    """It may have given up its slot already, but not its memory. This is known even to a process
    without /proc."""
    with Shell(env) as one:
        assert one.alloc(40 * MIB) == SUCCESS
    with half_ended() as process:
        slot.be(0, process.pid)
        with Shell(env, start=False) as other:
            if jailed and other("jail").code:
                pytest.skip("may not chroot")
            assert other("init").code == SUCCESS
            other("use", 0)
            assert other.alloc(30 * MIB) == OUT_OF_MEMORY
            process.kill()
            process.wait()
            assert other.alloc(64 * MIB) == SUCCESS


def test_what_the_dead_held_is_not_shown_as_used(env: dict[str, str]) -> None:
    with Shell(env) as one:
        assert one.alloc(40 * MIB) == SUCCESS
    with Shell(env) as other:
        assert other.free_and_total() == (64 * MIB, 64 * MIB)


def test_a_stopped_process_keeps_what_it_has(env: dict[str, str]) -> None:
    with Shell(env) as one, Shell(env) as other:
        assert one.alloc(40 * MIB) == SUCCESS
        os.kill(one.process.pid, 19)
        assert other.alloc(30 * MIB) == OUT_OF_MEMORY


@pytest.mark.parametrize("how", ["fork", "raw", "clone"])
def test_a_child_has_its_own_slot(how: str, env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as shell:
        assert shell.alloc(40 * MIB) == SUCCESS
        shell(how)  # the child answers from here on
        assert shell.alloc(24 * MIB) == SUCCESS
        assert shell.alloc(1 * MIB) == OUT_OF_MEMORY
        assert shell("free", 0).code == SUCCESS  # the parent's: not the child's to give back
        assert slot.used(0) == 64 * MIB
        shell.send("exit")
        assert shell.process.stdout
        assert shell.process.stdout.readline().startswith("0 ")  # the parent is back
        assert shell.alloc(24 * MIB) == SUCCESS
        assert shell("free", 0).code == SUCCESS
        assert slot.used(0) == 24 * MIB


def test_vfork_changes_nothing(env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as shell:
        assert shell.alloc(40 * MIB) == SUCCESS
        shell("vfork")
        assert shell("free", 0).code == SUCCESS
        assert slot.used(0) == 0


def test_exec_gives_back_everything(env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as shell:
        assert shell.alloc(40 * MIB) == SUCCESS
        shell.send("exec")
        assert shell("init").code == SUCCESS
        shell("use")
        assert shell.alloc(64 * MIB) == SUCCESS
        assert slot.used(0) == 64 * MIB


def test_a_child_outlives_its_parents_slot(env: dict[str, str], slot: Slot) -> None:
    """What the parent held is settled by its child once the parent has moved on."""
    with Shell(env) as shell, Shell(env) as other:
        assert shell.alloc(40 * MIB) == SUCCESS
        shell("fork")
        assert shell.alloc(8 * MIB) == SUCCESS
        shell.kill()  # the parent; the child lives on
        wait_for_death(shell)
        assert other.alloc(56 * MIB) == SUCCESS
        assert slot.used(0) == 64 * MIB
        shell.send("exit")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_a_process_that_drops_its_rights(layout: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # pytest's own are closed to others
        slot = Slot(Path(directory), layout)
        slot.set_limits(Card(card_uuid(0), 64 * MIB))
        slot.usage.chmod(0o666)
        with Shell(shim_env(slot.path)) as shell:
            assert shell.alloc(40 * MIB) == SUCCESS
            assert shell("setuid", 65534).code == 0
            assert shell.alloc(30 * MIB) == OUT_OF_MEMORY
            assert shell("free", 0).code == SUCCESS
            assert shell.alloc(64 * MIB) == SUCCESS


def test_no_slot_left(env: dict[str, str], slot: Slot) -> None:
    """Every slot's byte is locked, as by that many living processes."""
    with slot.usage.open("r+b") as file:
        everything = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, everything)
        with Shell(env, start=False) as shell:
            assert shell("init").code == SYSTEM_NOT_READY
            assert shell("init").code == SYSTEM_NOT_READY
            shell.send("exit")
            errors = shell.errors()
    assert errors.count("no process slot is free") == 1
    with Shell(env) as shell:
        assert shell.alloc(64 * MIB) == SUCCESS


NAMESPACE = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child")
may_unshare = subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not may_unshare, reason="no PID namespaces for this user")
@pytest.mark.parametrize("proc", [("--mount-proc",), ()], ids=["own /proc", "the host's /proc"])
def test_pid_namespaces(proc: tuple[str, ...], env: dict[str, str], slot: Slot) -> None:
    """Both are process 1, each in its own namespace; the slots' locks know them apart."""
    with (
        Shell(env, under=(*NAMESPACE, *proc)) as one,
        Shell(env, under=(*NAMESPACE, *proc)) as other,
    ):
        assert one("pid").code == other("pid").code == 1
        assert one.alloc(40 * MIB) == SUCCESS
        assert other.alloc(30 * MIB) == OUT_OF_MEMORY
        one.kill()
        wait_for_death(one)
        while (granted := other.alloc(60 * MIB)) == OUT_OF_MEMORY:
            assert slot.used(0) in (0, 40 * MIB)  # the namespace's first process still exits
        assert granted == SUCCESS
        assert slot.used(0) == 60 * MIB


def test_slots_of_the_dead_are_used_again(env: dict[str, str], slot: Slot) -> None:
    for _ in range(20):
        with Shell(env):
            pass
    high = slot.offset("mizar_usage.slot_high")
    assert int.from_bytes(slot.usage.read_bytes()[high : high + 4], "little") <= 2


def test_devices_are_cards_by_uuid(env: dict[str, str]) -> None:
    """CUDA_VISIBLE_DEVICES turned the order round: device 0 is card 1, which has 32 MiB."""
    with Shell(env | {"FAKE_ORDER": "1023"}) as shell:
        assert shell.free_and_total() == (32 * MIB, 32 * MIB)
        assert shell("total", 1).detail == 64 * MIB


def test_a_default_pool_has_its_own_devices_limit(env: dict[str, str], slot: Slot) -> None:
    """Not that of the stream's device, which is device 0 with 64 MiB; device 1 has 32 MiB."""
    with Shell(env) as shell:
        before = [slot.used(card) for card in (0, 1)]
        assert shell("elsewhere", 40 * MIB).code == OUT_OF_MEMORY
        assert shell("elsewhere", 20 * MIB).code == SUCCESS
        assert shell("elsewhere", 20 * MIB).code == OUT_OF_MEMORY
        taken = [slot.used(card) - held for card, held in zip((0, 1), before, strict=True)]
        assert taken == [0, 20 * MIB]
        assert shell("free_async", 0).code == SUCCESS


def test_own_pid_and_start_time_are_told(env: dict[str, str], slot: Slot) -> None:
    with Shell(env) as shell:
        entry = slot.usage.read_bytes()[slot.offset("mizar_usage.slots") :]
        pid, state, start = struct.unpack_from("<IIQ", entry)
        stat = Path(f"/proc/{shell.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        assert (pid, state, start) == (shell.process.pid, 1, int(stat[19]))


@pytest.mark.parametrize("storm", ["threads", "processes", "kills", "crowd", "imports"])
def test_storm(storm: str, env: dict[str, str], slot: Slot) -> None:
    run("storm", storm, str(times(20, quick=7)), env=env)
    assert slot.used(0) == 0


@pytest.mark.parametrize("mode", [0, 1], ids=["free", "metered"])
def test_forks_while_threads_allocate_and_launch(
    mode: int, env: dict[str, str], slot: Slot
) -> None:
    """The children begin anew, or execute another program: none hangs, and no byte is lost."""
    slot.set_limits(Card(card_uuid(0), 64 * MIB, compute_mode=mode))
    run("storm", "forks", str(times(30, quick=10)), env=env)
    assert slot.used(0) == 0
