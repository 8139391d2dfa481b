"""Says what is being done and for how long: plain lines, fit for a terminal and a log alike.

building Kubernetes 1.36.3 from its Go modules ...
  10 s
  20 s: k8s.io/api/core/v1
building Kubernetes 1.36.3 from its Go modules ... failed after 23 s
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Clock = Callable[[], float]


def duration(seconds: float) -> str:
    """A time as people say it: 0.4 s, 12 s, 6 min 05 s."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


@dataclass
class Step:
    """A piece of work under way; `note` sets what the next line of elapsed time shows."""

    text: str
    started: float
    depth: int
    detail: str = ""
    over: threading.Event = field(default_factory=threading.Event)

    def note(self, detail: str) -> None:
        self.detail = detail


class Progress:
    """Prints steps as they start, go on and end. Safe to use from several threads.

    A step's end goes onto the line of its start where nothing came between them.
    """

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        every: float = 10.0,
        clock: Clock = time.monotonic,
    ) -> None:
        """`write` gets pieces of text (default: standard error); `every` is in seconds."""
        self._write = write or _to_stderr
        self._every = every
        self._clock = clock
        self._lock = threading.RLock()
        self._unfinished: Step | None = None
        self._stacks = threading.local()

    @classmethod
    def silent(cls) -> Progress:
        """A Progress that prints nothing."""
        return cls(write=lambda _: None)

    @contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """Say that `text` starts, how long it has been going on, and how long it took."""
        stack = self._stack()
        step = Step(text, self._clock(), depth=len(stack))
        self._start(step)
        stack.append(step)
        ticker = threading.Thread(target=self._tick, args=(step, stack), daemon=True)
        ticker.start()
        verdict = "failed after "
        try:
            yield step
            verdict = ""
        finally:
            step.over.set()
            ticker.join()
            stack.pop()
            self._end(step, verdict)

    def say(self, text: str) -> None:
        """One line, indented under the step that is under way; several lines stay several."""
        indent = "  " * len(self._stack())
        for line in text.splitlines() or [""]:
            self._line((indent + line).rstrip())

    def _stack(self) -> list[Step]:
        if not hasattr(self._stacks, "steps"):
            self._stacks.steps = []
        stack: list[Step] = self._stacks.steps
        return stack

    def _start(self, step: Step) -> None:
        with self._lock:
            self._break()
            self._write(f"{'  ' * step.depth}{step.text} ...")
            self._unfinished = step

    def _end(self, step: Step, verdict: str) -> None:
        took = verdict + duration(self._clock() - step.started)
        with self._lock:
            if self._unfinished is step:
                self._unfinished = None
                self._write(f" {took}\n")
            else:
                self._line(f"{'  ' * step.depth}{step.text} ... {took}")

    def _tick(self, step: Step, stack: list[Step]) -> None:
        while not step.over.wait(self._every):
            if stack and stack[-1] is step:  # a step inside it speaks for itself
                elapsed = duration(self._clock() - step.started)
                detail = f": {step.detail}" if step.detail else ""
                self._line(f"{'  ' * (step.depth + 1)}{elapsed}{detail}")

    def _line(self, line: str) -> None:
        with self._lock:
            self._break()
            self._write(line + "\n")

    def _break(self) -> None:
        if self._unfinished is not None:
            self._unfinished = None
            self._write("\n")


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
