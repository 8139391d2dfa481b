"""Writes the hook table, src/lookup/hooks_generated.def, and checks it.

Its sources are cuda_calls.txt and nvml_calls.txt, which list how the shim treats each function of
the driver and of NVML.

    hook_table.py            writes src/lookup/hooks_generated.def
    hook_table.py --check    fails if hooks_generated.def differs from what would be written
    hook_table.py --headers  fails if the newest pinned CUDA has a function without a class, or one
                             whose wrapper has other parameters
    hook_table.py --all      the same for every CUDA of cuda-headers.lock
    hook_table.py --newest   reports a CUDA newer than all of these

Only the last three use the network. --headers and --all download each CUDA once (cuda_headers.py).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SHIM = Path(__file__).resolve().parents[1]
TABLE = SHIM / "src" / "lookup" / "hooks_generated.def"
UNCLASSIFIED = (
    "{name} ({entry}) of CUDA {release} has no class: put it below the class of shim/cuda_calls.txt"
    " that says what the shim must do about it, then run `make -C shim table`"
)
STALE = "shim/src/lookup/hooks_generated.def differs from its sources: run `make -C shim table`"


@dataclass(frozen=True, order=True)
class Entry:
    """One result of cuGetProcAddress for the name `base`: the function since that CUDA version, of
    that flavour."""

    base: str
    since: int
    flavour: str = ""  # or "ptsz", "ptds": the variants for per-thread default streams

    def __str__(self) -> str:
        return f"{self.since}_{self.flavour}" if self.flavour else str(self.since)


@dataclass(frozen=True)
class Function:
    """An entry, the symbol that libcuda exports for it, and its class (how the shim treats it)."""

    entry: Entry
    symbol: str
    kind: str
    hooked: bool


def _lines(path: Path) -> Iterator[tuple[str, bool, list[str]]]:
    """Yields (class, hooked, words) for every line below a `[class]` or `[class, hooked]`."""
    kind, hooked = "", False
    for line in path.read_text().splitlines():
        line = line.partition("#")[0].strip()
        if section := re.fullmatch(r"\[(\w+)(, hooked)?\]", line):
            kind, hooked = section[1], bool(section[2])
        elif line:
            yield kind, hooked, line.split()


def _parse(base: str, word: str) -> Entry:
    """Parses `2000` or `7000_ptsz`."""
    since, _, flavour = word.partition("_")
    return Entry(base, int(since), flavour)


def _symbol(entry: Entry, entries: list[Entry]) -> str:
    """The symbol by NVIDIA's rule: the n-th plain version of f is f_vn; a ptsz or ptds twin has the
    name of its plain version."""
    plain = [other.since for other in entries if not other.flavour]
    number = max(1, sum(since <= entry.since for since in plain))
    name = entry.base if number == 1 else f"{entry.base}_v{number}"
    return f"{name}_{entry.flavour}" if entry.flavour else name


def read_driver(path: Path = SHIM / "cuda_calls.txt") -> list[Function]:
    """Every function of cuda_calls.txt, in the order of the file."""
    functions = []
    for kind, hooked, (base, *words) in _lines(path):
        entries = [_parse(base, word) for word in words]
        functions += [Function(entry, _symbol(entry, entries), kind, hooked) for entry in entries]
    return functions


def read_nvml(path: Path = SHIM / "nvml_calls.txt") -> dict[str, bool]:
    """Every function of nvml_calls.txt, and whether it is hooked."""
    return {name: hooked for _, hooked, names in _lines(path) for name in names}


def called_by_shim(sources: Path = SHIM / "src") -> set[str]:
    """Functions that the shim's code itself uses, by REAL(x), RELAXED(x, ...), KNOWN(x) or H_x."""
    code = "".join(path.read_text() for path in sorted(sources.rglob("*.[ch]")))
    return set(re.findall(r"\b(?:REAL\(|RELAXED\(|KNOWN\(|H_)((?:cu|nvml)[A-Z]\w*)", code))


# ---- writing ----

