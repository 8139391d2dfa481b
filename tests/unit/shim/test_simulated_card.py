"""The shim on a simulated card, which keeps its own account of what the processes hold."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import simgpu
from support.effort import SEED
from support.waiting import PATIENCE_S
from unit.simgpu.harness import compile_snippets, snippet_names

from .shell import OUT_OF_MEMORY, SUCCESS, Shell
from .slot import BUILD, MIB, Card, Slot

LIMIT = 1024 * MIB
CONTEXT = 100 * MIB
WAYS = {"plain": 0, "pitch": 1, "managed": 2, "handles": 13, "mapped": 12, "contexts": 19}


class Container:
    """A machine with one card, and a slot that allows LIMIT bytes of it, and a share of its time in
    percent; 0 where its time is not metered."""

    def __init__(
        self, folder: Path, layout: dict[str, Any], profile: str | None = None, share: int = 0
    ) -> None:
        self.machine = simgpu.create(
            folder / "machine", cards=1, profile=profile, context_bytes=CONTEXT
        )
        uuid, mode = self.machine.cards[0].uuid, int(bool(share))
        self.slot = Slot(folder / "slot", layout)
        self.slot.set_limits(
            Card(
                uuid,
                LIMIT,
                compute_mode=mode,
                core_share=(share or 100) * 100,
                context_bytes=CONTEXT,
            )
        )
        self.env = {
            "LD_PRELOAD": str(BUILD / "testing" / "libmizar.so"),
            "MIZAR_DIR": str(self.slot.path),
            "CUDA_MODULE_LOADING": "EAGER",  # nobody here asks NVML for what is loaded later
            **simgpu.environment(self.machine.directory),
        }

    @contextmanager
    def soak(self, seed: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """programs/soak.c: random work, checked by itself."""
        command = [str(BUILD / "tests" / "soak"), str(seed), *arguments]
        with subprocess.Popen(command, env=self.env, stderr=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()

    def used(self) -> int:
        """The bytes that the card counts; they are read again where a death in between made them
        count twice."""
        used = self.machine.cards[0].used
        return used if used <= LIMIT else self.machine.cards[0].used


@pytest.fixture
def container(tmp_path: Path, layout: dict[str, Any]) -> Container:
    return Container(tmp_path, layout)


@pytest.mark.parametrize("way", WAYS)
def test_the_card_never_holds_more_than_the_limit(way: str, container: Container) -> None:
    with container.soak(SEED, "150", "2", str(WAYS[way])) as process:
        while process.poll() is None:
            assert container.used() <= LIMIT
        assert process.returncode == 0, process.stderr and process.stderr.read()


COPYING = {
    "bytes_come_back_as_they_went": [(1, 32), (1, 32), (0, 0), (1, 32), (0, 0)],
    "memory_is_filled_with_patterns": [(0, 0), (1, 16), (0, 0), (0, 0), (2, 28)],
    "rectangles_are_copied_by_their_pitches": [(1, 12), (1, 6), (0, 0), (0, 0), (0, 0)],
    "a_batch_copies_all_of_it": [(0, 0), (1, 8), (0, 0), (4, 24), (0, 0)],
    "threads_may_use_one_context_together": [(1200, 76800)] + [(0, 0)] * 4,
    "captured_streams_become_a_graph": [(0, 0)] * 5,  # a memset is recorded
    "a_copy_may_be_waited_for_beside_a_capture": [(0, 0), (1, 4), (0, 0), (0, 0), (1, 4)],
    "a_spoiled_capture_fails": [(0, 0)] * 5,
}
KINDS = ["COPY_TO_DEVICE", "COPY_TO_HOST", "COPY_DEVICES", "COPY_OTHER", "MEMSET"]


@contextmanager
def generous(folder: Path, layout: dict[str, Any], metered: bool) -> Iterator[Snippets]:
    """A machine on whose clock no process waits, and a container that may have all of it."""
    with simgpu.create(folder / "machine", cards=2, clock="stepped", switch_ns=0) as machine:
        slot = Slot(folder / "slot", layout)
        mode = int(metered)
        slot.set_limits(*(Card(card.uuid, 1 << 40, compute_mode=mode) for card in machine.cards))
        preload = {"LD_PRELOAD": str(BUILD / "testing" / "libmizar.so")}
        env = preload | {"MIZAR_DIR": str(slot.path)} | simgpu.environment(machine.directory)
        yield Snippets(slot, compile_snippets(), env)


@dataclass(frozen=True)
class Snippets:
    """The simulated driver's own tests, under the shim."""

    slot: Slot
    program: Path
    env: dict[str, str]

    def run(self, name: str, loading: str = "EAGER") -> str:
        """What the snippet prints that differs; nothing if all is as without the shim."""
        command, env = [self.program, name], self.env | {"CUDA_MODULE_LOADING": loading}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (done.returncode == 0) == (done.stderr == "")
        return done.stderr


@pytest.mark.parametrize("metered", [False, True])
@pytest.mark.parametrize("snippet", COPYING)
def test_copies_are_counted(
    snippet: str, metered: bool, tmp_path: Path, layout: dict[str, Any]
) -> None:
    with generous(tmp_path, layout, metered) as snippets:
        assert snippets.run(snippet) == ""
        assert [snippets.slot.copied(0, kind) for kind in KINDS] == COPYING[snippet]


@pytest.fixture(scope="module", params=["metered", "unmetered"])
def snippets(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, layout: dict[str, Any]
) -> Iterator[Snippets]:
    folder = tmp_path_factory.mktemp(request.param)
    with generous(folder, layout, request.param == "metered") as made:
        yield made


