"""Outputs of helm that are kept between runs of the tests; here, helm is a script that counts."""

import os
from pathlib import Path

import pytest

from support.chart import Chart
from support.helm_outputs import HelmOutputs


class Runs:
    """A chart, and a helm that prints its first word and notes each run."""

    def __init__(self, folder: Path) -> None:
        self._kept, self._noted = folder / "kept", folder / "noted"
        self.helm = folder / "helm"
        self.helm.write_text(
            f'#!/bin/sh\necho run >> {self._noted}; cat >> {self._noted}; echo "$1"'
        )
        self.helm.chmod(0o755)
        self.chart = folder / "chart"
        (self.chart / "templates").mkdir(parents=True)
        self.template = self.chart / "templates" / "one.yaml"
        self.template.write_text("kind: One")

    def run(self, *arguments: str, **values: object) -> tuple[int, str]:
        """As the first of a new run of the tests."""
        chart = Chart(self.helm, HelmOutputs(self._kept, settled=self.chart))
        return chart.run(*arguments, values=values, folder=self.chart)

    @property
    def count(self) -> int:
        return self._noted.read_text().count("run\n")


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_helm_runs_once_for_the_same(runs: Runs) -> None:
    assert [runs.run("template", "mizar", a=1) for _ in range(3)] == [(0, "template\n")] * 3
    assert runs.count == 1


def test_helm_runs_again_for_other_values_arguments_files_and_programs(runs: Runs) -> None:
    runs.run("template", a=1)
    assert runs.run("lint", a=1) == (0, "lint\n")
    runs.run("template", a=2)
    assert runs.count == 3
    runs.template.write_text("kind: Two")
    runs.run("template", a=1)
    runs.template.rename(runs.template.with_name("two.yaml"))
    runs.run("template", a=1)
    assert runs.count == 5
    os.utime(runs.helm, (1, 1))
    runs.run("template", a=1)
    assert runs.count == 6


def test_a_chart_that_is_not_settled_is_read_each_time(runs: Runs, tmp_path: Path) -> None:
    outputs = HelmOutputs(tmp_path / "kept", settled=tmp_path / "chart" / "templates")
    chart = Chart(runs.helm, outputs)
    chart.run("template", folder=runs.chart)
    runs.template.write_text("kind: Two")
    chart.run("template", folder=runs.chart)
    assert runs.count == 2


def test_what_an_api_server_answers_is_asked_each_time(runs: Runs) -> None:
    for _ in range(2):
        runs.run("template", "--kube-apiserver=http://127.0.0.1:1")
    assert runs.count == 2


def test_damaged_outputs_are_replaced(runs: Runs, tmp_path: Path) -> None:
    runs.run("template")
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_bytes(kept.read_bytes()[:9])
    assert runs.run("template") == runs.run("template") == (0, "template\n")
    assert runs.count == 2


def test_those_used_last_are_kept(runs: Runs, tmp_path: Path) -> None:
    for number in range(3):
        runs.run("template", number=number)
    for age, file in enumerate((tmp_path / "kept").iterdir()):
        os.utime(file, (age, age))
    runs.run("template", number=0)
    HelmOutputs(tmp_path / "kept", settled=runs.chart, kept=1)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    runs.run("template", number=0)
    assert runs.count == 3
