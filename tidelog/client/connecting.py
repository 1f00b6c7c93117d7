"""`connect`: finds the servers and the login, connects to NATS, and makes the client."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from ssl import SSLContext
from typing import Any, TypeVar

from tidelog.client.arguments import bad, check_number, check_optional_paths, check_optional_texts, shown
from tidelog.client.connection import Client, ClosableTransport
from tidelog.client.errors import NoServer, typed
from wire.errors import Code, TidelogError
from wire.subjects import DEFAULT_INBOX_PREFIX, DEFAULT_NAMESPACE, Subjects, check_inbox_prefix

_Connection = TypeVar("_Connection", bound=ClosableTransport)

_START_RETRY = 0.1
_MAX_TIME = 86_400


async def connect(
    servers: str | Sequence[str] | None = None,
    *,
    namespace: str | None = None,
    name: str | None = None,
    user: str | None = None,
    password: str | None = None,
    password_file: str | Path | None = None,
    token: str | None = None,
    token_file: str | Path | None = None,
    nkey: str | Path | None = None,
    creds: str | Path | None = None,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    tls: SSLContext | bool = False,
    tls_first: bool = False,
    tls_hostname: str | None = None,
    context: str | None = None,
    inbox_prefix: str | None = None,
    connect_timeout: float = 2.0,
    api_timeout: float = 5.0,
    start_wait: float = 0.0,
) -> Client:
    """Connect to NATS: a URL, several separated by commas, or a list; None: $TIDELOG_SERVER, or 127.0.0.1:4222. Times
    are in seconds.

    `connect_timeout` is for one attempt, `api_timeout` for a request to the controller with all its repetitions,
    `start_wait` for a server that does not listen yet because it is only starting.

    The login is one of `user` and `password`, `token`, `nkey` (file of a seed), `creds` (file); `ca`, `cert` and `key`
    are PEM files. `tls`: the server must offer TLS; or a context in place of those files. `tls_first`: TLS before its
    first line. `context`: one of `tidelog context` or of the `nats` CLI, by name. What is not given is taken from the
    environment (TIDELOG_NATS_USER, …), the file that $TIDELOG_NATS_LOGIN names, or a context; files are read again when
    a connection is made anew (see docs/security.md).

    `inbox_prefix`: answers come to subjects below it; None: $TIDELOG_INBOX_PREFIX, that of the context, or `_INBOX`.
    Give each user its own, `_INBOX.alice`, and permission for that one alone, so that nobody reads the answers of
    others.

    `namespace` is the cluster's; None: that of the context, or "tidelog". Raises NoServer, which names the URL, when no
    NATS server answers, or it refuses; BadConfig for a login that cannot be one; NotPermitted when NATS does not let it
    subscribe to its inboxes. Whether a Tidelog cluster is behind NATS shows with the first call.
    """
    # The one adapter between the client and NATS; imported when there is something to connect to.
    from tidelog.runtime.allocator import learn_from_a_large_buffer
    from tidelog.runtime.login_sources import LoginSources, shown_urls, urls
    from tidelog.runtime.nats import NatsConnection
    from tidelog.runtime.nats_errors import NatsNotListening, NatsRefused, NatsUnavailable
    from tidelog.runtime.private_files import warn_of_open
    from tidelog.runtime.threads import in_thread

    learn_from_a_large_buffer()
    given = {"user": user, "password": password, "token": token, "tls_hostname": tls_hostname}
    check_optional_texts(name=name, context=context, **given)
    files = {"password_file": password_file, "token_file": token_file, "nkey": nkey, "creds": creds}
    check_optional_paths(**(files := files | {"ca": ca, "cert": cert, "key": key}))
    if not isinstance(tls, (SSLContext, bool)):
        raise bad(f"tls={shown(tls)} is no ssl.SSLContext; give one, as ssl.create_default_context() makes it, or True")
    given_tls = {"tls_first": tls_first is True, "tls" if isinstance(tls, bool) else "tls_context": tls}
    if namespace is not None:
        _subjects(namespace)
    check_number("connect_timeout", connect_timeout, 0.001, _MAX_TIME)
    check_number("api_timeout", api_timeout, 0.001, _MAX_TIME)
    check_number("start_wait", start_wait, 0, _MAX_TIME)
    try:
        sources = LoginSources(
            environment=os.environ,
            server_variable="TIDELOG_SERVER",
            servers=None if servers is None else urls(servers, "servers"),
            options={**given, **files, **given_tls},
            context=context,
        )
        found = await in_thread(sources.find)
    except TidelogError as error:
        raise typed(error) from None
    inboxes = inbox_prefix or os.environ.get("TIDELOG_INBOX_PREFIX") or found.inbox_prefix or DEFAULT_INBOX_PREFIX
    subjects = _subjects(namespace or found.namespace or DEFAULT_NAMESPACE)
    _check_inbox_prefix(inboxes, subjects.namespace)
    await in_thread(lambda: warn_of_open(found.secret_files))
    label = name or f"tidelog-client@{socket.gethostname()}:{os.getpid()}"
    deadline = time.monotonic() + start_wait
    while True:
        try:
            transport = await _connected(
                NatsConnection.connect(
                    found.servers,
                    name=label,
                    login=sources.login,
                    inbox_prefix=inboxes,
                    connect_timeout=connect_timeout,
                )
            )
        except NatsUnavailable as error:
            if not isinstance(error, NatsNotListening) or time.monotonic() >= deadline:
                no_server = NoServer(Code.UNAVAILABLE, str(error))
                no_server.is_refusal = isinstance(error, NatsRefused)
                raise no_server from error
            await asyncio.sleep(_START_RETRY)
            continue
        try:
            transport.violations.check_answers_arrive()
        except TidelogError as error:
            await transport.close()
            raise typed(error) from None
        return Client(transport, subjects, server=shown_urls(found.servers), name=label, api_timeout=api_timeout)


async def _connected(connecting: Coroutine[Any, Any, _Connection]) -> _Connection:
    """Awaits it, and is cancelled when it is told to. nats-py waits with `asyncio.wait_for`, which in Python 3.11
    returns where it is cancelled in the moment in which it has what it waited for."""
    task = asyncio.create_task(connecting)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None:
            await task.result().close()
        raise
    return task.result()


def _subjects(namespace: str) -> Subjects:
    try:
        return Subjects(namespace)
    except TidelogError as error:
        raise typed(error) from None


def _check_inbox_prefix(prefix: str, namespace: str) -> None:
    try:
        check_inbox_prefix(prefix, namespace)
    except TidelogError as error:
        raise typed(error) from None
