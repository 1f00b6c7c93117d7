"""Errors that the log raises when the disk, not the caller, is at fault."""

from __future__ import annotations


class LogDamaged(Exception):
    """The log of one partition takes no more writes: an operation of the disk failed, or recovery found it unsound.

    The sentence names the file and the cause. After a failed write or fsync it is for good: what the kernel has
    dropped from its cache by then is unknown, so nothing is tried again; the replica withdraws, and the partition is
    opened anew by a later life of the process. A log that recovery found unsound takes writes again after `truncate`
    or `drop_all`.
    """


class NoSpace(Exception):
    """The disk has no room for the bytes to be written: full, over a quota, or at the limit of a file's size.

    Nothing is wrong with the disk, and nothing has changed: the log is exactly as it was, and the same call succeeds
    once there is room. Never of an fsync: one that fails is LogDamaged, whatever the reason it gives.
    """


class DataDirError(Exception):
    """The data folder cannot be used. One sentence that names the folder, what is wrong and the remedy."""
