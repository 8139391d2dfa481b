"""Reads from the environment which other version of a component the tests are to run on."""

from __future__ import annotations

import os
import re

from cluster.binaries.components import Component
from cluster.binaries.errors import SetupError


def named_version(
    variable: str, pattern: re.Pattern[str], example: str, pinned: Component
) -> str | None:
    """The version that the variable names, such as `example`; None if it names none. `pinned`: the
    usual component. Raises SetupError if it is no version, or a folder of programs is named too."""
    version = os.environ.get(variable)
    if not version:
        return None
    if not pattern.fullmatch(version):
        raise SetupError(f"${variable}: '{version}' is no version: write it as in {example}")
    if folder := os.environ.get(pinned.folder_variable):
        raise SetupError(
            f"${variable} and ${pinned.folder_variable}={folder} name different programs: unset one"
        )
    return version
