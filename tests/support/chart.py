"""The chart, rendered with some values by helm, without a cluster."""

from __future__ import annotations

import functools
import json
import os
import pickle
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from support.helm_outputs import HelmOutputs

CHART = Path(__file__).resolve().parents[2] / "charts" / "mizar"
Object = dict[str, Any]
# PyYAML's own parser takes ten times as long.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Chart:
    """Renders the chart with some values. What was rendered before is not rendered again, if
    `outputs` is given not even by a later run of the tests: helm takes a tenth of a second."""

    def __init__(self, helm: Path, outputs: HelmOutputs | None = None) -> None:
        self._helm = helm
        self._outputs = outputs
        self._rendered: dict[tuple[str, ...], str] = {}

    def run(
        self, *arguments: str, values: Object | None = None, folder: Path = CHART
    ) -> tuple[int, str]:
        """Exit status and output of helm for the chart in the folder."""
        given = json.dumps(values or {})
        run = functools.partial(self._run, arguments, given, folder)
        # What helm reads from an API server is not in its arguments.
        if self._outputs is None or any(one.startswith("--kube-api") for one in arguments):
            return run()
        return self._outputs.of(self._helm, folder, (*arguments, given), run)

    def _run(self, arguments: tuple[str, ...], values: str, folder: Path) -> tuple[int, str]:
        done = subprocess.run(
            [str(self._helm), *arguments, str(folder), "--values=-"],
            input=values,
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"GOGC": "off"},  # it ends before it has to collect garbage
        )
        return done.returncode, done.stdout + done.stderr

    def render(self, *flags: str, **values: Any) -> list[Object]:
        """All objects of a release called mizar in mizar-system."""
        key = (*flags, json.dumps(values))
        if key not in self._rendered:
            where = ("template", "mizar", "--namespace=mizar-system", "--kube-version=1.36.0")
            status, output = self.run(*where, *flags, values=values)
            assert status == 0, output
            self._rendered[key] = output
        return parsed(self._rendered[key])


def parsed(text: str) -> list[Object]:
    """The objects in the text, whatever is empty between them left out."""
    found = (pickle.loads(_parsed(one)) for one in re.split("^---$", text, flags=re.M))
    return [one for one in found if one]


@functools.cache
def _parsed(document: str) -> bytes:
    """Most objects of a chart are the same with all values; to parse one takes a hundred times as
    long as to copy it."""
    return pickle.dumps(yaml.load(document, _LOADER))


def pick(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of that kind and name."""
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    return found
