"""The settings of Liftbridge's CreateStream as settings of Tidelog's streams.

Some have no counterpart, and a program works without them. They are taken and do nothing (docs/liftbridge.md says of
each why): `group`, because a subject has one stream, which gets every message of it; `cleanerInterval`, because brokers
look for what is to be removed at an interval of their own; `compactMaxGoroutines`, because a broker compacts one log at
a time; and `optimisticConcurrencyControl`, because every stream checks an expected offset.
"""

from __future__ import annotations

from collections.abc import Mapping

from wire.errors import Code, TidelogError
from wire.protobuf.liftbridge_pb2 import CreateStreamRequest
from wire.stream_config import SETTINGS

_COUNTERPARTS: Mapping[str, str] = {
    "retentionMaxBytes": "retention_max_bytes",
    "retentionMaxMessages": "retention_max_messages",
    "retentionMaxAge": "retention_max_age_ms",
    "segmentMaxBytes": "segment_bytes",
    "segmentMaxAge": "segment_max_age_ms",
    "compactEnabled": "compact",
    "minIsr": "min_isr",
    "autoPauseTime": "auto_pause_time_ms",
    "autoPauseDisableIfSubscribers": "auto_pause_disable_if_subscribers",
    "encryption": "encryption",
}
"""Numbers have the same units in both."""


def stream_config(request: CreateStreamRequest) -> dict[str, str]:
    """As texts. Raises TidelogError(BAD_CONFIG) that names the field, the value and the remedy."""
    config: dict[str, str] = {}
    for name, setting in _COUNTERPARTS.items():
        if not request.HasField(name):  # type: ignore[arg-type] # protobuf's stubs want a literal
            continue
        text = _text(getattr(request, name).value)
        try:
            SETTINGS[setting].parse(text)
        except TidelogError as error:
            raise _bad(f"{name}: {error.message}") from None
        config[setting] = text
    return config


def _text(value: int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_CONFIG, sentence)
