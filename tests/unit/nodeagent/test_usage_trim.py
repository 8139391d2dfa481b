"""What a tenant adds to its usage file is soon cut off, again and again."""

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mizar_nodeagent.container import usage_trim
from mizar_nodeagent.container.slots import Owner, Slot
from mizar_nodeagent.container.usage_trim import TELL_EVERY_S, UsageTrimmer
from mizar_nodeagent.time_slicing.container_files import Container, ContainerFiles
from support.logs import logged
from support.waiting import PATIENCE_S, until
from unit.nodeagent.makers import OWNER, RESOURCE, device, new_slots


class Node:
    """Two slots, and a trimmer whose events are kept."""

    def __init__(self, folder: Path) -> None:
        self.slots = new_slots(folder)
        self.first, self.second = (
            self.slots.assign(self.slots.create(RESOURCE, [device(one)], 1.0), OWNER)
            for one in (0, 1)
        )
        self.now = 0.0
        self.told: list[tuple[Owner, str, str]] = []
        self.trimmer = UsageTrimmer(
            self.slots, lambda *event: self.told.append(event), lambda: self.now
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def fill(slot: Slot, size: int = 1 << 20) -> int:
    """Add bytes to the container's usage file; returns the size before."""
    before = slot.usage.stat().st_size
    with slot.usage.open("ab") as file:
        file.write(b"x" * size)
    return before


async def test_within_a_second_and_again(node: Node) -> None:
    assert usage_trim.EVERY_S <= 1
    running = asyncio.create_task(node.trimmer.run())
    for _ in range(2):
        size = fill(node.second)
        await until(lambda: node.second.usage.stat().st_size == size)  # noqa: B023
    running.cancel()


async def test_another_slot_that_cannot_be_looked_at_keeps_nobody_from_it(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.first.usage.unlink()
    node.first.usage.symlink_to(node.first.usage)
    size = fill(node.second)
    await node.trimmer.trim()
    await node.trimmer.trim()
    assert node.second.usage.stat().st_size == size
    assert [(line["event"], line["slot"]) for line in logged(caplog)] == [
        ("a slot's usage cannot be trimmed", node.first.name),
        ("the container fills the disk", node.second.name),
    ]


async def test_its_pod_is_told_now_and_then(node: Node) -> None:
    for _ in range(3):
        fill(node.second)
        await node.trimmer.trim()
    ((owner, reason, sentence),) = node.told
    assert (owner, reason) == (OWNER, "IsolationNotEnforced")
    assert "added 1024 KiB to /run/mizar/usage" in sentence
    node.now = TELL_EVERY_S
    fill(node.second)
    await node.trimmer.trim()
    assert len(node.told) == 2


async def test_extended_attributes_are_removed_and_its_pod_is_told(node: Node) -> None:
    """Where the file system sets them no bound, as XFS, they are a way around that of the size."""
    for number in range(3):
        os.setxattr(node.second.usage, f"user.{number}", b"x" * 1000)
    await node.trimmer.trim()
    assert os.listxattr(node.second.usage) == []
    ((owner, reason, sentence),) = node.told
    assert (owner, reason) == (OWNER, "IsolationNotEnforced")
    assert "3 extended attributes" in sentence
    node.now = TELL_EVERY_S
    await node.trimmer.trim()
    assert len(node.told) == 1


async def test_of_more_than_the_kernel_lists_its_pod_is_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played: the file system of the tests may not take as many."""

    def listed(path: Path) -> list[str]:
        raise OSError(errno.E2BIG, "Argument list too long")

    monkeypatch.setattr(os, "listxattr", listed)
    await node.trimmer.trim()
    assert [sentence for _, _, sentence in node.told] == [
        "container main gave /run/mizar/usage more extended attributes than can be listed, which "
        "may fill the node's disk, and stay until the pod is gone: delete it"
    ] * 2


async def test_a_file_system_without_extended_attributes_is_well(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(path: Path) -> list[str]:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "listxattr", refused)
    await node.trimmer.trim()
    assert not node.told
    assert not logged(caplog)


TAKES_IT_AGAIN = """
import fcntl, os, signal, sys
file = os.open(sys.argv[1], os.O_RDONLY)

def again(*_):
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        print("refused", flush=True)

signal.signal(signal.SIGIO, again)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print("held", flush=True)
while True:
    signal.pause()
"""


async def test_nor_does_one_that_is_taken_again_whenever_it_ends(node: Node) -> None:
    """As by root in a container while no agent runs that has the file open."""
    size = fill(node.second)
    tenant = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", TAKES_IT_AGAIN, node.second.usage), stdout=subprocess.PIPE
    )
    try:
        assert tenant.stdout and await tenant.stdout.readline() == b"held\n"
        async with asyncio.timeout(PATIENCE_S):
            while node.second.usage.stat().st_size != size:
                await node.trimmer.trim()
                await asyncio.sleep(0.01)
        assert await tenant.stdout.readline() == b"refused\n"
    finally:
        tenant.kill()
        await tenant.communicate()


async def test_a_lease_keeps_nobody_from_cutting_it_off(node: Node) -> None:
    """Root in the container could hold a lease, and the agent's open would have to wait for it."""
    files = ContainerFiles(Container("s", node.second.limits, node.second.usage))
    size = fill(node.second)
    tenant = os.open(node.second.usage, os.O_RDONLY)
    with pytest.raises(OSError, match="temporarily unavailable"):
        fcntl.fcntl(tenant, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    await node.trimmer.trim()
    assert node.second.usage.stat().st_size == size
    os.close(tenant)
    files.close()
