"""Errors of the connector as one sentence each, at the edge where Spark calls it.

Spark writes the traceback of an error in front of its sentence: ten to thirty lines of Spark's own calls, since the
error passes through them. It leaves the traceback out when the environment of its Python process says so, which is what
its setting `spark.sql.execution.pyspark.udf.hideTraceback.enabled` does for all Python errors of a session.
`plain_errors` says so in that process, for an error of ours: the process ends with it. An error that is not ours, a
defect, keeps its traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import FunctionType, GeneratorType
from typing import Any, TypeVar

from wire.errors import TidelogError

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Environment variable that Spark's Python processes read when they report an error."""

_Class = TypeVar("_Class", bound=type)


def plain_errors(of: _Class) -> _Class:
    """Decorates a class: errors of its public methods, and of iterators that they return, are shown without
    traceback."""
    for name, method in list(vars(of).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(of, name, _plain(method))
    return of


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = method(*args, **kwargs)
        except TidelogError as error:
            raise _told(error) from None
        return _plain_iterator(result) if isinstance(result, GeneratorType) else result

    return call


def _plain_iterator(iterator: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from iterator
    except TidelogError as error:
        raise _told(error) from None


def _told(error: TidelogError) -> TidelogError:
    if _is_worker():
        os.environ[HIDE_TRACEBACK] = "1"
    return error.with_traceback(None)


def _is_worker() -> bool:
    """Returns whether this is a process of Spark's, and not one of the user's."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
