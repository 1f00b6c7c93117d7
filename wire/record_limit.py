"""The largest record that a stream takes, and the refusal of a larger one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from wire.errors import Code, TidelogError

_OF_ONE_RECORD: Final = 96 + 64
"""Most bytes of a batch of one record besides its data: the header, three columns' offsets, and padding."""


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """Two bounds on key, value and headers together, in bytes; the smaller one holds."""

    room: int
    """Bytes that fit one message of the NATS server, from its `max_payload`."""
    configured: int | None = None
    """The stream's `max_record_bytes`; None where it is not known."""

    @classmethod
    def within(cls, batch_bytes: int, configured: int | None = None) -> Self:
        """`batch_bytes`: of the largest batch that a message has room for. Producers and leaders have this one limit,
        so that a copy can write what was published."""
        return cls(batch_bytes - _OF_ONE_RECORD, configured)

    @property
    def max_bytes(self) -> int:
        return self.room if self.configured is None else min(self.room, self.configured)

    def too_large(self, what: str, size: int) -> TidelogError:
        """RECORD_TOO_LARGE for a record of `size` bytes above the limit. `what` begins the sentence; the
        remedy names the settings that keep this record out."""
        by_stream = self.configured is not None and self.configured <= self.room
        which = "the stream's max_record_bytes" if by_stream else "what the NATS server takes in one message"
        remedies = []
        if self.configured is not None and size > self.configured:
            remedies.append("max_record_bytes")
        if size > self.room:
            remedies.append("max_payload of the NATS server")
        return TidelogError(
            Code.RECORD_TOO_LARGE,
            f"{what} of {size} bytes (key, value and headers) is above {self.max_bytes}, {which}; send smaller records "
            f"or raise {' and '.join(remedies)}",
        )
