"""What holds for all tests."""

import gc
import os
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

import support.without_rich  # noqa: F401 # before all that imports structlog
from cluster.interrupts import interruptible_once
from support.effort import SEED, effort
from support.logs import SECTION
from support.watchdog import pytest_runtest_protocol

__all__ = ["pytest_runtest_protocol"]  # pytest finds its hooks by their names

settings.register_profile("mizar", effort())
settings.load_profile("mizar")

gc.set_threshold(100_000, 50, 100)
"""Garbage in cycles is looked for less often: hundreds of thousands of objects of imported modules
stay, and to go through them again and again took a tenth of the time of all tests."""

NO_SKIPS = "MIZAR_NO_SKIPS"
"""Set where all that tests need is there, as in `make test`: what is skipped then has failed."""

FAILURES = os.environ.pop("MIZAR_FAILURES", None)
"""The file to which failures are appended: `make test` runs pytest several times, side by side, and
shows all failures at its end. Runs of pytest within tests leave it alone."""
LONGEST_FAILURE = 3000
"""Characters of a failure's report that are kept, its end."""


gc.disable()
"""Until all is imported: almost nothing of it is garbage."""


def pytest_collection_finish() -> None:
    """Take what was imported out of what garbage is looked for in: it stays until the end, and
    pytest looks through everything twice when it ends."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """A run that is asked to end cleans up first: its clusters, processes and mounts."""
    signals = ExitStack()
    signals.enter_context(interruptible_once())
    config.add_cleanup(signals.close)


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
    """Say how to draw the same again, and keep what failed."""
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.line(f"drawn with MIZAR_SEED={SEED}")
    if FAILURES:
        failed = [*_reports(terminalreporter, "failed"), *_reports(terminalreporter, "error")]
        with Path(FAILURES).open("a") as file:
            file.writelines(f"{_failure(one)}\n" for one in failed)
            file.writelines(f"FAILED {one.nodeid} ({one.when})\n" for one in failed)


def _reports(reporter: pytest.TerminalReporter, kind: str) -> list[pytest.TestReport]:
    return [one for one in reporter.getreports(kind) if isinstance(one, pytest.TestReport)]


def _failure(report: pytest.TestReport) -> str:
    """The end of a failure's report, and what Mizar logged meanwhile."""
    kept = (f"{title}:\n{text}" for title, text in report.sections if title.startswith(SECTION))
    return "\n".join([report.longreprtext[-LONGEST_FAILURE:], *kept])
