"""A program that creates the primary CUDA context of the only card that it sees, prints `ready`,
and waits until its input ends, while measure.py measures its memory."""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    """Create the context and wait. Exits with 1 and a message if none can be created."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(f"the driver cannot be loaded ({error}): NVIDIA_DRIVER_CAPABILITIES needs compute")
    for function, *arguments in (
        (cuda.cuInit, 0),
        (cuda.cuDevicePrimaryCtxRetain, ctypes.byref(ctypes.c_void_p()), 0),
    ):
        if code := function(*arguments):
            sys.exit(f"no context can be made: CUDA error {code}")
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
