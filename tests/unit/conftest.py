"""Programs of others that several folders of unit tests run, and the chart."""

from pathlib import Path

import pytest

from cluster.binaries import at_hand
from support.chart import CHART, Chart
from support.helm_outputs import HelmOutputs

HELM_OUTPUTS = Path(__file__).resolve().parents[2] / "build" / "helm-outputs"


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' own, as `make programs` gets it."""
    return _program("promtool")


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart, by the helm that the local cluster uses."""
    return Chart(_program("helm"), HelmOutputs(HELM_OUTPUTS, settled=CHART))


def _program(name: str) -> Path:
    found = at_hand(name)
    if found is None:
        pytest.skip(f"{name} is not in the cache yet: `make programs` puts it there")
    return found
