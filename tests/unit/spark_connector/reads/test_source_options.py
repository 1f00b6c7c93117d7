from __future__ import annotations

import inspect
import json

import pytest

import tidelog
from spark_connector.reads.read_options import KNOWN_OPTIONS, AtTimestamp, AtTimestamps, Edge, SourceOptions
from spark_connector.shared.option_values import LOGIN_OPTIONS
from wire.errors import Code, TidelogError
from wire.types import StreamName

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
    assert not options.latest_without_match
    assert (options.read_from, options.read_uncommitted) == ("leader", False)
    assert (options.retry_seconds, options.max_trigger_delay) == (120, 900)
    assert (options.max_records_per_partition, options.columns, options.group) == (None, None, None)


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


def test_of_two_starts_or_ends_the_one_counts_that_kafka_takes() -> None:
    by_partition = {"flights": {"0": 5}}
    given = {
        "OffsetsByTimestamp": json.dumps(by_partition),
        "Offsets": json.dumps(by_partition),
    }
    for role in ("starting", "ending"):
        options = {f"{role}{name}": value for name, value in given.items()}
        assert getattr(parse(**options), role) == AtTimestamps({StreamName("flights"): {0: 5_000_000}})
        assert getattr(parse(**options, **{f"{role}Timestamp": "7"}), role) == AtTimestamp(7_000_000)


def test_options_with_words_and_units() -> None:
    options = parse(
        startingOffsetsByTimestampStrategy="Latest", isolationLevel="READ_UNCOMMITTED", readFrom="nearest", rack="a",
        maxTriggerDelay="90000", maxBytesPerTrigger="16m", maxRecordsPerPartition="9", groupId="billing",
        columns="value, key", minOffsetsPerTrigger="5", maxOffsetsPerTrigger="5", **{"retry.timeout": "2m"},
    )  # fmt: skip
    assert options.latest_without_match
    assert options.read_uncommitted
    assert not options.in_key_order
    assert parse(order="Key").in_key_order
    assert (options.read_from, options.rack) == ("nearest", "a")
    assert options.max_trigger_delay == 90
    assert options.max_bytes_per_trigger == 16 << 20
    assert options.max_records_per_partition == 9
    assert options.group == "billing"
    assert options.columns == ("value", "key")
    assert options.retry_seconds == 120
    assert parse(**{"retry.timeout": "0s"}).retry_seconds == 0
    assert parse(**{"retry.timeout": "500ms"}).retry_seconds == 0.5
    assert parse(maxTriggerDelay="15m").max_trigger_delay == 900
    assert parse(maxBytesPerTrigger="1000").max_bytes_per_trigger == 1000
    assert parse(maxBytesPerTrigger="1GB").max_bytes_per_trigger == 1 << 30


