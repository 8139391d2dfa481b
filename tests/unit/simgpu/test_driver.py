"""The simulated driver, one snippet of C for each thing that it promises."""

import pytest

from unit.simgpu.harness import Bench, snippet_names


@pytest.mark.parametrize("name", snippet_names())
def test_driver(stepped: Bench, name: str) -> None:
    stepped.run(name)
