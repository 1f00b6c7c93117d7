"""One request in the audit trail: how it may end, and which of these lines are never left out."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import nullcontext

import pytest

from tidelog.server.audit.audit_trail import AuditTrail
from tidelog.server.audit.log_limit import ALWAYS, MAX_ARGUMENT, LogLimit
from wire.errors import Code, TidelogError
from wire.internal_records.audit_records import AuditRecord
from wire.messaging.transport import Message
from wire.operations.api_operations import CLUSTER_STATUS, STREAM_ALTER, STREAM_DELETE, AlterStreamRequest, StreamRef

REQUEST = Message("tidelog.api.stream.delete.s", b"", "_INBOX.a.1", {"Tidelog-Client": "anna@host tidelog"})


def outcome_of(error: BaseException | None) -> AuditRecord:
    found: list[AuditRecord] = []
    trail = AuditTrail("b1", life_id="b1-x", epoch=lambda: 3, time_ns=lambda: 0, on_record=found.append)
    with (
        nullcontext() if error is None else pytest.raises(type(error)),
        trail.act(STREAM_DELETE, REQUEST) as act,
    ):
        act.request = StreamRef("s")
        if error is not None:
            raise error
    (record,) = found
    assert (record["stream"], record["claimed"], record["connection"]) == ("s", "anna@host tidelog", "_INBOX.a")
    return record


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "answered"),
        (TidelogError(Code.UNKNOWN_STREAM, "no"), "refused"),
        (TidelogError(Code.OUTCOME_UNKNOWN, "no"), "unknown"),
        (KeyError("a bug"), "unknown"),
        (asyncio.CancelledError(), "unknown"),
    ],
    ids=str,
)
def test_every_end_of_an_act_is_told(
    error: BaseException | None, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert outcome_of(error)["outcome"] == outcome
    (line,) = caplog.records
    assert line.getMessage().startswith(f'audit {outcome} {{"id": "b1-x-1"')
    assert getattr(line, ALWAYS) is (outcome != "refused")


def test_reads_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trail = AuditTrail(
        "b1", life_id="b1-x", epoch=lambda: 3, time_ns=lambda: 0, on_record=lambda _: pytest.fail("a read")
    )
    with trail.act(CLUSTER_STATUS, REQUEST):
        pass
    assert caplog.records == []


def test_a_line_holds_the_whole_record_however_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trail = AuditTrail("b1", life_id="b1-x", epoch=lambda: 3, time_ns=lambda: 0)
    with trail.act(STREAM_ALTER, REQUEST) as act:
        act.request = AlterStreamRequest(name="s", config={f"key{number}": "x\n" * 90 for number in range(20)})
    (line,) = caplog.records
    assert LogLimit().filter(line)
    message = line.getMessage()
    assert len(message) > MAX_ARGUMENT
    assert len(json.loads(message.removeprefix("audit answered "))["request"]["config"]) == 20
    assert message.isprintable()
