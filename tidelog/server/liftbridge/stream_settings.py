"""The settings of Liftbridge's CreateStream as settings of Tidelog's streams. What has no counterpart is refused."""

from __future__ import annotations

from collections.abc import Mapping

from wire.errors import Code, TidelogError
from wire.liftbridge_pb2 import CreateStreamRequest
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

_WITHOUT: Mapping[str, str] = {
    "cleanerInterval": "brokers look for what retention and compaction remove at an interval of their own"
    " ([storage] housekeeping_interval of their configuration)",
    "compactMaxGoroutines": "a broker compacts one log at a time",
    "optimisticConcurrencyControl": "it is no setting of a stream: a publish whose expectedOffset is above 0 is checked"
    " on every stream",
}
"""And why."""
_FOR_NOTHING = ("optimisticConcurrencyControl",)
"""False asks for what is so."""


def stream_config(request: CreateStreamRequest) -> dict[str, str]:
    """As texts. Raises TidelogError(BAD_CONFIG) that names the field, the value and the remedy."""
    for name, why in _WITHOUT.items():
        if request.HasField(name):  # type: ignore[arg-type] # protobuf's stubs want a literal
            value = getattr(request, name).value
            if value or name not in _FOR_NOTHING:
                raise _bad(f"{name}={_text(value)} has no counterpart here: {why}; leave it out")
    if request.group:
        raise _bad("group is set, and a stream here gets every message of its subject; leave it out")
    config: dict[str, str] = {}
    for name, setting in _COUNTERPARTS.items():
        if not request.HasField(name):  # type: ignore[arg-type] # as above
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
