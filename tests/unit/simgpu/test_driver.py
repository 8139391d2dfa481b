"""The simulated driver: one snippet of C for each thing that it promises."""

import pytest

from unit.simgpu.harness import Bench, snippet_names


@pytest.mark.parametrize("name", snippet_names())
def test_driver(stepped: Bench, name: str) -> None:
    stepped.run(name)


def test_a_driver_may_load_functions_as_late_as_they_are_used(bench: Bench) -> None:
    bench.machine.state.set_number(0, "handles_load", 0)
    bench.run("handles")
