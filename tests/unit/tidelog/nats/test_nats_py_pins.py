"""Assumptions of tidelog.nats about nats-py's insides and asyncio's streams, one sentence each.

When nats-py is upgraded and one of these fails, read the sentence, then `tidelog/nats/nats_py.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
from nats import errors
from nats.aio import client as nats_client
from nats.aio.client import Client, Srv
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.micro.service import EndpointInfo, EndpointStats, ServiceInfo, ServicePing

from tidelog.nats.nats_py import ListedSubscription


def source(function: Callable[..., Any]) -> str:
    """The code of a function, blanks and line breaks made one blank."""
    return " ".join(inspect.getsource(function).split())


def assert_in_order(text: str, *parts: str, because: str) -> None:
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"{because} (looked for {part!r})"
        at = found + len(part)


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("nats-py").startswith("2.16."), "nats_py.py was written against the insides of nats-py 2.16"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_pongs", list),
        ("_pongs_received", int),
        ("_pings_outstanding", int),
        ("_pending", list),
        ("_subs", dict),
        ("_sid", int),
        ("_server_info", dict),
        ("options", dict),
        ("_server_pool", list),
        ("_current_server", type(None)),
        ("_transport", type(None)),
        ("_flush_queue", type(None)),
    ],
)
def test_a_new_client_has_the_fields_that_we_use(name: str, kind: type) -> None:
    assert isinstance(getattr(Client(), name, "missing"), kind), f"a new Client has {name}, a {kind.__name__}"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_read_loop", ["self"]),
        ("_attempt_reconnect", ["self"]),
        ("_process_op_err", ["self", "e"]),
        ("_connect_to_server", ["self", "s"]),
        ("_process_info", ["self", "info", "initial_connection"]),
        ("_process_connect_init", ["self"]),
    ],
)
def test_the_coroutines_that_we_replace_or_call_have_this_shape(name: str, parameters: list[str]) -> None:
    method = getattr(Client, name)
    assert inspect.iscoroutinefunction(method), f"Client.{name} is a coroutine"
    assert list(inspect.signature(method).parameters) == parameters, f"Client.{name} takes {parameters}"


def test_reading_begins_in_read_loop_after_the_first_pong() -> None:
    assert_in_order(
        source(Client._process_connect_init),
        "self._connect_command()",
        "self._transport.write(PING_PROTO)",
        "self._status = Client.CONNECTED",
        "create_task(self._read_loop())",
        "self._pongs = []",
        "self._pings_outstanding = 0",
        because="connecting ends with CONNECT, PING, PONG, then starts self._read_loop() with no pings open",
    )
    assert "self._ps" not in source(Client._ping_interval), "the ping timer does not need nats-py's parser"


def test_a_loss_is_handled_by_process_op_err_which_reconnects_in_a_task() -> None:
    assert_in_order(
        source(Client._process_op_err),
        "if self.is_closed or self.is_reconnecting: return",
        "self._status = Client.RECONNECTING",
        "create_task(self._attempt_reconnect())",
        because="_process_op_err ignores a second loss and starts self._attempt_reconnect() as a task",
    )
    assert "await self._process_op_err(" in source(Client._ping_interval), "unanswered pings end in _process_op_err"


def test_a_reconnect_restores_subscriptions_before_it_tells() -> None:
    text = source(Client._attempt_reconnect)
    assert_in_order(
        text,
        "self._transport.close()",
        "await self._transport.wait_closed()",
        "await self._select_next_server()",
        "await self._process_connect_init()",
        "for sid, sub in self._subs.items():",
        "prot_command.sub_cmd(sub._subject, sub._queue, sid)",
        "self._transport.write(sub_cmd)",
        "await self.flush()",
        "await self._reconnected_cb()",
        because="a reconnect sends SUB for all of _subs, waits for a PONG, then calls reconnected_cb",
    )
    replay = text[text.index("for sid, sub in self._subs.items():") : text.index("for sid in subs_to_remove")]
    assert "await" not in replay, "the replay of _subs cannot be interrupted by a subscribe of ours"


async def test_a_listed_subscription_has_all_that_nats_py_reads() -> None:
    theirs, ours = Subscription(Client(), id=7, subject="a.b"), ListedSubscription("a.b", "")
    text = source(Client._attempt_reconnect) + source(Client._close)
    read = {*re.findall(r"\bsub\.(\w+)", text)}
    assert {"_subject", "_queue", "_max_msgs", "_wait_for_msgs_task"} <= read, "both walk through _subs as `sub`"
    for name in read:
        assert (getattr(ours, name) or None) == (getattr(theirs, name) or None), f"nats-py reads {name}"


async def test_no_server_is_dropped_from_the_pool_with_negative_attempts() -> None:
    tries = 0

    class Refused(Client):
        async def _connect_to_server(self, s: Srv) -> None:
            nonlocal tries
            tries += 1
            if tries < 100:
                raise ConnectionRefusedError

    client = Refused()
    client._setup_server_pool(["nats://a:1", "nats://b:2"])
    client._error_cb = quiet
    client.options.update(max_reconnect_attempts=-1, reconnect_time_wait=0)
    await client._select_next_server()
    assert tries == 100, "max_reconnect_attempts=-1 tries all servers for ever"
    assert len(client._server_pool) == 2, "max_reconnect_attempts=-1 keeps the pool whole"


async def test_the_first_connect_gives_up_after_each_server_was_tried() -> None:
    tried: list[str | None] = []

    class Refused(Client):
        async def _connect_to_server(self, s: Srv) -> None:
            tried.append(s.uri.hostname)
            raise ConnectionRefusedError

    client = Refused()
    with pytest.raises(errors.NoServersError):
        await client.connect(
            ["nats://a:1", "nats://b:2"], error_cb=quiet, max_reconnect_attempts=1, reconnect_time_wait=0
        )
    assert sorted(map(str, tried)) == ["a", "a", "b", "b"], (
        "max_reconnect_attempts=1 tries each server twice, then ends"
    )


def test_tls_and_connect_come_after_process_info_and_use_what_it_leaves() -> None:
    assert_in_order(
        source(Client._process_connect_init),
        'if "tls_hostname" in self.options:',
        'handshake_first = self.options["tls_handshake_first"]',
        "self._server_info = srv_info",
        "await self._process_info(srv_info, initial_connection=True)",
        'and self._server_info["tls_required"]',
        "if not handshake_first:",
        "self.ssl_context,",
        "connect_cmd = self._connect_command()",
        "self._transport.write(connect_cmd)",
        because="_process_info sees the very INFO that decides on TLS, before anything is sent",
    )
    before = source(Client._process_connect_init).split("await self._process_info")[0]
    assert "write" not in before, "nothing is sent before _process_info"
    assert isinstance(Client.ssl_context, property), "ssl_context is asked for at each handshake"


async def test_connect_holds_no_login_when_nats_py_knows_none() -> None:
    client = Client()
    client.options.update(verbose=False, pedantic=False, name=None, no_echo=False, user=None, password=None, token=None)
    client._current_server = Srv(client._parse_server_uri("nats://a:1"))
    client._auth_configured = True
    line = client._connect_command()
    assert line.startswith(nats_client.CONNECT_OP + b" {")
    assert line.endswith(b"}\r\n")
    fields = json.loads(line.removeprefix(nats_client.CONNECT_OP))
    assert not {"user", "pass", "auth_token", "jwt", "nkey", "sig"} & set(fields)


def test_servers_come_into_the_pool_at_the_start_and_by_process_info_alone() -> None:
    adding = {
        name
        for name, method in inspect.getmembers(Client, inspect.isfunction)
        if "_server_pool.append" in source(method) or "_server_pool =" in source(method)
    }
    assert adding == {"_setup_server_pool", "_select_next_server", "_process_info", "set_server_pool"}
    server = Srv(Client._parse_server_uri("nats://a"))
    assert (server.uri.hostname, server.uri.port) == ("a", 4222), "a URL without a port has 4222"
    assert (server.discovered, server.tls_name) == (False, None), "a Srv says whether it was told of, and its name"
    assert "hostname = self._current_server.tls_name" in source(Client._process_connect_init)


async def test_the_first_connect_ends_with_an_exception_of_another_kind() -> None:
    class Other(Exception):
        pass

    class Ending(Client):
        async def _connect_to_server(self, s: Srv) -> None:
            pass

        async def _process_connect_init(self) -> None:
            raise Other

    with pytest.raises(Other):
        await Ending().connect(["nats://a:1", "nats://b:2"], error_cb=quiet)


async def quiet(_: Exception) -> None:
    pass


def test_the_tcp_transport_writes_through_its_stream_writer() -> None:
    transport: Any = TcpTransport()  # type: ignore[no-untyped-call]
    assert (transport._io_reader, transport._io_writer) == (None, None), (
        "a TcpTransport keeps _io_reader and _io_writer"
    )
    assert not transport, "a TcpTransport without streams is false"
    transport.close()
    assert "self._io_writer.write(payload)" in source(TcpTransport.write), "write() is not buffered on the way"
    parameters = list(inspect.signature(TcpTransport.connect_tls).parameters)
    assert parameters == ["self", "uri", "ssl_context", "buffer_size", "connect_timeout"], "connect_tls takes these"
    parameters = list(inspect.signature(TcpTransport.connect).parameters)
    assert parameters == ["self", "uri", "buffer_size", "connect_timeout"], "connect takes these"
    assert nats_client.DEFAULT_BUFFER_SIZE == 32768, "the stream's limit, which a first INFO line must fit into"


async def test_pings_are_written_at_once_and_leave_pending_empty() -> None:
    assert_in_order(
        source(Client._send_ping),
        "self._pongs.append(future)",
        "self._transport.write(PING_PROTO)",
        because="a PING is written directly, and its future is the next of _pongs",
    )
    assert "self._pending.append" not in source(Client._send_ping), "nothing but commands goes into _pending"


async def test_a_stream_reader_has_the_fields_that_we_take_over() -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    reader.feed_data(b"left over")
    fields: Any = reader
    assert fields._buffer == b"left over", "StreamReader._buffer holds what was not read"
    assert fields._paused is False, "StreamReader._paused says whether reading is paused"
    for name in ("pause_writing", "resume_writing", "connection_lost"):
        assert callable(getattr(protocol, name)), f"the stream's protocol object has {name}"
    protocol.connection_lost(None)
    assert reader.at_eof() is False, "what was received before the loss can still be read"
    reader._buffer.clear()  # type: ignore[attr-defined]
    assert reader.at_eof(), "the stream's protocol object ends the reader at a loss"


def test_service_descriptions_have_the_form_that_nats_micro_reads() -> None:
    info = ServiceInfo("name", "id", "1.0.0", "text", [EndpointInfo("e", "s", "")]).to_dict()
    assert info["type"] == "io.nats.micro.v1.info_response", "ServiceInfo names its type"
    assert set(info["endpoints"][0]) == {"name", "subject", "queue_group", "metadata"}, "EndpointInfo has these fields"
    assert ServicePing("id", "name", "1.0.0").to_dict()["id"] == "id", "ServicePing takes id, name, version"
    stats = EndpointStats("e", "s", "", 1, 2, 3, 4)
    assert (stats.num_requests, stats.num_errors, stats.processing_time, stats.average_processing_time) == (1, 2, 3, 4)
