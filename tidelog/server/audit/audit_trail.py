"""The audit trail: a line of the log for every administrative act, in JSON (`wire.internal_records.audit_records` has
its fields).

An act is a request to an operation that writes, with whatever outcome; reads are none. The line begins with `audit` and
the outcome. Refused acts are limited per second as all alike lines are; acts that were carried out, or whose outcome is
unknown, are never left out, so that a flood of refused requests hides nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tidelog.server.audit.log_limit import ALWAYS
from wire.internal_records.audit_records import REFUSED, AuditRecord, audit_record
from wire.messaging.transport import Message
from wire.operations.operation import Operation

_log = logging.getLogger(__name__)


class _Json:
    """The JSON of a record. It is bounded and has no control characters, so the log has all of it (`log_limit`)."""

    __slots__ = ("_text",)

    def __init__(self, record: AuditRecord) -> None:
        self._text = json.dumps(record)

    def __str__(self) -> str:
        return self._text


class Act:
    """One request on its way. `request` is set when it has been decoded."""

    __slots__ = ("request",)

    def __init__(self) -> None:
        self.request: object = None


class AuditTrail:
    """`life_id`: no other process of a broker has the same. `epoch()`: the controller epoch of this broker; 0 where it
    is not the controller. `time_ns()`: since 1970. `on_record` is given every record, after its line is written; it
    must not raise."""

    def __init__(
        self,
        broker: str,
        *,
        life_id: str,
        epoch: Callable[[], int],
        time_ns: Callable[[], int],
        on_record: Callable[[AuditRecord], None] = lambda _: None,
    ) -> None:
        self._broker = broker
        self._life_id = life_id
        self._epoch = epoch
        self._time_ns = time_ns
        self._on_record = on_record
        self._number = 0

    @contextmanager
    def act(self, operation: Operation[..., Any, Any], message: Message) -> Iterator[Act]:
        """Records the act that is carried out inside. An exception is its outcome, and is raised again."""
        act = Act()
        epoch = self._epoch()
        try:
            yield act
        except BaseException as error:
            self._tell(operation, message, act, epoch, error)
            raise
        self._tell(operation, message, act, epoch, None)

    def _tell(
        self,
        operation: Operation[..., Any, Any],
        message: Message,
        act: Act,
        epoch: int,
        error: BaseException | None,
    ) -> None:
        if not operation.writes:
            return
        self._number += 1
        record = audit_record(
            act=f"{self._life_id}-{self._number}",
            time_ns=self._time_ns(),
            operation=operation.name,
            stream=None if act.request is None else operation.stream_of(act.request),
            request=act.request,
            error=error,
            controller=self._broker,
            controller_epoch=epoch,
            headers=message.headers,
            reply=message.reply,
        )
        # The texts inside may be of anybody: JSON leaves no line break and no control character in them.
        _log.info(
            f"audit {record['outcome']} %s",
            _Json(record),
            extra={ALWAYS: record["outcome"] != REFUSED},
        )
        self._on_record(record)
