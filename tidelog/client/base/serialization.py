"""Callables of users that make bytes of keys and values, and keys and values of bytes.

None stays None on both sides: a record without a key has none, and a value of None deletes its key in a compacted
stream, whatever the callables are. They are called one record at a time where records are sent or handed out; headers
and whole batches (`Consumer.batches`) stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

from tidelog.client.base.arguments import shown
from tidelog.client.base.exceptions import DeserializationFailed, SerializationFailed
from tidelog.client.base.records import K, Record, V
from wire.errors import Code


class Serializers(Generic[K, V]):
    """The serializers of a producer. None: the caller gives bytes."""

    def __init__(self, key: Callable[[K], bytes] | None, value: Callable[[V], bytes] | None) -> None:
        self._key = key
        self._value = value

    @property
    def are_none(self) -> bool:
        """Whether there are none: values and keys are passed on unchecked."""
        return self._key is None and self._value is None

    def both(self, value: V | None, key: K | None) -> tuple[Any, Any]:
        """Returns bytes or None for a record's value and key. Raises SerializationFailed."""
        if self._value is not None:
            value = _serialized("value_serializer", self._value, value)
        if self._key is not None:
            key = _serialized("key_serializer", self._key, key)
        return value, key

    def lists(self, values: Sequence[V | None], keys: Sequence[K | None] | None) -> tuple[Any, Any]:
        """Returns the results of `both` for many records."""
        made: Any = values
        made_keys: Any = keys
        if self._value is not None:
            made = [_serialized("value_serializer", self._value, value) for value in values]
        if self._key is not None and keys is not None:
            made_keys = [_serialized("key_serializer", self._key, key) for key in keys]
        return made, made_keys


class Deserializers(Generic[K, V]):
    """The deserializers of a consumer. None: bytes."""

    def __init__(self, key: Callable[[bytes], K] | None, value: Callable[[bytes], V] | None) -> None:
        self._key = key
        self._value = value

    def read(self, records: Iterator[Record]) -> Iterator[Record[K, V]]:
        """Yields the records with deserialized keys and values. The iterator raises DeserializationFailed for a
        record that cannot be read, and does so again when it is asked again: it does not pass over it."""
        if self._key is None and self._value is None:
            return records  # type: ignore[return-value]  # K and V are bytes then
        return _Deserialized(records, self._key, self._value)


class _Deserialized(Iterator[Record[K, V]]):
    def __init__(
        self, records: Iterator[Record], key: Callable[[bytes], K] | None, value: Callable[[bytes], V] | None
    ) -> None:
        self._records = records
        self._key = key
        self._value = value
        self._next: Record | None = None
        """A record taken from `records`, and not handed out yet."""

    def __next__(self) -> Record[K, V]:
        record = self._next
        if record is None:
            record = self._next = next(self._records)
        key: Any = record.key
        value: Any = record.value
        if self._key is not None and key is not None:
            key = _deserialized("key", self._key, record, key)
        if self._value is not None and value is not None:
            value = _deserialized("value", self._value, record, value)
        self._next = None
        return Record(record.stream, record.partition, record.offset, record.timestamp, key, value, record.headers)


def _serialized(name: str, serializer: Callable[[Any], bytes], given: object) -> Any:
    if given is None:
        return None
    try:
        made = serializer(given)
    except Exception as error:
        raise SerializationFailed(
            Code.BAD_REQUEST, f"the {name} refuses {shown(given)}: {type(error).__name__}: {error}"
        ) from error
    if type(made) is not bytes:
        raise SerializationFailed(
            Code.BAD_REQUEST, f"the {name} made {shown(made)} of {shown(given)}; it has to return bytes"
        )
    return made


def _deserialized(field: str, deserializer: Callable[[bytes], Any], record: Record, data: bytes) -> object:
    try:
        return deserializer(data)
    except Exception as error:
        raise DeserializationFailed(
            Code.BAD_REQUEST,
            f"the {field} of {record.stream}/{record.partition} at offset {record.offset} cannot be read:"
            f" {type(error).__name__}: {error}; seek({record.partition}, {record.offset + 1}) passes over it",
            record=record,
        ) from error
