"""What a libcuda answers without a card, one line each. A program of its own, so that it also runs
with the shim preloaded.

    probe.py resolve LIBCUDA < NAMES   symbols that cuGetProcAddress hands out (`resolve`)
    probe.py wrapped LIBCUDA < SYMBOLS the functions that the shim replaces (`wrapped`)
    probe.py call LIBCUDA < SYMBOLS    results of each exported function (`call`)
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PER_THREAD = 2  # the flag of cuGetProcAddress
VERSIONS = range(2000, 14000, 10)
PARAMETERS, BYTES = 12, 4096
LIMIT_S = 10


def _addresses(library: ctypes.CDLL, symbols: list[str]) -> dict[int, list[str]]:
    """The names of each address, as dlsym answers in this process."""
    found: dict[int, list[str]] = {}
    for symbol in symbols:
        with suppress(AttributeError):
            address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
            found.setdefault(address, []).append(symbol)
    return found


def resolve(library: ctypes.CDLL, symbols: list[str], bases: list[str]) -> Iterator[str]:
    """Yields `base version flavour symbol` for each version from which cuGetProcAddress hands out
    another symbol for the name. The flavour is "-", or "ptsz" for per-thread default streams. The
    symbol is "-" if there is none, and "?" if the address has no exported name."""
    names = _addresses(library, symbols)
    for base in bases:
        for flavour, flags in (("-", 0), ("ptsz", PER_THREAD)):
            last = "-"
            for version in VERSIONS:
                address = ctypes.c_void_p()
                arguments = base.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags)
                failed = library.cuGetProcAddress(*arguments) or not address.value
                now = "-" if failed else min(names.get(address.value or 0, ["?"]))
                if now != last:
                    yield f"{base} {version} {flavour} {now}"
                last = now


def wrapped(library: ctypes.CDLL, symbols: list[str]) -> Iterator[str]:
    """Yields each symbol for which dlsym returns code of the shim."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in maps if line.endswith("/libmizar.so")]
    areas = [range(int(start, 16), int(end, 16)) for start, end in ranges]
    for address, names in _addresses(library, symbols).items():
        if any(address in area for area in areas):
            yield from names


def call(library: ctypes.CDLL, symbols: list[str]) -> Iterator[str]:
    """Yields `symbol arguments result` for a call of each function, with null pointers and with
    buffers of zeros, after cuInit has failed. Each call has a process of its own, since some end
    it: then the result is the signal."""
    for symbol in symbols:
        for kind in ("null", "buffers"):
            yield f"{symbol} {kind} {_result(library, symbol, kind)}"


def _result(library: ctypes.CDLL, symbol: str, kind: str) -> str:
    child = os.fork()
    if not child:
        os.close(2)
        signal.alarm(LIMIT_S)
        os._exit(_called(library, symbol, kind))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else str(code)


def _called(library: ctypes.CDLL, symbol: str, kind: str) -> int:
    """The function's result, of which one byte reaches the parent."""
    library.cuInit(0)
    buffers = [ctypes.create_string_buffer(BYTES) for _ in range(PARAMETERS)]
    arguments = [buffer if kind == "buffers" else ctypes.c_void_p() for buffer in buffers]
    return int(getattr(library, symbol)(*arguments)) & 0xFF


def main(what: str, path: str) -> None:
    library, names = ctypes.CDLL(path), sys.stdin.read().split()
    if what == "resolve":
        bases = [name.removeprefix("base:") for name in names if name.startswith("base:")]
        lines = resolve(library, [name for name in names if ":" not in name], bases)
    else:
        lines = {"call": call, "wrapped": wrapped}[what](library, names)
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
