"""An agent whose event loop hangs ends."""

import asyncio
import faulthandler
import subprocess
import sys
from pathlib import Path

import pytest

from mizar_nodeagent import main
from mizar_nodeagent.config import Config
from mizar_nodeagent.loop_watchdog import HANGS_AFTER_S, end_when_hanging
from support.waiting import PATIENCE_S

HANGS = """
import asyncio, threading
from mizar_nodeagent.loop_watchdog import end_when_hanging

def wait_for_ever():
    threading.Event().wait()

async def hang():
    watching = asyncio.create_task(end_when_hanging(0.2))
    await asyncio.sleep({works})
    wait_for_ever()

asyncio.run(hang())
"""


@pytest.mark.parametrize("works", [0, 0.5])
def test_a_loop_that_hangs_ends_the_process_and_shows_where(works: float) -> None:
    """At once, or after it has done its work for a while."""
    code = HANGS.format(works=works)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert "in wait_for_ever" in done.stderr


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
