"""Mizar's version, for logs and mizar_build_info."""

import os
from functools import cache
from importlib import metadata


def version() -> str:
    """The version of the image, or of the installed distribution, or `unknown`."""
    return os.environ.get("MIZAR_VERSION") or _installed()


@cache
def _installed() -> str:
    try:
        return metadata.version("mizar")
    except metadata.PackageNotFoundError:
        return "unknown"
