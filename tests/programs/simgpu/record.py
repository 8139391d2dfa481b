"""Records a card's time line exactly: which process it worked for in each millisecond. A context
switch counts for the process that runs after it."""

import ctypes

from simgpu.state_file import StateFile

BIN_NS = 1_000_000


class _Recording(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("origin", "bin_ns", "bins", "slots", "seen")]
    _fields_ += [("work", ctypes.POINTER(ctypes.c_uint64))]


class Recording:
    """A recording, which starts when it is made.

    Call `catch_up` several times a second: the card keeps the last 65,536 runs, and a process that
    repeatedly runs out of work makes one run of each kernel. Raises RuntimeError if runs were lost.
    """

    def __init__(self, state: StateFile, card: int, seconds: float, slots: int = 64) -> None:
        self._state, self._card = state, card
        self._bins = int(seconds * 1e9 / BIN_NS) + 1
        self._work = (ctypes.c_uint64 * (self._bins * slots))()
        self._data = _Recording(bin_ns=BIN_NS, bins=self._bins, slots=slots, work=self._work)
        self.origin: int = state.record(card, self._data)
        """Simulated time in ns."""

    def catch_up(self, end: bool = False) -> int:
        """Count the runs so far; returns the present time. At the end, the current run counts
        too."""
        now = self._state.count(self._card, self._data, end)
        if not now:
            raise RuntimeError(f"the time line of card {self._card} was read too seldom")
        return now

    def close(self) -> dict[int, list[int]]:
        """Returns PID -> ns of the card's time in each millisecond since the start. All processes
        must be alive."""
        whole = min(self._bins, (self.catch_up(end=True) - self.origin) // BIN_NS)
        return {
            self._state.pid(slot): list(self._work[slot * self._bins : slot * self._bins + whole])
            for slot in range(min(self._state.slots(), self._data.slots))
        }
