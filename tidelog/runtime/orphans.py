"""Child processes that end when we do, however that happens: no kill -9 of ours leaves a server behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def ends_with_us() -> Callable[[], None]:
    """For `preexec_fn` of a child that we start: SIGTERM reaches it when the thread that started it is gone (Linux;
    elsewhere it does nothing). One system call, nothing that could hold a lock of another thread.
    """
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    us = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != us:  # we died before it asked
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
