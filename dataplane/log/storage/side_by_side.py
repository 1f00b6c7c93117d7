"""fdatasync of many files with one call of the operating system, each with an outcome of its own.

A thread that syncs one file after the other waits for the disk once for each, and takes the interpreter's lock back as
often, from a loop that is busy. Linux takes many orders at once (io_submit with IOCB_CMD_FDSYNC, since 4.18): it syncs
the files side by side, so that they share commits of the file system's journal, and gives back for each what fdatasync
would. That proves as much as fdatasync of each, on every file system. syncfs does not: its error names no file, and it
waits for all that other programs have written.

Where the system offers no such call (another one, a sandbox), the files are synced one after the other.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_AT_ONCE: Final = 64
"""Files that one call takes."""
_FDSYNC: Final = 3
"""IOCB_CMD_FDSYNC."""


class _Numbers(NamedTuple):
    """The numbers of the system calls."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_NUMBERS: Final = {"x86_64": _Numbers(206, 207, 208, 209), "aarch64": _Numbers(0, 1, 4, 2)}
"""By machine. Both are little-endian, as is `_Order`."""


class _Order(ctypes.Structure):
    """`struct iocb`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("handle", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_handle", ctypes.c_uint32),
    )


class _Outcome(ctypes.Structure):
    """`struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("order", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class SideBySide:
    """The orders that one thread gives. Raises OSError where the system does not take any."""

    def __init__(self) -> None:
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None or sys.platform != "linux" or sys.maxsize < 1 << 32:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._numbers = numbers
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._orders = (_Order * MOST_AT_ONCE)()
        self._pointers = (ctypes.c_void_p * MOST_AT_ONCE)(
            *(ctypes.addressof(self._orders) + place * ctypes.sizeof(_Order) for place in range(MOST_AT_ONCE))
        )
        self._outcomes = (_Outcome * MOST_AT_ONCE)()
        self._context = ctypes.c_ulong()
        self.is_lost = False
        """Orders are out whose outcomes cannot be had: it takes no others."""
        if self._syscall(ctypes.c_long(numbers.setup), ctypes.c_long(MOST_AT_ONCE), ctypes.byref(self._context)) < 0:
            raise _last_error()

    def __del__(self) -> None:
        """When its thread ends."""
        if getattr(self, "_context", None):
            self._syscall(ctypes.c_long(self._numbers.destroy), self._context)

    def sync(self, handles: Sequence[int]) -> list[OSError | None]:
        """The outcomes of MOST_AT_ONCE files or fewer, in their order; None: the bytes of that one are durable."""
        for place, handle in enumerate(handles):
            order = self._orders[place]
            order.data, order.opcode, order.handle = place, _FDSYNC, handle
        taken = self._syscall(
            ctypes.c_long(self._numbers.submit), self._context, ctypes.c_long(len(handles)), self._pointers
        )
        results = self._wait(max(0, taken))
        return [*results, *(sync_one(handle) for handle in handles[len(results) :])]

    def _wait(self, taken: int) -> list[OSError | None]:
        """Returns the outcomes of the first `taken` orders."""
        unknown = OSError(errno.EIO, "the outcome of a sync is not known")
        results: list[OSError | None] = [unknown] * taken
        done = 0
        while done < taken:
            rest = ctypes.c_long(taken - done)
            got = self._syscall(ctypes.c_long(self._numbers.getevents), self._context, rest, rest, self._outcomes, None)
            if got < 0:
                if ctypes.get_errno() == errno.EINTR:
                    continue
                self.is_lost = True
                return results
            for outcome in self._outcomes[:got]:
                failed = -outcome.result
                results[outcome.data] = OSError(failed, os.strerror(failed)) if failed else None
            done += got
        return results


_of_thread = threading.local()


def sync_each(handles: Sequence[int]) -> list[OSError | None]:
    """fdatasync of each, side by side where the system can. The outcomes are in the order of the files; None: the
    bytes of that one are durable."""
    outcomes: list[OSError | None] = []
    for first in range(0, len(handles), MOST_AT_ONCE):
        part = handles[first : first + MOST_AT_ONCE]
        orders = _orders() if len(part) > 1 else None
        outcomes += map(sync_one, part) if orders is None else orders.sync(part)
    return outcomes


def sync_one(handle: int) -> OSError | None:
    try:
        os.fdatasync(handle)
    except OSError as error:
        return error
    return None


def _orders() -> SideBySide | None:
    """Returns those of this thread. None: the system takes none."""
    try:
        orders: SideBySide | None = _of_thread.orders
    except AttributeError:
        try:
            orders = SideBySide()
        except OSError:
            orders = None
        _of_thread.orders = orders
    return None if orders is None or orders.is_lost else orders


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
