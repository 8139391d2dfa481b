"""Mizar's version, for logs and mizar_build_info."""

import os
from importlib import metadata


def version() -> str:
    """The version of the image, or of the installed distribution, or `unknown`."""
    if given := os.environ.get("MIZAR_VERSION"):
        return given
    try:
        return metadata.version("mizar")
    except metadata.PackageNotFoundError:
        return "unknown"
