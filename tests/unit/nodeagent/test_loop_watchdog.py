"""An agent whose event loop hangs ends."""

import asyncio
import faulthandler
import subprocess
import sys
from pathlib import Path

import pytest

from mizar_nodeagent import loop_watchdog, main
from mizar_nodeagent.config import Config
from mizar_nodeagent.loop_watchdog import HANGS_AFTER_S, end_when_hanging
from support.waiting import PATIENCE_S

HANGS = """
import asyncio, faulthandler, threading
from mizar_nodeagent.loop_watchdog import end_when_hanging

watches = faulthandler.dump_traceback_later
before = {before}

def wait_for_ever():
    threading.Event().wait()

def watch_or_hang(seconds, exit):
    global before
    if before:
        watches(600, exit=exit)
    else:
        asyncio.get_running_loop().call_soon(wait_for_ever)
        watches(seconds, exit=exit)
    before -= 1

faulthandler.dump_traceback_later = watch_or_hang
asyncio.run(end_when_hanging(1))
"""
"""A loop that hangs as soon as the watchdog has been set `before` times: only then does its second
begin, since a busy machine may stop the program for as long at any other moment."""


@pytest.mark.parametrize("before", [0, 2])
def test_a_loop_that_hangs_ends_the_process_and_shows_where(before: int) -> None:
    """At once, or after it has done its work for a while."""
    code = HANGS.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert "in wait_for_ever" in done.stderr


async def test_it_is_set_again_long_before_it_would_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[float] = []

    async def sleep(seconds: float) -> None:
        done.append(seconds)
        if len(done) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda s, exit: done.append(s))
    monkeypatch.setattr(loop_watchdog.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await end_when_hanging(60.0)
    limit, pause, *again = done
    assert limit == 60.0 and pause <= limit / 3 and again == [limit, pause]


async def test_an_end_takes_the_watchdog_along(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: calls.append("on"))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: calls.append("off"))
    watching = asyncio.create_task(end_when_hanging())
    await asyncio.sleep(0)
    watching.cancel()
    await asyncio.wait([watching])
    assert calls == ["on", "off"]


def test_the_agent_is_watched_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    armed: list[float] = []

    async def run(config: Config) -> None:
        await asyncio.sleep(0)
        assert armed == [HANGS_AFTER_S]
        armed.append(0.0)

    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda s, exit: armed.append(s))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: None)
    monkeypatch.setattr(main, "_until_signalled", run)
    main.main(["--node-name=n", f"--state-dir={tmp_path}"])
    assert armed == [HANGS_AFTER_S, 0.0]
