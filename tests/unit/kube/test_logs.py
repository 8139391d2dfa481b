"""Log lines: JSON for machines, text for people, whichever library logs."""

import ast
import asyncio
import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mizar_kube.logs import KEYS, bind, bound, get_logger, set_up
from support.logs import Line, lines

ROOT = Path(__file__).resolve().parents[3]

log = get_logger("mizar_test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `set_up` changes is restored after each test."""
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    for name in ("asyncio", "grpc", "kopf"):
        one = logging.getLogger(name)
        monkeypatch.setattr(one, "level", one.level)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    set_up("INFO", "json", stream)
    yield stream


def only(stream: io.StringIO) -> Line:
    (line,) = lines(stream.getvalue())
    return line


def test_a_line_is_an_object(stream: io.StringIO) -> None:
    log.info("limits written", slot="s-1", device=["a/b-0"], path=Path("/a"), error=OSError("gone"))
    line = only(stream)
    assert list(line)[:4] == ["timestamp", "level", "logger", "event"]
    assert (line["level"], line["logger"]) == ("info", "mizar_test")
    assert (line["event"], line["slot"], line["device"]) == ("limits written", "s-1", ["a/b-0"])
    assert (line["path"], line["error"]) == ("/a", "gone")


def test_time_is_in_utc(stream: io.StringIO) -> None:
    log.info("now")
    then = datetime.fromisoformat(only(stream)["timestamp"])
    assert then.tzinfo == UTC
    assert timedelta(0) <= datetime.now(UTC) - then < timedelta(minutes=1)


def test_a_trace_is_in_its_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("of all things")
    except ValueError:
        log.exception("work failed")
        logging.getLogger("aiohttp.server").exception("Error handling %s", "request")
    own, foreign = lines(stream.getvalue())
    assert len(stream.getvalue().splitlines()) == 2
    for line in (own, foreign):
        assert line["exception"].startswith("Traceback (most recent call last)")
        assert line["exception"].endswith("ValueError: of all things")
    assert foreign["event"] == "Error handling request"


def test_others_lines_have_the_context_too(stream: io.StringIO) -> None:
    with bound(pool="default", round=7):
        logging.getLogger("kopf.objects").warning(
            "Something %s",
            "odd",
            extra={"k8s_ref": {"kind": "GPUQuota", "namespace": "a", "name": "q", "uid": "u"}},
        )
    line = only(stream)
    assert (line["event"], line["level"], line["logger"]) == (
        "Something odd",
        "warning",
        "kopf.objects",
    )
    assert (line["pool"], line["round"]) == ("default", 7)
    assert (line["kind"], line["namespace"], line["name"]) == ("GPUQuota", "a", "q")


async def test_what_runs_at_the_same_time_keeps_its_own_context(stream: io.StringIO) -> None:
    both = asyncio.Barrier(2)

    async def call(pod: str) -> None:
        with bound(call="prestart"):
            bind(pod=pod)
            await both.wait()
            log.info("one")

    await asyncio.gather(call("a"), call("b"))
    assert sorted(one["pod"] for one in lines(stream.getvalue())) == ["a", "b"]


def test_levels(stream: io.StringIO) -> None:
    log.debug("not this")
    logging.getLogger("asyncio").debug("nor this")
    assert stream.getvalue() == ""
    set_up("DEBUG", "json", stream)
    log.debug("this")
    for quiet in ("asyncio", "grpc._cython", "kopf.reactor"):
        logging.getLogger(quiet).debug("Using selector")
    assert only(stream)["event"] == "this"


def test_a_terminal_gets_text_for_people() -> None:
    terminal = Terminal()
    set_up("INFO", "auto", terminal)
    log.info("limits written", slot="s-1")
    assert "limits written" in terminal.getvalue()
    assert not lines(terminal.getvalue())


def test_the_format_can_be_chosen() -> None:
    terminal, file = Terminal(), io.StringIO()
    set_up("INFO", "json", terminal)
    log.info("one", slot="s-1")
    set_up("INFO", "console", file)
    log.info("two", slot="s-2")
    assert only(terminal)["slot"] == "s-1"
    assert "slot=s-2" in file.getvalue(), "no colours in a file"


def test_auto_is_json_where_nobody_looks() -> None:
    file = io.StringIO()
    set_up("INFO", "auto", file)
    log.info("one")
    assert only(file)["event"] == "one"


@pytest.mark.parametrize("way", ["raise_it()", "t = Thread(target=raise_it); t.start(); t.join()"])
def test_what_ends_a_process_or_a_thread_is_a_line(way: str) -> None:
    code = (
        "from threading import Thread; from mizar_kube.logs import set_up\n"
        "def raise_it(): raise RuntimeError('out of luck')\n"
        f"set_up('INFO'); {way}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    (line,) = (json.loads(one) for one in done.stderr.splitlines())
    assert line["level"] == "critical"
    assert "RuntimeError: out of luck" in line["exception"]


LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def calls() -> Iterator[tuple[str, ast.Call]]:
    """All log calls and bindings of the programs, with their places."""
    for folder in ("kube", "operator", "nodeagent"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and _is_ours(node.func):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def _is_ours(func: ast.expr) -> bool:
    if isinstance(func, ast.Attribute):
        return isinstance(func.value, ast.Name) and func.value.id == "log" and func.attr in LEVELS
    if isinstance(func, ast.IfExp):
        return _is_ours(func.body)
    return isinstance(func, ast.Name) and func.id in ("bound", "bind")


def test_keys_have_one_name_and_events_are_fixed_words() -> None:
    found = list(calls())
    assert len(found) > 50
    for place, call in found:
        unknown = {one.arg for one in call.keywords if one.arg} - KEYS.keys() - {"exc_info"}
        assert not unknown, f"{place}: {unknown} are no keys of mizar_kube.logs.KEYS"
        for event in call.args:
            assert isinstance(event, ast.Constant), f"{place}: what changes belongs in keys"


def test_every_key_is_used() -> None:
    text = "".join(
        path.read_text()
        for folder in ("kube", "operator", "nodeagent")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "logs.py"
    )
    for key in KEYS:
        assert f"{key}=" in text or f'"{key}"' in text, key
