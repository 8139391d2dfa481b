"""Structured logs, in one form for all programs.

A log call names an event in a few fixed words and says the rest in keys, which are those of `KEYS`:

    log = get_logger(__name__)
    log.info("limits written", slot=slot.name)

The objects that a piece of work is about are bound once, with `bound` or `bind`, and are then in
every line that it logs, including lines of other libraries. In a cluster, a line is a JSON object;
on a terminal, it is formatted for people. All lines pass through the standard library's root
logger.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TextIO

import structlog
from structlog.contextvars import bind_contextvars as bind
from structlog.contextvars import bound_contextvars as bound
from structlog.typing import EventDict, Processor

__all__ = ["KEYS", "bind", "bound", "get_logger", "set_up"]

KEYS: Final[Mapping[str, str]] = {
    # The objects and programs that a line is about.
    "namespace": "the namespace of the pod, shadow pod, quota or other object",
    "pod": "a share pod's name",
    "generate_name": "the beginning of the name of a pod that has none yet",
    "container": "a container's name",
    "pods": "names of waiting share pods, at most five",
    "resource": "the resource's name, as in a pod's requests",
    "resources": "names of several resources",
    "rewritten": "resource names that a pod requested, each with the name that replaced it",
    "slot": "a container's slot on its node",
    "device": "IDs of virtual devices",
    "card": "a card's UUID",
    "index": "a card's place in NVML's list",
    "node": "a node's name",
    "pool": "a GPUPool's name; in a round of planning, those that are planned together",
    "quota": "a GPUQuota's name",
    "shadow": "a shadow pod's name",
    "key": "a key in the operator's work queue",
    "kind": "the kind of any other object",
    "name": "the name of any other object",
    "identity": "a replica's name",
    "lease": "the Lease that decides which replica leads",
    # The work that a line is about.
    "call": "a call by the kubelet or the container runtime",
    "round": "the number of a round of planning, counted from the start of the process",
    "operation": "an admission review's operation",
    "dry_run": "yes for an admission review of a dry run",
    "action": "the type of a planned action",
    "actions": "how many actions of each type a plan has",
    "phase": "a shadow pod's phase",
    "carve": "how a shadow pod's cards are divided into devices, as JSON",
    "settings": "a node agent's settings, as JSON",
    "keys": "keys in a file of settings",
    "in_use": "whether a container holds a device of a shadow pod",
    "at": "when a drain was requested",
    "reason": "the reason of an event or a change",
    "message": "the message of an event or a refusal",
    "problem": "a sentence that says what is wrong",
    "error": "the message of an error",
    # How much.
    "count": "how many",
    "cards": "how many cards",
    "devices": "how many virtual devices",
    "memory_mib": "the memory limit in MiB, by card",
    "core_share": "the share of the card's time in 1/10,000, by card",
    "duration_ms": "how long it took",
    "retry_s": "seconds until the next try",
    "expires": "when a certificate expires",
    "version": "Mizar's version",
    "runtime": "the container runtime's name and version",
    "path": "a file or folder",
    "copy": "a copy of a damaged file",
    "bytes": "the size of a file",
    "server": "an address",
    "access": "how containers get their cards",
    "gate": "a scheduling gate",
    "xid": "NVIDIA's number of a fault",
}
"""The keys of log lines; beside them `timestamp`, `level`, `logger`, `event` and `exception`."""

ORDER: Final = {
    key: place for place, key in enumerate(("timestamp", "level", "logger", "event", *KEYS))
}

# Other libraries that log too much at their own level.
QUIET: Final = {"asyncio": logging.INFO, "grpc": logging.INFO, "kopf": logging.WARNING}


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module."""
    return structlog.stdlib.get_logger(name)


def set_up(level: str, form: str = "auto", stream: TextIO | None = None) -> None:
    """Log from `level` on to `stream` (default: standard error). `form`: json, console, or auto,
    which is console on a terminal. Errors that end the process or a thread are logged too."""
    stream = stream or sys.stderr
    handler, terminal = _Handler(stream), stream.isatty()
    console = form == "console" or (form == "auto" and terminal)
    handler.setFormatter(_formatter(_console(colors=terminal) if console else _json()))
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(root.level, least))
    sys.excepthook = _ended
    threading.excepthook = _thread_ended


def _formatter(render: Sequence[Processor]) -> logging.Formatter:
    """Formats records of Mizar and of other libraries."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*SHARED, _kopfs_object],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )


def _json() -> Sequence[Processor]:
    render = structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.processors.format_exc_info, _sorted_and_plain, render


def _console(colors: bool) -> Sequence[Processor]:
    render = structlog.dev.ConsoleRenderer(
        colors=colors, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
    )
    return _sorted_and_plain, render


class _Handler(logging.StreamHandler[TextIO]):
    """The handler that `set_up` installs, so that a second call can replace it."""


def _sorted_and_plain(_: Any, __: str, event: EventDict) -> EventDict:
    """Sort the keys in the order of `KEYS`, and make text of values that JSON cannot hold."""
    keys = sorted(event, key=lambda key: ORDER.get(key, len(ORDER)))
    return {key: _plain(key, event[key]) for key in keys}


def _plain(key: str, value: Any) -> Any:
    if value is None or isinstance(value, str | int | float) or key == "exc_info":
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain("", one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain("", one) for one in value]
    return str(value) or type(value).__name__


def _kopfs_object(_: Any, __: str, event: EventDict) -> EventDict:
    """Add the object that Kopf attaches to a record."""
    about = getattr(event["_record"], "k8s_ref", None)
    if isinstance(about, Mapping):
        found = {key: about.get(key) for key in ("kind", "namespace", "name")}
        event.update({key: value for key, value in found.items() if value})
    return event


def _ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    get_logger(__name__).critical("ended by an error", exc_info=(kind, error, trace))


def _thread_ended(args: threading.ExceptHookArgs) -> None:
    if not issubclass(args.exc_type, SystemExit):
        error = args.exc_value or args.exc_type()
        get_logger(__name__).critical("a thread ended by an error", exc_info=error)


# Added to every line, of Mizar and of other libraries.
SHARED: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)

structlog.configure(
    processors=[
        structlog.stdlib.filter_by_level,
        *SHARED,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)
