"""Every call of the driver that the shim adds is one that captures of streams do not forbid.

While any thread captures in global mode, a call that might wait or allocate is refused and spoils
the capture, unless the calling thread has said that it knows: RELAXED in
shim/src/lookup/relax.h does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .slot import ROOT

SOURCES = ROOT / "shim" / "src"
LOOKUP = SOURCES / "lookup"
# What only looks at handles, devices and the thread itself; asked often, and never forbidden.
HARMLESS = {
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuDeviceGetAttribute",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDriverGetVersion",
    "cuGetProcAddress",
    "cuInit",  # of which the address is compared
    "cuModuleGetLoadingMode",
    "cuStreamGetCtx",
    "cuStreamGetCtx_v2",
    "cuStreamGetFlags",
    "cuStreamIsCapturing",
}
# Where wrappers share their way: the program's own call is made there.
SHARED = {
    "cuMemAlloc": "allocate_v1",
    "cuMemAlloc_v2": "allocate",
    "cuMemAllocPitch": "allocate_pitch_v1",
    "cuMemAllocPitch_v2": "allocate_pitch",
    "cuMemCreate": "create",
}
DEFINITION = re.compile(r"^(?:static|EXPORT|#define|[A-Za-z_].*\() *.*", re.MULTILINE)
RELAXED = re.compile(r"\bRELAXED\((\w+),")
CALL = re.compile(r"\b(?:REAL|KNOWN|resolve|resolve_find|resolve_or_error)\((\w+)\)")


class Call(NamedTuple):
    """A call of the driver's `symbol`, or one that is taken for later, in the definition `head`."""

    file: str
    head: str
    symbol: str

    def is_the_programs(self) -> bool:
        """Whether the call is the program's own: it is in the wrapper of that name, or in a macro
        for many."""
        here = SHARED.get(self.symbol, self.symbol)
        own = re.match(rf"\w+ CUresult (?:{self.symbol}|{here})\(", self.head)
        many = self.head.startswith("#define") and self.symbol == "symbol"
        return bool(own) or many

    def may_be_forbidden(self) -> bool:
        return self.symbol.startswith("cu") and self.symbol not in HARMLESS


def calls_in(path: Path) -> Iterator[Call]:
    text = path.read_text()
    heads = list(DEFINITION.finditer(text))
    for call in CALL.finditer(text):
        head = [each.group() for each in heads if each.start() <= call.start()][-1]
        yield Call(path.name, head, call.group(1).removeprefix("H_"))


def relaxed_calls() -> set[str]:
    """The driver's functions that the shim calls by RELAXED."""
    texts = [path.read_text() for path in SOURCES.rglob("*.c")]
    return {symbol for text in texts for symbol in RELAXED.findall(text)}


def test_no_call_that_the_shim_adds_is_bare() -> None:
    paths = sorted({*SOURCES.rglob("*.[ch]")} - {LOOKUP / "relax.h", LOOKUP / "resolve.h"})
    found = [call for path in paths for call in calls_in(path)]
    bare = [call for call in found if call.may_be_forbidden() and not call.is_the_programs()]
    assert not bare, "\n".join(f"{c.file}: {c.symbol} in {c.head}" for c in bare)
    assert len({call.symbol for call in found}) > 100  # it does find them