def test_a_pattern_in_place_of_names() -> None:
    options = SourceOptions.parse(ASSIGNED | {"subscribePattern": "orders-.*", "startingOffsets": '{"a": {"0": 1}}'})
    assert (options.pattern, options.streams) == ("orders-.*", ())


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
        (GIVEN | {"startingTimestamp": "1", "startingOffsets": "first"}, "startingOffsets='first'"),
        (GIVEN | {"subscribePattern": ".*"}, "subscribe and subscribePattern are both given"),
        (ASSIGNED | {"subscribePattern": "["}, "subscribePattern='[' is not a regular expression"),
        (GIVEN | {"startingOffsetsByTimestamp": "1"}, "is not milliseconds since 1970 per partition"),
        (GIVEN | {"startingOffsetsByTimestamp": '{"flights": {"0": "1"}}'}, "time '1' of flights/0"),
        (GIVEN | {"endingOffsetsByTimestamp": '{"flights": {"0": -1}}'}, "time -1 of flights/0"),
        (GIVEN | {"startingOffsetsByTimestamp": '{"other": {"0": 1}}'}, "startingOffsetsByTimestamp speaks of other"),
        (GIVEN | {"startingOffsetsByTimestampStrategy": "skip"}, "is none of error, latest"),
        (GIVEN | {"maxTriggerDelay": "soon"}, "maxTriggerDelay='soon' is not a duration"),
        (GIVEN | {"retry.timeout": "120"}, "retry.timeout='120' is not a duration such as 120s"),
        (GIVEN | {"retry.timeout": "-1s"}, "is not a duration"),
        (GIVEN | {"retry.timeout": "25h"}, "retry.timeout='25h' is above 1d"),
        (GIVEN | {"maxTriggerDelay": "101d"}, "maxTriggerDelay='101d' is above 100d"),
        (GIVEN | {"startingTimestamp": "1893456000000000000"}, "startingTimestamp='1893456000000000000' is outside"),
        (GIVEN | {"endingTimestamp": "9999-12-31T00:00:00Z"}, "is outside the years 1678 to 2261"),
        (
            GIVEN | {"startingOffsetsByTimestamp": '{"flights": {"0": 1893456000000000000}}'},
            "time 1893456000000000000 of flights/0 is outside the years",
        ),
        (GIVEN | {"maxBytesPerTrigger": "16q"}, "maxBytesPerTrigger='16q' is not a number of bytes"),
        (GIVEN | {"maxBytesPerTrigger": "0"}, "is not a number of bytes"),
        (GIVEN | {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger=6 is above"),
        (GIVEN | {"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition='0' is outside 1"),
        (GIVEN | {"readFrom": "anyone"}, "readFrom='anyone' is none of leader, follower, nearest"),
        (GIVEN | {"readFrom": "nearest"}, "readFrom=nearest needs the rack"),
        (GIVEN | {"rack": "eu-1a"}, "rack='eu-1a' is for readFrom=nearest"),
        (GIVEN | {"isolationLevel": "serializable"}, "is none of read_committed, read_uncommitted"),
        (GIVEN | {"columns": "key,,value"}, "empty item"),
        (GIVEN | {"columns": "key,key"}, "names a column twice"),
        (GIVEN | {"kafka.bootstrap.servers": "a:1"}, "of Spark's Kafka source: servers names"),
        (GIVEN | {"fetchOffset.numRetries": "3"}, "of Spark's Kafka source: retry.timeout says"),
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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kafka.security.protocol", "a login is nats.user"),
        ("kafka.sasl.jaas.config", "a login is nats.user"),
        ("kafka.ssl.truststore.location", "certificates are nats.ca"),
    ],
)
def test_logins_of_kafka_are_refused_with_what_stands_in_their_place(name: str, says: str) -> None:
    assert says in refusal(GIVEN | {name: "x"})


FLIGHTS = StreamName("flights")


def test_the_highest_number_of_java_is_no_limit_and_no_end() -> None:
    most = str((1 << 63) - 1)
    assert parse(maxOffsetsPerTrigger=most).max_offsets_per_trigger == (1 << 63) - 1
    assert parse(endingTimestamp=most).ending == AtTimestamp((1 << 63) - 1)
    by_partition = parse(endingOffsetsByTimestamp=f'{{"flights": {{"0": {most}}}}}').ending
    assert by_partition == AtTimestamps({FLIGHTS: {0: (1 << 63) - 1}})


def test_a_position_for_all_of_a_stream() -> None:
    assert parse(startingOffsets='{"flights": "Earliest"}').starting == {FLIGHTS: Edge.EARLIEST}
    assert parse(endingOffsets='{"flights": "latest"}').ending == {FLIGHTS: Edge.LATEST}
    assert "endingOffsets=" in refusal(GIVEN | {"endingOffsets": '{"flights": "earliest"}'})
    assert "startingOffsets=" in refusal(GIVEN | {"startingOffsets": '{"flights": "first"}'})
    with pytest.raises(TidelogError, match="the latest offset of flights leaves nothing"):
        parse(startingOffsets='{"flights": "latest"}').for_batch()


def test_options_of_one_kind_of_query_are_refused_by_the_other() -> None:
    for name, value in (
        ("endingOffsets", "latest"),
        ("endingTimestamp", "1"),
        ("endingOffsetsByTimestamp", '{"flights": {"0": 1}}'),
    ):
        with pytest.raises(TidelogError, match="endingOffsets, endingOffsetsByTimestamp and endingTimestamp have no"):
            parse(**{name: value}).for_stream()
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "groupId"):
        with pytest.raises(TidelogError, match=f"{name} has no meaning"):
            parse(**{name: "5"}).for_batch()
    with pytest.raises(TidelogError, match="order=key has no meaning in a batch query"):
        parse(order="key").for_batch()
    with pytest.raises(TidelogError, match=r"the latest offset \(-1\) of flights/1"):
        parse(startingOffsets='{"flights": {"0": 1, "1": -1}}').for_batch()
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
