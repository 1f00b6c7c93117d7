"""Spares Spark's Python workers most of the work of their garbage collector.

Spark collects garbage in a worker after every task. That looks at every object of the modules that are loaded, some
hundred thousand, which takes longer than many a task. They live as long as the process; `gc.freeze` takes them out of
what is looked at. Objects that come later are collected as ever.
"""

from __future__ import annotations

import gc

_is_done = False


def freeze_once() -> None:
    """To be called behind a worker's first task, when modules are loaded and a connection is kept."""
    global _is_done  # noqa: PLW0603 - the state of the process
    if not _is_done:
        gc.collect()
        gc.freeze()
        _is_done = True
