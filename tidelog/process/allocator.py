"""The treatment of memory that a broker, or a client, frees: the C library's allocator keeps it, and Python's
collector of cycles looks only at objects newer than the start.

A broker takes and frees buffers of some MiB all the time: chunks, joined columns, answers. By default glibc maps such
a buffer anew each time, or gives the top of its heap back, and the kernel clears every page of it when it is touched
next, which takes longer than all other work on the bytes. At most `KEPT_BYTES` more than are in use are kept instead.

A client that reads takes and frees such buffers too. Its process belongs to its user, and its settings are left alone:
"""

from __future__ import annotations

import ctypes
import gc
import logging

_log = logging.getLogger(__name__)

KEPT_BYTES = 64 << 20
"""Free memory at the top of the heap that is not given back to the system."""
MAPPED_FROM = 32 << 20
"""A buffer of this size or more gets a mapping of its own, and gives it back; glibc takes no larger limit."""

COLLECTED_FROM = 10_000
"""Number of new objects. Going through so many takes less than a millisecond."""

KEPT_FROM = 20_000
"""Number of objects by which the survivors of a full collection must exceed those in work, to be kept unsearched."""
IN_WORK_AT_MOST = 40_000
"""Number of objects that are taken for work, not for growth, if so many survived before. With as many again a search
takes 10 ms, 25 on a busy machine; roles of many partitions begin by hundreds of thousands of objects."""
_GENERATIONS = (0, 0)
"""Collections of a generation before one that takes in the next, too: a full one goes through some 40,000 objects."""
_OLDEST = 2

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_GROWTH = 8 << 20
"""Bytes by which the heap grows at least."""


def keep_freed_memory() -> None:
    """Sets this process's allocator; where the C library is not glibc, nothing happens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for name, value in ((_M_MMAP_THRESHOLD, MAPPED_FROM), (_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_TOP_PAD, _GROWTH)):
        if not mallopt(name, value):
            _log.info("the C library's allocator does not take %d for its setting %d", value, name)


def learn_from_a_large_buffer() -> None:
    """Once glibc has unmapped a buffer of n bytes, buffers up to n come from its heap, which keeps up to 2 n bytes that
    are free. Takes no time: the buffer is never touched. After `keep_freed_memory`, and elsewhere, nothing happens."""
    bytes(MAPPED_FROM - (64 << 10))  # glibc learns from no mapping above that limit


def collect_only_what_comes() -> None:
    """Sets this process's collector. The present objects (modules, classes, all objects of the start) are not searched
    for cycles again: in a broker that takes 10 to 15 ms each time, and nothing else happens meanwhile. Cycles of
    objects made from now on are found as before; a present object is freed when nothing refers to it, and stays if it
    is in a cycle.

    The collector runs for each COLLECTED_FROM more objects. A broker with a thousand busy partitions has thousands of
    requests and answers in work, none of them a cycle: looking at them as often as Python does by default took a sixth
    of its time.

    A broker that gets ten thousand partitions keeps millions of objects more, and a search through all of them would
    stop it for part of a second. So the generations are small, and survivors that show growth are not searched again
    either: see `_Survivors`."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_FROM, *_GENERATIONS)
    gc.callbacks.append(_Survivors())


class _Survivors:
    """Freezes the survivors of full collections, as the collector calls it.

    Requests in work survive too, and one that dies later in a cycle would be lost if it were frozen. So survivors are
    frozen only if they are KEPT_FROM more than those of the last time, which may all have been in work, up to
    IN_WORK_AT_MOST. Work that swells and ebbs, or is larger, still loses some each time. When twice as much is frozen
    as was found alive by a search through everything, there is another such search: what is lost is never more than
    what is alive, and such a search comes the more rarely, the longer it takes."""

    def __init__(self) -> None:
        self._in_work = 0
        self._alive = gc.get_freeze_count()
        """Frozen after the last search through everything."""
        self._searches_all = False

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] != _OLDEST:
            return
        if self._searches_all:
            gc.freeze()
            self._searches_all, self._alive = False, gc.get_freeze_count()
            return
        survivors = len(gc.get_objects(_OLDEST))
        if survivors >= KEPT_FROM + self._in_work:
            gc.freeze()
            self._in_work = min(survivors, IN_WORK_AT_MOST)
            if gc.get_freeze_count() >= 2 * self._alive + KEPT_FROM:
                gc.unfreeze()  # the next full collection goes through them
                self._searches_all = True
