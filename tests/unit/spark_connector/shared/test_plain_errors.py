from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from spark_connector.shared.plain_errors import HIDE_TRACEBACK, plain_errors
from wire.errors import Code, TidelogError


@plain_errors
class Reader:
    @classmethod
    def name(cls) -> str:
        return "reader"

    def partitions(self, start: int, end: int) -> list[int]:
        if start > end:
            raise TidelogError(Code.BAD_CONFIG, "the start lies beyond the end")
        return [start // end]

    def read(self) -> Iterator[int]:
        yield 1
        try:
            raise OSError("beneath")
        except OSError as error:
            raise TidelogError(Code.UNAVAILABLE, "no leader") from error


@pytest.fixture(params=[True, False], ids=["worker", "program"])
def is_worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.delenv(HIDE_TRACEBACK, raising=False)
    name = "pyspark.daemon" if request.param else "pytest"
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name=name)))
    return bool(request.param)


def test_an_error_of_ours_is_told_without_traceback_in_a_process_of_sparks(is_worker: bool) -> None:
    with pytest.raises(TidelogError, match="beyond the end") as caught:
        Reader().partitions(2, 1)
    assert (os.environ.get(HIDE_TRACEBACK) == "1") is is_worker
    assert [each.name for each in traceback.extract_tb(caught.value.__traceback__)][1:] == ["call"]


def test_so_is_one_of_an_iterator(is_worker: bool) -> None:
    rows = Reader().read()
    assert next(rows) == 1
    assert HIDE_TRACEBACK not in os.environ
    with pytest.raises(TidelogError, match="no leader") as caught:
        next(rows)
    assert (os.environ.get(HIDE_TRACEBACK) == "1") is is_worker
    assert caught.value.__suppress_context__


@pytest.mark.usefixtures("is_worker")
def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        Reader().partitions(0, 0)
    assert HIDE_TRACEBACK not in os.environ


def test_an_iterator_that_is_left_early_is_closed() -> None:
    rows = Reader().read()
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert list(rows) == []


def test_signatures_stay_for_spark_looks_at_them() -> None:
    assert list(inspect.signature(Reader().partitions).parameters) == ["start", "end"]
    assert Reader.name() == "reader"
