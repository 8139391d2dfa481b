"""Files that are only in memory, for libraries that take nothing but paths."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_file(data: bytes) -> Iterator[str]:
    """A path from which `data` can be read, for as long as the block runs."""
    file = os.memfd_create("mizar", os.MFD_CLOEXEC)
    try:
        os.write(file, data)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
