"""The treatment of memory that a broker, or a client, frees: the C library's allocator keeps it, and Python's
collector of cycles looks only at objects newer than the start.

A broker takes and frees buffers of some MiB all the time: chunks, joined columns, answers. By default glibc maps such
a buffer anew each time, or gives the top of its heap back, and the kernel clears every page of it when it is touched
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
"""Number of objects that survive a full collection."""
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
    stop it for part of a second. So the generations are small, and of a full collection that KEPT_FROM objects or more
    survive, the survivors are not searched again either: the next one goes through those that were made since. What
    was alive then and later dies in a cycle is lost; that is little beside what is kept, since all work that does not
    grow the process leaves fewer survivors."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_FROM, *_GENERATIONS)
    gc.callbacks.append(_keep_survivors)


def _keep_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST and len(gc.get_objects(_OLDEST)) >= KEPT_FROM:
        gc.freeze()
