"""The mirror of the regions' layout, and what the agent writes into and reads from regions."""

import ctypes
import fcntl
import itertools
import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mizar_core import time_grants
from mizar_core.carve import CardLimit
from mizar_nodeagent.errors import RegionDamaged
from mizar_nodeagent.regions import layout, limits_file, usage_file, usage_snapshot

ROOT = Path(__file__).resolve().parents[3]
PRINTER = ROOT / "build" / "shim" / "regions-layout"
GIB = 1 << 30
WHO = limits_file.ContainerIdentity("team-a", "share", "uid-1", "main", "shadow-2-aaaaa-0-0123")
LIMIT = CardLimit("GPU-1", 8 * GIB, 5000, "Hard", "None")

MIRRORS: dict[str, type[ctypes.LittleEndianStructure]] = {
    "mizar_limits_card": layout.LimitsCard,
    "mizar_limits_live": layout.LimitsLive,
    "mizar_limits": layout.Limits,
    "mizar_ledger": layout.Ledger,
    "mizar_held": layout.Held,
    "mizar_compute": layout.Compute,
    "mizar_usage_card": layout.UsageCard,
    "mizar_slot_card": layout.SlotCard,
    "mizar_copied": layout.Copied,
    "mizar_copies": layout.Copies,
    "mizar_usage_slot": layout.UsageSlot,
    "mizar_usage": layout.Usage,
}


@pytest.mark.skipif(not PRINTER.exists(), reason="the shim is not built: run `make shim`")
def test_the_mirror_is_the_headers_layout() -> None:
    printed = json.loads(subprocess.run([PRINTER], check=True, capture_output=True).stdout)
    for name, size in printed["sizes"].items():
        assert ctypes.sizeof(MIRRORS[name]) == size, name
    for name, (offset, size) in printed["fields"].items():
        struct_name, field = name.split(".")
        mirrored = getattr(MIRRORS[struct_name], field)
        assert (mirrored.offset, mirrored.size) == (offset, size), name
    constants = printed["constants"]
    assert constants["MIZAR_SLOT_MAX"] == layout.SLOT_MAX
    assert constants["MIZAR_USAGE_SIZE"] == layout.USAGE_SIZE
    assert constants["MIZAR_LIMITS_SIZE"] == layout.LIMITS_SIZE
    assert constants["MIZAR_REGIONS_VERSION"] == layout.VERSION
    assert constants["MIZAR_LIMITS_CRC_FROM"] == layout.CRC_FROM
    assert constants["MIZAR_LIMITS_CRC_TO"] == layout.CRC_TO
    assert constants["MIZAR_BYTES_MAX"] == layout.BYTES_MAX
    assert constants["MIZAR_COMPUTE_STOPPED"] == layout.COMPUTE_STOPPED
    assert constants["MIZAR_CODE_PAGE"] == layout.CODE_PAGE
    assert constants["MIZAR_CODE_PER_PAGE"] == layout.CODE_PER_PAGE
    assert constants["MIZAR_SHIM_PAST"] == layout.SHIM_PAST
    assert constants["MIZAR_WINDOW_BITS"] == time_grants.WINDOW_BITS
    assert constants["MIZAR_WINDOW_VALID"] == time_grants.WINDOW_VALID
    assert constants["MIZAR_COPY_TO_DEVICE"] == layout.COPY_TO_DEVICE
    assert constants["MIZAR_COPY_TO_HOST"] == layout.COPY_TO_HOST
    assert constants["MIZAR_COPY_DEVICES"] == layout.COPY_DEVICES
    assert constants["MIZAR_COPY_OTHER"] == layout.COPY_OTHER
    assert constants["MIZAR_MEMSET"] == layout.MEMSET
    assert constants["MIZAR_COPY_KINDS"] == layout.COPY_KINDS
    assert constants["MIZAR_SLOT_LOCK(1)"] == layout.slot_lock(1)
    assert printed["magic"] == {
        "limits": layout.LIMITS_MAGIC.decode(),
        "usage": layout.USAGE_MAGIC.decode(),
    }


def test_new_limits_are_empty_and_no_shim_would_take_them(tmp_path: Path) -> None:
    limits_file.create_empty(tmp_path / "limits")
    assert (tmp_path / "limits").stat().st_size == layout.LIMITS_SIZE
    with pytest.raises(RegionDamaged):
        limits_file.read(tmp_path / "limits")


