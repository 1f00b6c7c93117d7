from __future__ import annotations

import inspect

import pytest

import tidelog
from spark_connector.options import KNOWN_OPTIONS, LOGIN_OPTIONS, AtTimestamp, Edge, SourceOptions
from wire.errors import Code, TidelogError

GIVEN = {"servers": "nats://127.0.0.1:4222", "subscribe": "flights"}
ASSIGNED = {"servers": "nats://127.0.0.1:4222"}


def parse(**more: str) -> SourceOptions:
    return SourceOptions.parse(GIVEN | more)


def refusal(given: dict[str, str]) -> str:
    with pytest.raises(TidelogError) as caught:
        SourceOptions.parse(given)
    assert caught.value.code is Code.BAD_CONFIG
    assert "\n" not in caught.value.message
    return caught.value.message


def test_defaults() -> None:
    options = parse()
    assert options.servers == ("nats://127.0.0.1:4222",)
    assert options.streams == ("flights",)
    assert options.namespace == "tidelog"
    assert options.starting is None
    assert options.ending is None
    assert options.fail_on_data_loss
    assert options.min_partitions == 1


def test_names_are_case_insensitive() -> None:
    options = parse(STARTINGOFFSETS="Earliest", failondataloss="FALSE", MinPartitions="4")
    assert options.starting is Edge.EARLIEST
    assert not options.fail_on_data_loss
    assert options.min_partitions == 4


def test_lists() -> None:
    options = SourceOptions.parse({"servers": "nats://a:1, nats://b:2", "subscribe": "one , two"})
    assert options.servers == ("nats://a:1", "nats://b:2")
    assert options.streams == ("one", "two")


def test_assigned_partitions() -> None:
    options = SourceOptions.parse({"servers": "nats://a:1", "assign": '{"one": [2, 0], "two": [1]}'})
    assert options.streams == ("one", "two")
    assert options.assign == {"one": (0, 2), "two": (1,)}


def test_offsets_in_json() -> None:
    options = parse(startingOffsets='{"flights": {"0": 23, "1": -2, "2": -1}}', endingOffsets='{"flights": {"0": -1}}')
    assert options.starting == {"flights": {0: 23, 1: Edge.EARLIEST, 2: Edge.LATEST}}
    assert options.ending == {"flights": {0: Edge.LATEST}}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1893456000000", 1893456000), ("2030-01-01T00:00:00", 1893456000), ("2030-01-01T02:00:00+02:00", 1893456000)],
)
def test_starting_timestamp(text: str, seconds: int) -> None:
    assert parse(startingTimestamp=text).starting == AtTimestamp(seconds * 1_000_000_000)


def test_an_unknown_option_is_refused_with_the_known_ones_and_the_likely_one() -> None:
    message = refusal(GIVEN | {"startingOffset": "earliest"})
    assert "'startingOffset'" in message
    assert "did you mean startingOffsets?" in message
    assert all(name in message for name in KNOWN_OPTIONS)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "flights"}, "servers is missing"),
        ({"servers": "nats://a:1"}, "subscribe is missing"),
        (GIVEN | {"path": "flights"}, "not a path"),
        (GIVEN | {"servers": "127.0.0.1:4222"}, "'127.0.0.1:4222' is not a URL"),
        (GIVEN | {"subscribe": "a,,b"}, "empty item"),
        (GIVEN | {"subscribe": "a,a"}, "twice"),
        (GIVEN | {"startingOffsets": "first"}, "startingOffsets='first'"),
        (GIVEN | {"startingOffsets": "[1]"}, "startingOffsets='[1]'"),
        (GIVEN | {"startingOffsets": '{"flights": {"x": 1}}'}, "partition 'x'"),
        (GIVEN | {"startingOffsets": '{"flights": {"0": -3}}'}, "offset -3"),
        (GIVEN | {"startingOffsets": '{"flights": {"0": true}}'}, "offset True"),
        (GIVEN | {"startingOffsets": '{"other": {"0": 1}}'}, "startingOffsets speaks of other"),
        (GIVEN | {"endingOffsets": "earliest"}, "endingOffsets='earliest'"),
        (GIVEN | {"endingOffsets": '{"flights": {"0": -2}}'}, "earliest offset (-2)"),
        (GIVEN | {"startingTimestamp": "yesterday"}, "startingTimestamp='yesterday'"),
        (GIVEN | {"startingTimestamp": "1", "startingOffsets": "earliest"}, "leave one out"),
        (GIVEN | {"endingTimestamp": "1", "endingOffsets": "latest"}, "leave one out"),
        (GIVEN | {"assign": '{"flights": [0]}'}, "subscribe and assign are both given"),
        (ASSIGNED | {"assign": "flights"}, "assign='flights' is not a list"),
        (ASSIGNED | {"assign": "{}"}, "is not a list"),
        (ASSIGNED | {"assign": '{"flights": []}'}, "is not a list"),
        (ASSIGNED | {"assign": '{"flights": [0, 0]}'}, "is not a list"),
        (ASSIGNED | {"assign": '{"flights": [-1]}'}, "is not a list"),
        (ASSIGNED | {"assign": '{"flights": [true]}'}, "is not a list"),
        (ASSIGNED | {"assign": '{"flights": [0]}', "startingOffsets": '{"o": {"0": 1}}'}, "but assign of flights"),
        (GIVEN | {"pushDownFilters": "true"}, "pushDownFilters is gone"),
        (GIVEN | {"minPartitions": "0"}, "minPartitions='0' is outside 1"),
        (GIVEN | {"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger='many'"),
        (GIVEN | {"failOnDataLoss": "no"}, "failOnDataLoss='no'"),
    ],
)
def test_refusals_name_the_option_and_the_value(given: dict[str, str], says: str) -> None:
    assert says in refusal(given)


def test_options_of_one_kind_of_query_are_refused_by_the_other() -> None:
    with pytest.raises(TidelogError, match="endingOffsets and endingTimestamp have no meaning"):
        parse(endingOffsets="latest").for_stream()
    with pytest.raises(TidelogError, match="maxOffsetsPerTrigger has no meaning"):
        parse(maxOffsetsPerTrigger="5").for_batch()
    with pytest.raises(TidelogError, match="startingOffsets=latest"):
        parse(startingOffsets="latest").for_batch()


def test_the_options_of_the_login_are_those_of_the_client_and_are_not_shown() -> None:
    options = SourceOptions.parse(
        GIVEN | {"nats.USER": "u", "nats.password": "secret-word", "nats.tls_first": "true", "nats.tls": "false"}
    )
    assert options.login == {"user": "u", "password": "secret-word", "tls_first": True}
    assert "secret-word" not in repr(options)
    assert set(LOGIN_OPTIONS) <= set(inspect.signature(tidelog.connect).parameters)


def test_a_context_names_the_servers_and_urls_with_a_login_are_not_shown() -> None:
    options = SourceOptions.parse({"subscribe": "flights", "context": "prod"})
    assert (options.servers, options.login) == (None, {"context": "prod"})
    for servers in ("u:secret-word@host:4222", "nats://u:secret-word@host:4222,"):
        with pytest.raises(TidelogError, match="servers") as caught:
            SourceOptions.parse(GIVEN | {"servers": servers})
        assert "secret-word" not in caught.value.message
