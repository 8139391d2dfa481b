"""Updates src/driver_symbols.txt and src/driver_errors.txt from CUDA's headers, old and new.

    python -m simgpu.symbols INCLUDE_DIR...

cuda.h has the exported names and the errors; cudaTypedefs.h has the CUDA version since which each
entry exists. Only names and numbers are copied, since the headers are NVIDIA's."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simgpu.build import SOURCES

EXPORT = re.compile(r"CUresult\s+CUDAAPI\s+(\w+)\s*\(")
TYPED = re.compile(r"PFN_(cu\w+?)_v(\d{4,5})(?:_(pt[sd][zs]))?\b")
ERROR = re.compile(r"\b(CUDA_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)")
SUFFIX = re.compile(r"(_v\d)?(_pt[sd][zs])?$")


@dataclass
class Names:
    """The names that some headers declare."""

    exported: set[str] = field(default_factory=set)
    versions: dict[str, set[tuple[int, str]]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    def read(self, folder: Path) -> None:
        header = re.sub(r"/\*.*?\*/", "", (folder / "cuda.h").read_text(), flags=re.DOTALL)
        self.exported |= set(EXPORT.findall(header))
        self.errors |= {int(number): name for name, number in ERROR.findall(header)}
        for base, version, flavour in TYPED.findall((folder / "cudaTypedefs.h").read_text()):
            self.versions.setdefault(base, set()).add((int(version), flavour))


def _entries(base: str, versions: set[tuple[int, str]]) -> Iterator[tuple[str, str, int, str]]:
    """Yields symbol, base, version and flavour: the n-th plain version of f is f_vn."""
    plain = sorted(version for version, flavour in versions if not flavour)
    for version, flavour in versions:
        number = max(1, sum(since <= version for since in plain))
        symbol = base if number == 1 else f"{base}_v{number}"
        yield f"{symbol}_{flavour}" if flavour else symbol, base, version, flavour or "-"


def symbol_lines(names: Names) -> list[str]:
    """Lines of driver_symbols.txt: all entries, and exports without a known version."""
    rows = {row for base, versions in names.versions.items() for row in _entries(base, versions)}
    known = {symbol for symbol, *_ in rows}
    rows |= {(name, SUFFIX.sub("", name), 0, "-") for name in names.exported - known}
    ordered = sorted(rows, key=lambda row: (row[1], row[3], row[2]))
    return [f"{symbol} {base} {since} {flavour}" for symbol, base, since, flavour in ordered]


def main(folders: list[str]) -> int:
    """Returns 2 if no folder is given."""
    if not folders:
        print(__doc__, file=sys.stderr)
        return 2
    names = Names()
    for folder in folders:
        names.read(Path(folder))
    errors = [f"{number} {names.errors[number]}" for number in sorted(names.errors)]
    (SOURCES / "driver_symbols.txt").write_text("\n".join(symbol_lines(names)) + "\n")
    (SOURCES / "driver_errors.txt").write_text("\n".join(errors) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
