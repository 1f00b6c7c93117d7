"""Requests to the controller: JSON over `<ns>.api.…`, repeated until one is answered or the time is up.

A change of controller takes part of a second. Meanwhile NATS says that nobody listens, or a broker says that it is
not the controller; both pass, so both are asked again. A request whose answer was lost may have taken effect; a
refusal that comes after such a request says so with the detail `repeated`, so that "exists already" can be told from
"you just made it".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from tidelog.client.errors import NoServer, typed
from wire.errors import Code, TidelogError
from wire.subjects import Subjects
from wire.transport import NO_RESPONDERS, Transport

REPEATED = "repeated"
_RETRY_EVERY = 0.05
_ATTEMPT_TIMEOUT = 2.0
"""Of one request, s: a controller that was killed with the request in hand never answers."""


class Api:
    """`server` is the NATS URL, for sentences; `timeout` the default time for a call with all its repetitions, s."""

    def __init__(self, transport: Transport, subjects: Subjects, *, server: str, timeout: float) -> None:
        self._transport = transport
        self._subjects = subjects
        self._server = server
        self._timeout = timeout

    async def call(self, name: str, body: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """The answer to `<ns>.api.<name>`. Raises typed errors; NoServer when nobody answers in time."""
        loop = asyncio.get_running_loop()
        limit = self._timeout if timeout is None else timeout
        deadline = loop.time() + limit
        payload = json.dumps(body).encode()
        repeated = False
        refusal: TidelogError | None = None
        nobody_listens = False
        while (left := deadline - loop.time()) > 0:
            try:
                message = await self._transport.request(
                    self._subjects.api(name), payload, timeout=min(left, _ATTEMPT_TIMEOUT)
                )
            except TimeoutError:
                if self._transport.is_connected:
                    repeated, nobody_listens = True, False
                await asyncio.sleep(min(_RETRY_EVERY, left))
                continue
            except TidelogError as too_large:
                raise typed(too_large) from None
            if message.status == NO_RESPONDERS:
                nobody_listens = True
                await asyncio.sleep(min(_RETRY_EVERY, left))
                continue
            nobody_listens = False
            error, answer = _parse(name, message.data, message.headers)
            if error is None:
                return answer
            if not error.retriable:
                raise typed(_with_repeated(error, repeated))
            refusal, repeated = error, repeated or error.code.unknown_outcome
            await asyncio.sleep(min(_RETRY_EVERY, left))
        raise self._nobody(name, limit, nobody_listens, refusal, repeated)

    def _nobody(
        self, name: str, limit: float, nobody_listens: bool, refusal: TidelogError | None, repeated: bool
    ) -> TidelogError:
        if not self._transport.is_connected:
            text = f"the connection to NATS at {self._server} is lost; check that nats-server runs there"
        elif nobody_listens:
            text = (
                f"no Tidelog broker answers at {self._server} (namespace {self._subjects.namespace!r}): NATS runs, but "
                "no broker is connected or has become controller; start `tidelog server` or `tidelog up`, or check the "
                "URL"
            )
        elif refusal is not None:
            text = f"{name} could not be carried out within {limit:g} s: {refusal.message}"
            if refusal.code is Code.NOT_ENOUGH_BROKERS:
                return typed(_with_repeated(TidelogError(refusal.code, text, refusal.details), repeated))
        else:
            text = f"the controller did not answer {name} at {self._server} within {limit:g} s; see the brokers' logs"
        return NoServer(Code.UNAVAILABLE, text, {REPEATED: "true"} if repeated else {})


def _parse(name: str, data: bytes, headers: Mapping[str, str] | None) -> tuple[TidelogError | None, dict[str, Any]]:
    try:
        answer = json.loads(data) if data else {}
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return TidelogError(Code.INTERNAL, f"the answer to {name} is no JSON object: {data[:80]!r}"), {}
    if isinstance(answer.get("error"), dict):
        return TidelogError.from_json(answer["error"]), {}
    return TidelogError.from_headers(headers), answer


def _with_repeated(error: TidelogError, repeated: bool) -> TidelogError:
    return TidelogError(error.code, error.message, {**error.details, REPEATED: "true"}) if repeated else error
