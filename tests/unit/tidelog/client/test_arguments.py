"""Arguments of the wrong type: every public call refuses them at once, in a sentence that names the argument, its value
and the remedy."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import tidelog
from tests.unit.tidelog.client.fake_broker import make
from tidelog.client.base.read_positions import AtTime
from tidelog.client.client import Client, connect
from wire.errors import TidelogError

NOWHERE = "nats://127.0.0.1:1"


@pytest.fixture
async def client() -> Client:
    _, broker, client = make()
    broker.create("s", 2)
    return client


async def refusal(call: Callable[[], Any]) -> str:
    """Of a call that may be a coroutine, a future, or the beginning of a consumer."""
    try:
        made = call()
        if isinstance(made, tidelog.Consumer):
            made = made.start()
        if inspect.isawaitable(made):
            async with asyncio.timeout(30):
                await made
        elif inspect.isasyncgen(made):
            await anext(made)
    except TidelogError as error:
        return error.message
    return "it was not refused"


TEXTS: list[Any] = [None, b"s", 5, 1.5, ["s"], ""]
NUMBERS: list[Any] = [None, "1", b"1", [1], -1, float("nan"), True]
WHOLE_NUMBERS = [*NUMBERS, 1.5]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("servers", [4222, b"nats://127.0.0.1:1", [4222], "", []], "give .*nats://127.0.0.1:4222"),
        ("namespace", TEXTS[1:], "namespace"),
        ("name", [5, b"x"], "name is"),
        ("user", [5, b"x"], "user is"),
        ("password", [5, b"x"], "password is"),
        ("token", [5, b"x"], "token is"),
        ("creds", [5, b"x"], "give the path"),
        ("tls", [None, "x"], "SSLContext"),
        ("connect_timeout", NUMBERS, "connect_timeout="),
        ("api_timeout", NUMBERS, "api_timeout="),
        ("start_wait", NUMBERS, "start_wait="),
    ],
)
async def test_connect(name: str, values: list[Any], said: str) -> None:
    for value in values:
        message = await refusal(partial(connect, **{"servers": NOWHERE, name: value}))
        assert re.search(said, message), (value, message)


@pytest.mark.parametrize(
    "call",
    [
        "create_stream", "alter_stream", "delete_stream", "describe", "move_leader", "elect_unclean",
        "partition_history", "metadata", "producer", "consume", "offsets", "fetch_batches",
    ],
)  # fmt: skip
async def test_the_name_of_a_stream(client: Client, call: str) -> None:
    rest = {
        "move_leader": (0, "b1"), "elect_unclean": (0, "b1"), "partition_history": (0,), "offsets": ("latest",),
        "fetch_batches": (0, 0, 1),
    }  # fmt: skip
    for value in TEXTS:
        message = await refusal(partial(getattr(client, call), value, *rest.get(call, ())))
        assert message.startswith(f"stream name {value!r} is "), message


@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        ("create_stream", {"name": "a", "subject": 5}, "subject 5 is int, not text"),
        ("create_stream", {"name": "a", "subject": b"a"}, "subject b'a' is bytes, not text"),
        ("create_stream", {"name": "a", "subject": ""}, "subject '' is empty"),
        ("create_stream", {"name": "a", "partitions": "3"}, "partitions='3' (str) is not a whole number"),
        ("create_stream", {"name": "a", "partitions": 1.5}, "partitions=1.5 (float) is not a whole number"),
        ("create_stream", {"name": "a", "partitioner": "md5"}, "partitioner='md5' is neither 'crc32c' nor 'murmur2'"),
        ("create_stream", {"name": "a", "partitioner": 5}, "partitioner=5 is neither 'crc32c' nor 'murmur2'"),
        ("create_stream", {"name": "a", "replication_factor": b"3"}, "replication_factor is \"b'3'\", not a whole"),
        ("create_stream", {"name": "a", "config": "compact=true"}, "config='compact=true' (str) is not a mapping"),
        ("create_stream", {"name": "a", "config": {5: 1}}, "config has the key 5 (int)"),
        ("create_stream", {"name": "a", "config": {"min_isr": None}}, "true/false, not None"),
        ("create_stream", {"name": "a", "config": {"min_isr": 1.5}}, "true/false, not 1.5"),
        ("alter_stream", {"name": "s", "unset": "compact"}, "unset='compact' (str) is not a list of texts"),
        ("alter_stream", {"name": "s", "unset": None}, "unset=None (NoneType) is not a list of texts"),
        ("alter_stream", {"name": "s", "unset": [5]}, "unset[0] is 5, not a text"),
        ("alter_cluster", {"unset": b"x"}, "unset=b'x' (bytes) is not a list of texts"),
        ("alter_cluster", {"config": ["x"]}, "config=['x'] (list) is not a mapping"),
        ("move_leader", {"stream": "s", "partition": "0", "broker": "b1"}, 'partition is "0", not a whole number'),
        ("move_leader", {"stream": "s", "partition": 0, "broker": 1}, "broker is 1, not a text"),
        ("elect_unclean", {"stream": "s", "partition": 0, "broker": "b1", "accept_loss": "no"}, 'accept_loss is "no"'),
        ("partition_history", {"stream": "s", "partition": None}, "partition is null, not a whole number"),
        ("describe_broker", {"broker": b"b1"}, "broker is \"b'b1'\", not a text"),
        ("restart_order", {"broker": 1}, "broker is 1, not a text"),
        ("replicas", {"partition": 0}, "partition=0 is of no stream; name the stream, too"),
        ("replicas", {"stream": "s", "partition": -1}, "partition=-1 is below 0"),
        ("replicas", {"stream": "s", "partition": "0"}, 'partition is "0", not a whole number'),
        ("replicas", {"broker": 1}, "broker is 1, not a text"),
        ("offsets", {"stream": "s", "which": None}, "which=None (NoneType) is no point in time"),
        ("offsets", {"stream": "s", "which": b"latest"}, "which=b'latest' (bytes) is no point in time"),
        ("offsets", {"stream": "s", "which": "newest"}, "which='newest' is none of"),
        ("offsets", {"stream": "s", "which": 5}, "which=5 is 1970-01-01"),
        ("offsets", {"stream": "s", "which": AtTime("now")}, "which=AtTime(timestamp_ns='now')"),  # type: ignore[arg-type]
        (
            "fetch_batches",
            {"stream": "s", "partition": "0", "start_offset": 0, "end_offset": 1},
            "partition='0' (str) is not a whole number",
        ),
        (
            "fetch_batches",
            {"stream": "s", "partition": 0, "start_offset": -1, "end_offset": 1},
            "start_offset=-1 is outside 0 to",
        ),
        ("consume", {"stream": "s", "start": b"earliest"}, "start=b'earliest' is no position"),
        ("consume", {"stream": "s", "start": None}, "start=None is no position"),
        ("consume", {"stream": "s", "start": ""}, "'' is no position"),
        ("consume", {"stream": "s", "start": '{"0": 7}'}, "give the mapping that json.loads() makes of it"),
        ("consume", {"stream": "s", "start": 1.5}, "start=1.5 is no position"),
        ("consume", {"stream": "s", "start": -1}, "offset -1 is outside 0 to"),
        ("consume", {"stream": "s", "start": {"0": "x", "1": 1}}, "start has '0': 'x'"),
        ("consume", {"stream": "s", "stop": b"latest"}, "stop=b'latest' is no position"),
        ("consume", {"stream": "s", "partitions": 0}, "partitions=0 is no list"),
        ("consume", {"stream": "s", "partitions": "0"}, "partitions='0' is no list"),
        ("consume", {"stream": "s", "partitions": [1.5]}, "partition 1.5 is no whole number"),
        ("consume", {"stream": "s", "read_from": None}, "read_from=None is none of"),
        ("consume", {"stream": "s", "read_from": "nearest"}, "'nearest' needs a rack"),
        ("consume", {"stream": "s", "rack": "eu"}, "'nearest' needs a rack, and the others need none"),
        ("consume", {"stream": "s", "read_from": "nearest", "rack": 5}, "is no name of a rack"),
        ("consume", {"stream": "s", "read_from": "nearest", "rack": "a b"}, "is no name of a rack"),
        ("consume", {"stream": "s", "on_gap": b"skip"}, "on_gap=b'skip' is none of"),
        ("producer", {"stream": "s", "acks": None}, "acks=None is none of"),
        ("producer", {"stream": "s", "acks": 1}, "acks=1 is none of"),
        ("producer", {"stream": "s", "linger_ms": 10**400}, "is outside 0 to 60000"),
        ("producer", {"stream": "s", "durability": 2}, "durability=2 (int) is not text; give a text such as 'durable'"),
        ("producer", {"stream": "s", "compression": ["lz4"]}, "compression=['lz4'] is none of"),
        ("producer", {"stream": "s", "partitioner": "murmur3"}, "partitioner='murmur3' (str) is neither 'crc32c' nor"),
    ],
)
async def test_other_arguments(client: Client, call: str, given: dict[str, Any], said: str) -> None:
    assert said in await refusal(partial(getattr(client, call), **given))


@pytest.mark.parametrize(
    ("call", "name", "values"),
    [
        ("producer", "confirm_timeout", [value for value in NUMBERS if value is not None]),
        ("producer", "batch_bytes", WHOLE_NUMBERS),
        ("producer", "linger_ms", NUMBERS),
        ("producer", "max_in_flight", WHOLE_NUMBERS),
        ("producer", "buffer_bytes", WHOLE_NUMBERS),
        ("producer", "delivery_timeout_ms", NUMBERS),
        ("consume", "max_bytes", WHOLE_NUMBERS),
        ("consume", "prefetch_bytes", WHOLE_NUMBERS),
    ],
)
async def test_numbers(client: Client, call: str, name: str, values: list[Any]) -> None:
    for value in values:
        message = await refusal(partial(getattr(client, call), "s", **{name: value}))
        assert message.startswith(f"{name}="), message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"value": "text"}, "value='text' (str) is not bytes or None; encode it, for instance with text.encode()"),
        ({"value": 5}, "value=5 (int) is not bytes or None; encode it, for instance with str(5).encode()"),
        ({"value": 0.5}, "value=0.5 (float) is not bytes or None; encode it, for instance with str(0.5).encode()"),
        ({"value": {"a": 1}}, "value={'a': 1} (dict) is not bytes or None; encode it, for instance with json.dumps("),
        (
            {"value": bytearray(b"x")},
            "value=bytearray(b'x') (bytearray) is not bytes or None; encode it, for instance with bytes(...)",
        ),
        ({"value": b"v", "key": "k"}, "key='k' (str) is not bytes or None"),
        ({"value": b"v", "headers": [("a", b"1")]}, "headers=[('a', b'1')] (list) is not a mapping"),
        ({"value": b"v", "headers": {"a": "1"}}, "header 'a' is str '1'"),
        ({"value": b"v", "partition": "0"}, "partition='0' (str) is not a whole number"),
        ({"value": b"v", "partition": [0]}, "partition=[0] (list) is not a whole number"),
        ({"value": b"v", "partition": True}, "partition=True (bool) is not a whole number"),
        ({"value": b"v", "partition": -1}, "there is no partition -1 in 's'"),
        ({"value": b"v", "timestamp": 1.5}, "timestamp=1.5 (float) is no point in time"),
        ({"value": b"v", "timestamp": "now"}, "timestamp='now' (str) is no point in time"),
    ],
)
async def test_a_record(client: Client, given: dict[str, Any], said: str) -> None:
    async with client.producer("s") as producer:
        assert said in await refusal(partial(producer.send, **given))
        assert said in await refusal(partial(producer.send_nowait, **given))
        await producer.send(b"the next one is taken")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"values": None}, "values=None (NoneType) is not a list;"),
        ({"values": "abc"}, "values='abc' (str) is not a list;"),
        ({"values": b"abc"}, "values=b'abc' (bytes) is not a list;"),
        ({"values": {b"a"}}, "values={b'a'} (set) is not a list;"),
        ({"values": [b"a", "b"]}, "values[1]='b' (str) is not bytes or None"),
        ({"values": [b"a"], "keys": b"k"}, "keys=b'k' (bytes) is not a list;"),
        ({"values": [b"a"], "keys": [5]}, "keys[0]=5 (int) is not bytes or None"),
        ({"values": [b"a"], "partition": 1.0}, "partition=1.0 (float) is not a whole number"),
    ],
)
async def test_a_list_of_records(client: Client, given: dict[str, Any], said: str) -> None:
    async with client.producer("s") as producer:
        assert said in await refusal(partial(producer.send_many, **given))
