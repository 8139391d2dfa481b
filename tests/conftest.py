"""What holds for all tests."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from support.effort import SEED, effort

settings.register_profile("mizar", effort())
settings.load_profile("mizar")

NO_SKIPS = "MIZAR_NO_SKIPS"
"""Set where all that tests need is there, as in `make test`: what is skipped then has failed."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Take a skipped test for a failed one where none may be skipped."""
    report = yield
    if report.skipped and os.environ.get(NO_SKIPS) and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, though {NO_SKIPS} is set: {report.longrepr}"
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode
) -> None:
    """Say how to draw the same again."""
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.line(f"drawn with MIZAR_SEED={SEED}")
