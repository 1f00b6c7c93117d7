"""fdatasync of many files with one call of the operating system, each with an outcome of its own.

A thread that syncs one file after the other waits for the disk once for each, and takes the interpreter's lock back as
often, from a loop that is busy. Linux takes many orders at once (io_submit with IOCB_CMD_FDSYNC, since 4.18): it syncs
the files side by side, so that they share commits of the file system's journal, and gives back for each what fdatasync
would. That proves as much as fdatasync of each, on every file system. syncfs does not: its error names no file, and it
waits for all that other programs have written.

Where a thread cannot give such orders (another system, a sandbox, fs.aio-max-nr used up), `most_at_once` says 1, and
files that it is asked for nevertheless are synced one after the other. The reason is logged once for each thread.

The outcome of an order proves nothing of any other order. So each call has a number of its own, which comes back with
its outcomes; and from the moment when orders are given until all their outcomes are there, the thread counts as one
that cannot give any: a call that is interrupted leaves outcomes behind, which no later call may take for its own.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import sys
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_AT_ONCE: Final = 16
"""Files that one call takes. Linux has a kernel thread wait for each; all threads of a broker together stay below the
256 of them that one CPU's queue runs at a time, which other parts of the kernel need as well while a disk hangs."""
_PLACE_BITS: Final = 8
_FDSYNC: Final = 3
"""IOCB_CMD_FDSYNC."""

_REMEDIES: Final = {
    errno.EAGAIN: "raise fs.aio-max-nr with sysctl, and restart the broker",
    errno.EIO: "the logs of that call are damaged until the broker is restarted",
}
_OTHER_REMEDY: Final = "it takes Linux 4.18, and a sandbox that allows io_setup, io_submit and io_getevents"

_log = logging.getLogger(__name__)


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
        self._calls = 0
        self.refusal: OSError | None = None
        """It takes no orders any more, because the outcomes of earlier ones are not known, or the system refuses."""
        if self._syscall(ctypes.c_long(numbers.setup), ctypes.c_long(MOST_AT_ONCE), ctypes.byref(self._context)) < 0:
            raise _last_error()
        none = ctypes.c_long(0)
        if self._syscall(ctypes.c_long(numbers.getevents), self._context, none, none, self._outcomes, None) < 0:
            raise _last_error()  # before there are outcomes that it could not have

    def __del__(self) -> None:
        """When its thread ends."""
        if getattr(self, "_context", None):
            self._syscall(ctypes.c_long(self._numbers.destroy), self._context)

    def sync(self, handles: Sequence[int]) -> list[OSError | None]:
        """The outcomes of MOST_AT_ONCE files or fewer, in their order; None: the bytes of that one are durable."""
        unknown = OSError(errno.EIO, "the outcome of a sync is not known")
        self.refusal = unknown  # until all outcomes are there, whatever is raised meanwhile
        self._calls += 1
        for place, handle in enumerate(handles):
            order = self._orders[place]
            order.data, order.opcode, order.handle = self._calls << _PLACE_BITS | place, _FDSYNC, handle
        taken = self._syscall(
            ctypes.c_long(self._numbers.submit), self._context, ctypes.c_long(len(handles)), self._pointers
        )
        refused = _last_error() if taken < 0 else None
        results = self._wait(max(0, taken))
        if results is None:
            return [unknown] * len(handles)
        results += map(sync_one, handles[len(results) :])
        # A file that cannot be synced at all is refused as well; that says nothing of others.
        is_for_good = refused is not None and refused.errno != errno.EAGAIN and results[0] is None
        self.refusal = refused if is_for_good else None
        return results

    def _wait(self, taken: int) -> list[OSError | None] | None:
        """Returns the outcomes of the first `taken` orders of this call. None: not all of them can be had."""
        first = self._calls << _PLACE_BITS
        results: dict[int, OSError | None] = {}
        while len(results) < taken:
            rest = ctypes.c_long(taken - len(results))
            got = self._syscall(ctypes.c_long(self._numbers.getevents), self._context, rest, rest, self._outcomes, None)
            if got < 0:
                if ctypes.get_errno() == errno.EINTR:
                    continue
                return None
            for outcome in self._outcomes[:got]:
                place, failed = outcome.data - first, -outcome.result
                if not 0 <= place < taken or place in results:  # of another call
                    return None
                results[place] = OSError(failed, os.strerror(failed)) if failed else None
        return [results[place] for place in range(taken)]


class _OfThread(threading.local):
    orders: SideBySide | None = None
    is_refused = False
    """The thread syncs one file at a time from now on; that has been logged."""


_of_thread = _OfThread()


def most_at_once() -> int:
    """Files that `sync_each` syncs side by side in this thread. 1: it would sync them one after the other."""
    return 1 if _orders() is None else MOST_AT_ONCE


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
    """Returns those of this thread. None: it cannot give any."""
    mine = _of_thread
    if mine.is_refused:
        return None
    refusal = None
    if mine.orders is None:
        try:
            mine.orders = SideBySide()
        except OSError as error:
            refusal = error
    else:
        refusal = mine.orders.refusal
    if refusal is None:
        return mine.orders
    mine.is_refused = True
    _log.warning(
        "thread %s syncs one file at a time from now on, not up to %d side by side: %s; %s",
        threading.current_thread().name,
        MOST_AT_ONCE,
        refusal,
        _REMEDIES.get(refusal.errno or 0, _OTHER_REMEDY),
    )
    return None


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
