"""The chart, rendered with some values by helm, without a cluster."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "mizar"
Object = dict[str, Any]
# PyYAML's own parser takes ten times as long.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Chart:
    """Renders the chart with some values."""

    def __init__(self, helm: Path) -> None:
        self._helm = helm

    def run(
        self, *arguments: str, values: Object | None = None, folder: Path = CHART
    ) -> tuple[int, str]:
        """Exit status and output of helm for the chart in the folder."""
        done = subprocess.run(
            [str(self._helm), *arguments, str(folder), "--values=-"],
            input=json.dumps(values or {}),
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"GOGC": "off"},  # it ends before it has to collect garbage
        )
        return done.returncode, done.stdout + done.stderr

    def render(self, *flags: str, **values: Any) -> list[Object]:
        """All objects of a release called mizar in mizar-system."""
        where = ("template", "mizar", "--namespace=mizar-system", "--kube-version=1.36.0")
        status, output = self.run(*where, *flags, values=values)
        assert status == 0, output
        return parsed(output)


def parsed(text: str) -> list[Object]:
    """The objects in the text, whatever is empty between them left out."""
    return [one for one in yaml.load_all(text, _LOADER) if one]


def pick(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of that kind and name."""
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    return found
