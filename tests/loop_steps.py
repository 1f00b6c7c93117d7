"""How long the steps of an event loop are: of its calls, the one that takes most.

There are two measures. CPU time says where a machine stands (`scripts/bench bounds`). Lines of Python that are run are
the same on every machine, however busy it is: tests assert a bound on them.
"""

from __future__ import annotations

import asyncio.events
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

CHARACTERS_PER_LINE = 10
"""Characters of JSON that are encoded or decoded in C in the time of a line of Python, roughly."""


class Measure(ABC):
    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def end(self) -> float:
        """What was done since it began."""

    @abstractmethod
    @contextmanager
    def left_out(self) -> Iterator[None]:
        """What is done meanwhile does not count."""


class CpuTime(Measure):
    """ms of this thread."""

    def __init__(self) -> None:
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.thread_time()

    def end(self) -> float:
        return (time.thread_time() - self._began) * 1000

    @contextmanager
    def left_out(self) -> Iterator[None]:
        began = time.thread_time()
        try:
            yield
        finally:
            self._began += time.thread_time() - began


class Lines(Measure):
    """Lines of Python, and the codec of JSON."""

    def __init__(self) -> None:
        self._count = 0
        self._is_counting = False

    def begin(self) -> None:
        self._count, self._is_counting = 0, True
        sys.settrace(self._on_call)

    def end(self) -> float:
        sys.settrace(None)
        self._is_counting = False
        return self._count

    @contextmanager
    def left_out(self) -> Iterator[None]:
        counted, was_counting = self._count, self._is_counting
        sys.settrace(None)
        self._is_counting = False
        try:
            yield
        finally:
            self._count, self._is_counting = counted, was_counting
            if was_counting:
                sys.settrace(self._on_call)

    @contextmanager
    def with_json(self) -> Iterator[None]:
        """The codec counts as well."""
        dumps, loads = json.dumps, json.loads

        def counted_dumps(value: Any, **options: Any) -> str:
            text = dumps(value, **options)
            self._count += len(text) // CHARACTERS_PER_LINE
            return text

        def counted_loads(data: Any, **options: Any) -> Any:
            self._count += len(data) // CHARACTERS_PER_LINE
            return loads(data, **options)

        with patch.object(json, "dumps", counted_dumps), patch.object(json, "loads", counted_loads):
            yield

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._on_line

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._count += 1
        return self._on_line


class Longest:
    def __init__(self) -> None:
        self.size = 0.0
        self.of = ""
        """The call of the loop."""


@contextmanager
def steps_measured(measure: Measure, left_out: tuple[tuple[type[Any], str], ...] = ()) -> Iterator[Longest]:
    """The longest step of any event loop of this thread. `left_out`: methods that do not count, by class and name."""
    longest, run = Longest(), asyncio.events.Handle._run

    def measured(handle: Any) -> None:
        measure.begin()
        try:
            run(handle)
        finally:
            size = measure.end()
            if size > longest.size:
                longest.size, longest.of = size, repr(handle)

    def without(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with measure.left_out():
                return method(*arguments, **options)

        return call

    with ExitStack() as stack:
        for owner, name in left_out:
            stack.enter_context(patch.object(owner, name, without(getattr(owner, name))))
        if isinstance(measure, Lines):
            stack.enter_context(measure.with_json())
        stack.enter_context(patch.object(asyncio.events.Handle, "_run", measured))
        yield longest
