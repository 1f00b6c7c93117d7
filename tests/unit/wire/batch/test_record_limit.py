"""The refusal of a record that is too large names the setting to raise."""

from __future__ import annotations

import pytest

from wire.batch.encoded import RecordLimit
from wire.errors import Code


@pytest.mark.parametrize(
    ("limit", "size", "max_bytes", "says"),
    [
        (RecordLimit(1000, 100), 101, 100, "above 100, the stream's max_record_bytes; .* or raise max_record_bytes$"),
        (RecordLimit(1000, 100), 1001, 100, "raise max_record_bytes and max_payload of the NATS server$"),
        (
            RecordLimit(1000, 5000),
            1001,
            1000,
            "above 1000, what the NATS server takes .* raise max_payload of the NATS",
        ),
        (RecordLimit(1000, 5000), 5001, 1000, "raise max_record_bytes and max_payload of the NATS server$"),
        (RecordLimit(1000), 1001, 1000, "raise max_payload of the NATS server$"),
    ],
)
def test_the_named_remedy_helps(limit: RecordLimit, size: int, max_bytes: int, says: str) -> None:
    assert limit.max_bytes == max_bytes
    error = limit.too_large("a record", size)
    assert error.code is Code.RECORD_TOO_LARGE
    assert error.message.startswith(f"a record of {size} bytes")
    with pytest.raises(type(error), match=says):
        raise error
