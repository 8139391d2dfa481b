"""Generates C tables and stubs from the lists of names in src/."""

from dataclasses import dataclass
from pathlib import Path

CUDA_ERROR_NOT_SUPPORTED = 801
NVML_ERROR_NOT_SUPPORTED = 3


@dataclass(frozen=True)
class Generated:
    """The paths of the generated files."""

    folder: Path
    driver_stubs: Path
    nvml_stubs: Path


@dataclass(frozen=True)
class Entry:
    """One entry point of the driver: `symbol` is returned for `base` from CUDA version `since`
    on."""

    symbol: str
    base: str
    since: int
    per_thread: bool


def read_entries(path: Path) -> list[Entry]:
    """Parses lines `symbol base since flavour`; flavour is -, ptsz or ptds."""
    rows = (line.split() for line in path.read_text().splitlines() if line and line[0] != "#")
    entries = [Entry(symbol, base, int(since), kind != "-") for symbol, base, since, kind in rows]
    return sorted(entries, key=lambda entry: (entry.base, entry.since, entry.symbol))


def _entry_table(entries: list[Entry]) -> str:
    rows = "".join(
        f'    {{"{e.base}", {e.since}, {str(e.per_thread).lower()}, {e.symbol}}},\n'
        for e in entries
    )
    return (
        f'#include "entries.h"\nconst struct entry entries[] = {{\n{rows}}};\n'
        f"const int entry_count = {len(entries)};\n"
    )


def _stubs(names: list[str], error: int) -> str:
    """Weak definitions, which the definition of a simulated function replaces."""
    mark = '__attribute__((weak, visibility("default")))'
    return '#include "missing.h"\n' + "".join(
        f'{mark} int {name}(void);\nint {name}(void) {{ return missing("{name}", {error}); }}\n'
        for name in names
    )


def _error_table(path: Path) -> str:
    rows = (line.split() for line in path.read_text().splitlines())
    return "".join(f'    {{{code}, "{name}"}},\n' for code, name in rows)


def generate(sources: Path, folder: Path) -> Generated:
    """Write the tables and stubs of the lists in `sources` into `folder`."""
    folder.mkdir(parents=True)
    entries = read_entries(sources / "driver_symbols.txt")
    symbols = sorted({entry.symbol for entry in entries})
    nvml = (sources / "nvml_symbols.txt").read_text().split()
    (folder / "driver_errors.inc").write_text(_error_table(sources / "driver_errors.txt"))
    made = Generated(folder, folder / "driver_stubs.c", folder / "nvml_stubs.c")
    stubs = _stubs(symbols, CUDA_ERROR_NOT_SUPPORTED)
    made.driver_stubs.write_text(stubs + _entry_table(entries))
    made.nvml_stubs.write_text(_stubs(nvml, NVML_ERROR_NOT_SUPPORTED))
    return made