CHARGED_OTHERWISE = {
    "a_graph_takes_its_memory_when_it_is_launched",  # it is charged from when it is instantiated
    "opened_memory_is_there_once",  # and charged twice
    # What an object keeps is charged until the object is gone.
    "what_is_unbound_is_not_kept",
    "a_sparse_array_has_the_memory_that_is_mapped_into_it",
    "a_tile_gives_way_to_the_next",
}


OTHERWISE = r".*: used\(\) is \d+, not \d+\n(.*: status is 256, not 0\n)?"
LAZY = snippet_names("code")


@pytest.mark.parametrize("snippet", [name for name in snippet_names() if name not in LAZY])
def test_the_driver_does_what_it_does_without_the_shim(snippet: str, snippets: Snippets) -> None:
    expected = OTHERWISE if snippet in CHARGED_OTHERWISE else ""
    assert re.fullmatch(expected, snippets.run(snippet))


@pytest.mark.parametrize("snippet", LAZY)
@pytest.mark.parametrize("metered", [False, True], ids=["unmetered", "metered"])
def test_code_comes_as_without_the_shim(
    snippet: str, metered: bool, tmp_path: Path, layout: dict[str, Any]
) -> None:
    """But room is kept for the code, and nothing reports here that the code has come."""
    finds_room = r".*: cuLaunchKernel\(.*\) is 0, not 2\n"
    with generous(tmp_path, layout, metered) as snippets:
        assert re.fullmatch(f"({OTHERWISE}|{finds_room})?", snippets.run(snippet, "LAZY"))


def test_kills_at_any_moment_lose_no_byte(container: Container) -> None:
    chance = random.Random(SEED)
    for seed in range(8):
        with container.soak(seed, "1000000", "2") as process:
            for _ in range(chance.randrange(1, 12)):
                container.used()
            process.send_signal(signal.SIGKILL)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert container.machine.cards[0].used == 0
    sample = [BUILD / "tests" / "shell"]
    ask = f"init\nuse 0\nalloc {LIMIT - CONTEXT}\nalloc {2 * MIB}\n"
    done = subprocess.run(sample, env=container.env, input=ask, capture_output=True, text=True)
    assert done.stdout.split()[::2] == ["0", "0", "0", "2"], done.stderr


# ---- oversubscription: a limit above what the card has left ----

STEP = 512 * MIB
STAND_INS = {"alloc": "free", "pitch": "free", "managed": "free"} | dict.fromkeys(
    ("async", "pooled"), "free_async"
)
BOUNDED = ["create", "array"]


@contextmanager
def oversubscribed(container: Container, neighbour: int) -> Iterator[Shell]:
    """A program that may have more than the card, of which a neighbour has `neighbour` bytes."""
    card = container.machine.cards[0]
    limit = card.total - neighbour + LIMIT
    container.slot.set_limits(Card(card.uuid, limit, memory_mode=1, context_bytes=CONTEXT))
    bare = {name: value for name, value in container.env.items() if name != "LD_PRELOAD"}
    with Shell(bare) as other, Shell(container.env) as shell:
        assert neighbour == 0 or other.alloc(neighbour) == SUCCESS
        yield shell


def take_all(shell: Shell, way: str) -> int:
    """Allocate until an allocation is refused; returns how many were not."""
    times = 0
    while (code := shell(way, STEP).code) == SUCCESS:
        times += 1
    assert code == OUT_OF_MEMORY
    return times


@pytest.mark.parametrize("neighbour", [0, 8192 * MIB])
@pytest.mark.parametrize("way", STAND_INS)
def test_what_is_said_to_be_free_can_be_taken(
    way: str, neighbour: int, container: Container
) -> None:
    with oversubscribed(container, neighbour) as shell:
        free, total = shell.free_and_total()
        assert free == total - CONTEXT
        assert take_all(shell, way) == free // STEP
        assert shell.free_and_total() == (free % STEP, total)
        for number in range(free // STEP):
            assert shell(STAND_INS[way], number).code == SUCCESS
        assert shell("sync").code == SUCCESS
        assert shell.free_and_total() == (free, total)


@pytest.mark.parametrize("way", BOUNDED)
def test_what_has_no_stand_in_is_bounded_by_the_card(way: str, container: Container) -> None:
    with oversubscribed(container, 8192 * MIB) as shell:
        free, total = shell.free_and_total()
        taken = take_all(shell, way)
        assert 0 < taken < free // STEP
        assert container.machine.cards[0].used > container.machine.cards[0].total - 2 * STEP
        assert shell.free_and_total() == (free - taken * STEP, total)
        assert take_all(shell, "alloc") == free // STEP - taken  # what is said to be free


# ---- code ----


@pytest.mark.parametrize("mode", ["EAGER", "LAZY"])
def test_code_is_charged_where_it_comes_when_it_is_loaded(mode: str, container: Container) -> None:
    """Drivers load a kernel when it is first asked for. From then on only NVML shows its code."""
    command, env = BUILD / "bench" / "load", container.env | {"CUDA_MODULE_LOADING": mode}
    pipe = subprocess.PIPE
    with subprocess.Popen([command, "us_20"], env=env, stdin=pipe, stdout=pipe) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        charged, used = container.slot.used(0), container.machine.cards[0].used
        process.kill()
    code = used - CONTEXT
    assert code > 0
    assert charged == used - (code if mode == "LAZY" else 0)