def test_limits_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    limits_file.create_empty(path)
    limits_file.write(path, WHO, [LIMIT], {"GPU-1": 16 * GIB})
    found = limits_file.read(path)
    assert (found.pod_namespace, found.pod_name, found.container) == (b"team-a", b"share", b"main")
    assert found.card_count == 1
    card = found.cards[0]
    assert (card.uuid, card.memory_limit, card.memory_physical) == (b"GPU-1", 8 * GIB, 16 * GIB)
    assert (card.memory_mode, card.compute_mode, card.core_share) == (0, 0, 5000)


def test_writing_moves_the_sequence_by_two_and_only_when_something_changes(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    limits_file.create_empty(path)
    seen = []
    for who in (WHO, WHO, limits_file.ContainerIdentity("team-a", "share", "uid-1", "init", "s")):
        limits_file.write(path, who, [LIMIT], {})
        seen.append(limits_file.read(path).seq)
    assert seen == [2, 2, 4]


def test_a_writer_that_died_half_way_is_cured(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    limits_file.create_empty(path)
    limits_file.write(path, WHO, [LIMIT], {})
    with path.open("r+b") as file:
        file.seek(16)
        file.write((3).to_bytes(4, "little"))
    with pytest.raises(RegionDamaged):
        limits_file.read(path)
    limits_file.write(path, WHO, [LIMIT], {})
    assert limits_file.read(path).seq == 4


def test_a_flipped_bit_is_noticed_and_mended(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    limits_file.create_empty(path)
    limits_file.write(path, WHO, [LIMIT], {})
    raw = bytearray(path.read_bytes())
    raw[1024 + 64 + 5] ^= 1
    path.write_bytes(raw)
    with pytest.raises(RegionDamaged):
        limits_file.read(path)
    limits_file.write(path, WHO, [LIMIT], {})
    assert limits_file.read(path).cards[0].memory_limit == 8 * GIB


def test_containers_are_told_which_of_their_cards_are_lent(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    limits_file.create_empty(path)
    other = CardLimit("GPU-2", 8 * GIB, 5000, "Hard", "None")
    limits_file.write(path, WHO, [LIMIT, other], {"GPU-1": 16 * GIB, "GPU-2": 16 * GIB})
    for lent, words in ((["GPU-2"], [0, 1]), (["GPU-1", "GPU-3"], [1, 0]), ([], [0, 0])):
        limits_file.set_borrowed(path, lent)
        found = limits_file.read(path)
        assert [card.borrowed for card in found.live[:2]] == words
        assert found.asleep == any(words)


def test_limits_of_another_size_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "limits").write_bytes(b"short")
    with pytest.raises(RegionDamaged, match="5 bytes"):
        limits_file.write(tmp_path / "limits", WHO, [LIMIT], {})


def ledger(seq: int, slot: int, slot_bytes: int, total: int) -> tuple[int, int]:
    """The two words of a ledger, as the header lays them out."""
    lo = seq | slot << 32 | (slot_bytes >> 21) << 42
    return lo, slot_bytes & 0x1FFFFF | total << 21


def put_usage(path: Path, card: int, words: tuple[int, int], held: dict[int, int]) -> None:
    with path.open("r+b") as file:
        file.seek(4096 + 512 * card)
        file.write(struct.pack("<QQ", *words))
        file.seek(32 - 8)
        file.write(struct.pack("<I", max(held) + 1))
        for slot, size in held.items():
            file.seek(12288 + 1024 * slot)
            file.write(struct.pack("<I", 100 + slot))
            file.seek(12288 + 1024 * slot + 128 + 16 * card)
            file.write(struct.pack("<Q", size))


def lock(path: Path, slot: int) -> int:
    """Hold the lock of a live process in a slot: the lock ends when the descriptor is closed."""
    descriptor = os.open(path, os.O_RDWR)
    ask = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, 0, 12288 + 1024 * slot, 1, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, ask)
    return descriptor


def test_use_counts_living_processes_and_the_gates_statement(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage_file.create(path)
    assert path.stat().st_mode & 0o777 == 0o666
    assert usage_snapshot.card_usage(path, 1) == (usage_snapshot.CardUsage(0, 0),)
    # Slot 2's own record is behind the ledger; slot 5 is dead.
    put_usage(path, 0, ledger(7, 2, 5 * GIB + 3, 9 * GIB), {1: GIB, 2: 1, 5: 3 * GIB})
    living = [lock(path, 1), lock(path, 2)]
    assert usage_snapshot.card_usage(path, 1)[0].bytes == GIB + 5 * GIB + 3
    os.close(living.pop())
    assert usage_snapshot.card_usage(path, 1)[0].bytes == GIB
    os.close(living.pop())
    assert usage_snapshot.card_usage(path, 1)[0].bytes == 0


def put_member(
    path: Path, slot: int, pid: int, started: int, begun: int = 0, absent: int = 0
) -> None:
    with path.open("r+b") as file:
        file.seek(12288 + 1024 * slot)
        file.write(struct.pack("<IIQ", pid, 1, started))
        file.seek(12288 + 1024 * slot + 64)
        file.write(struct.pack("<I", begun))
        file.seek(12288 + 1024 * slot + 384)
        file.write(struct.pack("<Q", absent))


def test_locks_without_number_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may lock each byte of the file, and the kernel looks through all locks."""
    path = tmp_path / "usage"
    usage_file.create(path)
    put_usage(path, 0, (0, 0), dict.fromkeys(range(20), 0))
    for slot in range(20):
        put_member(path, slot, 100 + slot, 1)
    assert usage_snapshot.take(path, 1).alive == frozenset()
    seconds = itertools.count(step=0.1)
    monkeypatch.setattr(time, "thread_time", lambda: next(seconds))
    with pytest.raises(RegionDamaged, match="too many locks"):
        usage_snapshot.take(path, 1)


def test_what_processes_hold_tells_whether_they_moved(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage_file.create(path)
    put_usage(path, 0, ledger(7, 2, 5 * GIB, 9 * GIB), {1: GIB, 2: 1, 5: 3 * GIB})
    # Slot 5 is dead, and it is the second slot of process 101.
    for slot, begun, absent in ((1, 0, 0), (2, 1, 0), (5, 0, 3 * GIB)):
        put_member(path, slot, 100 + slot % 4, 1, begun, absent)
    (first,) = usage_snapshot.take(path, 1).holdings
    assert first == {
        (101, 1): usage_snapshot.Holding(GIB + 3 * GIB, (0, 0), False, 3 * GIB),
        (102, 1): usage_snapshot.Holding(5 * GIB, (7,), True),
    }
    put_usage(path, 0, ledger(8, 1, GIB, 9 * GIB), {6: 0})
    (later,) = usage_snapshot.take(path, 1).holdings
    assert later[101, 1] != first[101, 1]  # it took nothing in the end, but has moved


def test_uses_of_code_that_may_not_have_come_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage_file.create(path)
    put_usage(path, 0, (0, 0), {1: 0, 2: 0})
    for slot in (1, 2):
        put_member(path, slot, slot, 1, begun=slot)
    with path.open("r+b") as file:
        file.seek(4096 + 176)
        file.write(struct.pack("<Q", 10))
    assert usage_snapshot.card_usage(path, 1)[0].code_uses == 10
    living = [lock(path, 1), lock(path, 2)]
    assert usage_snapshot.card_usage(path, 1)[0].code_uses == 10 - 3
    os.close(living.pop())
    assert usage_snapshot.card_usage(path, 1)[0].code_uses == 10 - 1
    os.close(living.pop())


def put_copies(path: Path, at: int, counts: dict[int, tuple[int, int]], card: int = 0) -> None:
    with path.open("r+b") as file:
        for kind, pair in counts.items():
            file.seek(at + 16 * kind)
            file.write(struct.pack("<QQ", *pair))
        file.seek(at + 80)
        file.write(struct.pack("<Q", card))


def test_copies_of_the_dead_are_counted_as_those_of_the_living(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage_file.create(path)
    put_usage(path, 0, (0, 0), {3: 0})  # four slots, all of dead processes
    put_copies(path, 2048 + 128, {layout.COPY_TO_HOST: (1, 10), layout.MEMSET: (7, 70)})
    put_copies(path, 12288 + 896, {layout.COPY_TO_HOST: (2, 20)}, card=2)
    put_copies(path, 12288 + 3 * 1024 + 896, {layout.COPY_TO_DEVICE: (4, 40)}, card=2)
    put_copies(path, 12288 + 1024 + 896, {layout.COPY_TO_HOST: (8, 80)}, card=1)
    put_copies(path, 12288 + 2 * 1024 + 896, {layout.COPY_TO_HOST: (9, 90)}, card=99)
    first, second = usage_snapshot.card_usage(path, 2)
    assert first.copied[layout.COPY_TO_HOST] == usage_snapshot.Copied(8, 80)
    assert first.copied[layout.MEMSET] == usage_snapshot.Copied()
    assert second.copied == (
        usage_snapshot.Copied(4, 40),
        usage_snapshot.Copied(3, 30),
        usage_snapshot.Copied(),
        usage_snapshot.Copied(),
        usage_snapshot.Copied(7, 70),
    )


def test_a_gate_is_taken_apart_as_the_header_says() -> None:
    big = (1 << 43) - 5
    assert usage_snapshot.unpack_ledger(*ledger(1, 1023, big, big - 1)) == usage_snapshot.Ledger(
        1023, big, big - 1, 1
    )


def test_a_usage_file_cut_short_by_its_tenant_is_noticed_and_mended(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage_file.create(path)
    os.truncate(path, 100)
    with pytest.raises(RegionDamaged):
        usage_snapshot.card_usage(path, 1)
    usage_file.repair_header(path, layout.VERSION)
    assert usage_snapshot.card_usage(path, 1)[0].bytes == 0


@pytest.fixture
def _lease_breaks_are_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


@pytest.mark.usefixtures("_lease_breaks_are_ignored")
def test_a_tenants_lease_keeps_nobody_waiting(tmp_path: Path) -> None:
    """An ordinary open would wait for 45 s, and the agent's event loop with it."""
    region, path = tmp_path / "usage", tmp_path / "limits"
    usage_file.create(region)
    limits_file.create_empty(path)
    leases = [os.open(one, os.O_RDONLY) for one in (region, path)]
    for lease in leases:
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    try:
        for attempt in (
            lambda: usage_snapshot.card_usage(region, 1),
            lambda: usage_file.repair_header(region, layout.VERSION),
            lambda: limits_file.write(path, WHO, [LIMIT], {}),
            lambda: limits_file.read(path),
        ):
            with pytest.raises(BlockingIOError):
                attempt()
    finally:
        for lease in leases:
            os.close(lease)


def test_what_is_behind_the_region_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage_file.create(path)
    content = path.read_bytes()
    assert not usage_file.truncate_excess(path)
    with path.open("ab") as file:
        file.write(b"x" * 5000)
    assert usage_file.truncate_excess(path) == 5000
    assert path.read_bytes() == content


def test_a_usage_file_has_all_of_its_blocks_from_the_start(tmp_path: Path) -> None:
    """On a disk that another tenant fills, a process that writes to a part without a block gets
    SIGBUS."""
    path = tmp_path / "usage"
    usage_file.create(path)
    assert path.stat().st_size == layout.USAGE_SIZE
    assert path.stat().st_blocks * 512 >= layout.USAGE_SIZE
    assert not usage_file.truncate_excess(path)


def test_blocks_that_are_reserved_behind_the_region_are_given_back(tmp_path: Path) -> None:
    """fallocate takes them without changing the file's size."""
    keep_size, path = 1, tmp_path / "usage"
    usage_file.create(path)
    with path.open("r+b") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        size = ctypes.c_int64(64 << 20)
        assert libc.fallocate(file.fileno(), keep_size, ctypes.c_int64(0), size) == 0
    assert path.stat().st_blocks * 512 > 60 << 20
    assert usage_file.truncate_excess(path) > 60 << 20
    assert path.stat().st_blocks * 512 < 2 << 20
    assert not usage_file.truncate_excess(path)


def test_healing_keeps_the_accounts(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    usage_file.create(path)
    put_usage(path, 0, ledger(1, 1, GIB, GIB), {1: GIB})
    with path.open("r+b") as file:
        file.write(b"NONSENSE")
    usage_file.repair_header(path, layout.VERSION)
    living = lock(path, 1)
    assert usage_snapshot.card_usage(path, 1)[0].bytes == GIB
    os.close(living)
