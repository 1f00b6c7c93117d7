"""Durability levels as users spell them, and as publishes carry them."""

from __future__ import annotations

import pytest

from wire.durability import Durability
from wire.errors import Code, TidelogError
from wire.partition_messages.append import ask_durability, asked_durability
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.stream_config import StreamConfig

LEVELS = ["durable", "accepted", "local_durable", "majority_durable", "replica_durable:2", "replica_accepted:16"]


@pytest.mark.parametrize("text", LEVELS)
def test_a_level_comes_back_from_text_and_from_a_publish(text: str) -> None:
    level = Durability.parse(text.upper())
    assert str(level) == text
    request = AppendRequest()
    ask_durability(request, level)
    assert asked_durability(AppendRequest.FromString(request.SerializeToString())) == level
    assert StreamConfig.from_strings({"durability": text}).to_strings()["durability"] == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["none of durable, accepted"]),
        ("sturdy", ["'sturdy'", "replica_durable:N"]),
        ("replica_durable", ["no number", "replica_durable:N"]),
        ("replica_durable:", ["no number"]),
        ("replica_durable:two", ["no number"]),
        ("replica_durable:0", ["0", "1 to 16"]),
        ("replica_accepted:17", ["17", "1 to 16"]),
        ("durable:2", ["does not take", "give durable"]),
        ("majority_durable:2", ["does not take"]),
    ],
)
def test_a_bad_level_is_refused_with_the_good_ones(text: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\w") as refused:
        Durability.parse(text)
    assert all(word in str(refused.value) for word in words), refused.value
    with pytest.raises(TidelogError) as bad:
        StreamConfig.from_strings({"durability": text})
    assert bad.value.code is Code.BAD_CONFIG
    assert bad.value.message.startswith(f"durability={text!r} is no durability level: ")


def test_a_publish_that_asks_for_nothing_has_the_streams_level() -> None:
    assert asked_durability(AppendRequest()) is None


@pytest.mark.parametrize(
    "request_",
    [
        AppendRequest(durability=99),  # type: ignore[arg-type]
        AppendRequest(durability=AppendRequest.REPLICA_DURABLE),
        AppendRequest(durability=AppendRequest.REPLICA_DURABLE, durability_replicas=1000),
        AppendRequest(durability=AppendRequest.DURABLE, durability_replicas=1),
    ],
)
def test_a_publish_with_a_level_that_does_not_exist_is_refused(request_: AppendRequest) -> None:
    with pytest.raises(TidelogError) as refused:
        asked_durability(request_)
    assert refused.value.code is Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("text", "factor", "floor"),
    [
        ("durable", 3, 0),
        ("local_durable", 3, 0),
        ("replica_accepted:2", 5, 2),
        ("majority_durable", 5, 3),
        ("majority_durable", 2, 2),
    ],
)
def test_how_many_must_be_in_sync(text: str, factor: int, floor: int) -> None:
    assert Durability.parse(text).in_sync_floor(factor) == floor
