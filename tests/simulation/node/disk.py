"""The node's disk in a simulation: full now and then, and the agent may be killed while it
writes."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NoReturn, TypeVar
from unittest.mock import patch

from mizar_nodeagent import agent_checkpoint, agent_loop, files, reserved_room
from mizar_nodeagent.container import slots
from mizar_nodeagent.container.shim_install import Shim
from mizar_nodeagent.kubelet import allocated_dra_cards

T = TypeVar("T")


class Killed(BaseException):
    """The agent's process dies here."""


class Disk:
    """`full`: nothing can be written but over what is there. `kill_in`: after so many writes the
    agent dies in the midst of one; None: it does not. `killed` is called then."""

    def __init__(self, random: Random) -> None:
        self.full = False
        self.kill_in: int | None = None
        self.killed: Callable[[], None] = lambda: None
        self._random = random
        self._names = 0

    @contextmanager
    def patched(self) -> Iterator[None]:
        """All that the agent writes goes by this disk; its threads take virtual time, and nothing
        is drawn but by the seed."""
        written, overwritten, exchanged, copied, allocated = (
            files.write_atomically,
            files.overwrite,
            files.change_places,
            Shim.copy_library,
            os.posix_fallocate,
        )

        def write(path: Path, content: bytes, mode: int = 0o644, durable: bool = True) -> None:
            self._check()
            written(path, content, mode, False)

        def overwrite(path: Path, content: bytes) -> None:
            if self._dies():
                overwritten(path, content[: len(content.rstrip()) // 2])
                self._die()
            overwritten(path, content)

        def change_places(new: Path, path: Path) -> None:
            if self._dies():
                self._die()
            exchanged(new, path)

        def copy(shim: Shim, target: Path) -> None:
            self._check()
            copied(shim, target)

        def allocate(descriptor: int, offset: int, size: int) -> None:
            self._check()
            if size < _LARGE:
                allocated(descriptor, offset, size)
            else:
                os.ftruncate(descriptor, size)  # a hole, which takes no time

        with ExitStack() as stack:
            for part, name, by in (
                (agent_checkpoint, "write_atomically", write),
                (reserved_room, "write_atomically", write),
                (reserved_room, "overwrite", overwrite),
                (reserved_room, "change_places", change_places),
                (agent_checkpoint, "overwrite", overwrite),
                (slots, "write_atomically", write),
                (allocated_dra_cards, "write_atomically", write),
                (Shim, "copy_library", copy),
                (os, "posix_fallocate", allocate),
                (asyncio, "to_thread", self._thread),
                (slots, "_new_name", self._name),
                (agent_loop, "rest_after", lambda cpu, allocating: 0.1 if allocating else 0.02),
            ):
                stack.enter_context(patch.object(part, name, by))
            yield

    def _dies(self) -> bool:
        """Whether the agent dies in the midst of this write."""
        if self.kill_in is not None:
            self.kill_in -= 1
        return self.kill_in is not None and self.kill_in < 0

    def _die(self) -> NoReturn:
        self.kill_in = None
        self.killed()
        raise Killed

    def _check(self) -> None:
        if self._dies():
            self._die()
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device (simulated)")

    async def _thread(self, do: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(self._random.choice((0.001, 0.01, 0.3)))
        return do(*args)

    def _name(self, ids: frozenset[str]) -> str:
        self._names += 1
        return f"{min(ids).rpartition('/')[2]}-{self._names}"


_LARGE = 1 << 16