HEAD = """\
/*
 * Every function the shim knows, one line each. A file that includes this defines those it wants.
 * Made from cuda_calls.txt, nvml_calls.txt and what the sources call: `make -C shim table`.
 *
 * HOOK(library, symbol, base, version, stream)
 *     wrapped: `symbol` is exported and replaces the driver's. cuGetProcAddress hands it out for
 *     (base, CUDA version >= version, stream kind), unless a line with a higher version fits.
 *     stream: ANY, or PER_THREAD for the twin that uses the per-thread default stream.
 * NEED(library, symbol)
 *     called by the shim itself.
 * NEWEST_CUDA(version)
 *     the newest CUDA that cuda_calls.txt knows.
 */
#ifndef HOOK
#define HOOK(library, symbol, base, version, stream)
#endif
#ifndef NEED
#define NEED(library, symbol)
#endif
#ifndef NEWEST_CUDA
#define NEWEST_CUDA(version)
#endif

"""
TAIL = """
#undef HOOK
#undef NEED
#undef NEWEST_CUDA
"""
LIBC = ("dlsym", "dlvsym", "dlopen", "dlmopen")


def _hook(function: Function) -> str:
    entry, symbol = function.entry, function.symbol
    stream = "PER_THREAD" if entry.flavour else "ANY"
    return f'HOOK(CUDA, {symbol}, "{entry.base}", {entry.since}, {stream})\n'


def render(functions: list[Function], nvml: dict[str, bool], called: set[str]) -> str:
    """The text of hooks_generated.def."""
    own = [name for name, hooked in nvml.items() if hooked]
    hooked = {function.symbol for function in functions if function.hooked} | set(own)
    libc = "".join(f'HOOK(LIBC, {name}, "", 0, ANY)\n' for name in LIBC)
    hooks = "".join(_hook(one) for one in functions if one.hooked)
    own_hooks = "".join(f'HOOK(NVML, {name}, "", 0, ANY)\n' for name in own)
    needs = "".join(
        f"NEED({'NVML' if name.startswith('nvml') else 'CUDA'}, {name})\n"
        for name in sorted(called - hooked)
    )
    newest = max(function.entry.since for function in functions)
    return f"{HEAD}NEWEST_CUDA({newest})\n\n{libc}\n{hooks}\n{own_hooks}\n{needs}{TAIL}"


def table() -> str:
    """The text that hooks_generated.def should have."""
    return render(read_driver(), read_nvml(), called_by_shim())


# ---- checking ----


def check_entries(
    published: dict[Entry, object], functions: list[Function], release: str
) -> list[str]:
    """Functions of a CUDA that have no class in cuda_calls.txt."""
    known = {function.entry for function in functions}
    return [
        UNCLASSIFIED.format(name=entry.base, entry=entry, release=release)
        for entry in sorted(published.keys() - known)
    ]


def check_nvml(published: set[str], known: dict[str, bool]) -> list[str]:
    """NVML functions about memory, processes or use that have no class in nvml_calls.txt."""
    telling = re.compile(r"DeviceGet.*(Memory(Info|Usage|Limits)|Process|Utili|Accounting|Samples)")
    return [
        f"{name} of NVML has no class: put it below one of shim/nvml_calls.txt, then run"
        " `make -C shim table`"
        for name in sorted(published - known.keys())
        if telling.search(name)
    ]


def _check_headers(every: bool) -> list[str]:
    import cuda_headers

    functions = read_driver()
    wrong = check_nvml(cuda_headers.nvml_functions(), read_nvml())
    for package in cuda_headers.packages() if every else cuda_headers.packages()[-1:]:
        folder = cuda_headers.fetch(package)
        published = cuda_headers.functions(folder)
        wrong += check_entries(dict(published), functions, package.version)
        wrong += cuda_headers.check_parameters(folder, published, functions)
        wrong += cuda_headers.check_exports(folder, functions, package)
    return wrong


def _newer() -> list[str]:
    import cuda_headers

    return cuda_headers.newer()


def main() -> int:
    """Returns 0 if nothing is wrong. A newer CUDA is reported, but is not an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for option in ("--check", "--headers", "--all", "--newest"):
        parser.add_argument(option, action="store_true")
    options = parser.parse_args()
    wrong: list[str] = []
    if not any(vars(options).values()):
        TABLE.write_text(table())
    if options.check and TABLE.read_text() != table():
        wrong.append(STALE)
    if options.headers or options.all:
        wrong += _check_headers(options.all)
    notes = _newer() if options.newest else []
    for line in wrong + notes:
        print(line, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    import hook_table  # import by name: __main__ would define a second class Entry

    sys.exit(hook_table.main())
