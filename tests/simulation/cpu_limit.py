"""Ends a run that computes for ever within one step: `World` counts steps, and such a run never finishes one.

CPU time of the process, not of the clock on the wall: a busy machine makes no run fail.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CPU_LIMIT = 60.0
"""Seconds for one seed: a hundred times its usual time."""
_AGAIN = 1.0
"""Seconds after which a run is interrupted once more that caught the interruption and went on."""
_FRAMES = 25
"""The innermost so many frames say where a run was."""


class OutOfCpuTime(KeyboardInterrupt):
    """Where a run was when its CPU time was used up. Of this base, because asyncio lets nothing else out."""


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raises OutOfCpuTime from the code of the main thread inside, once `seconds` of CPU time are used. It is not
    nested, and works in the main thread only."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame)[-_FRAMES:])
        raise OutOfCpuTime(f"{seconds:g} s of CPU time are used up, and the run is at\n{where}")

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
