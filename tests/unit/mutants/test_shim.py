"""The list of faults that the shim's tests must notice: each can still be put where it belongs."""

from __future__ import annotations

import pytest

from mutants.shim import ROOT, Fault, Unusable, faults


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_fault_has_its_place_and_its_tests(fault: Fault) -> None:
    text = (ROOT / "shim" / fault.file).read_text()
    assert fault.put_into(text) != text
    assert all((ROOT / "tests" / "unit" / "shim" / name).is_file() for name in fault.tests)


@pytest.mark.parametrize("text", ["", "a line\na line\n"])
def test_a_text_that_is_not_there_once_is_an_error(text: str) -> None:
    fault = Fault("f", "x.c", "a line\n", "", "", ())
    with pytest.raises(Unusable, match=r"times in x\.c, not once"):
        fault.put_into(text)
