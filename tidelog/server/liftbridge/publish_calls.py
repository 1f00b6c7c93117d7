"""Publish, PublishAsync, PublishToSubject.

Publishes go through a producer: a record that is sent again after a change of leader is written once. LEADER and ALL
are acknowledged when the record is in the leader's log, or committed; NONE is given to the producer and not awaited.

    PublishAsync:  read ── a task for each record ──> producer ──> responses, in the order of their outcomes ──> write
                    ^─── a place of MAX_IN_FLIGHT is free ───────────── written ──────────────────────────────┘

A client that does not read its responses is read no more once all places wait to be written.

Clients choose partitions by the number that they know. A record published to a partition that keys are not
spread over any more goes to the one whose leader takes its plain messages, too (R63), unless an offset is expected.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import DecodeError
from grpc import StatusCode

from tidelog.client.base.records import Receipt
from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.gateway_producers import Level, Place, Producers
from tidelog.server.liftbridge.grpc_statuses import Refused, async_error
from wire.errors import Code, CorruptData, TidelogError
from wire.layouts import takes_in_place
from wire.messaging.reply_subjects import ReplySubjects
from wire.messaging.transport import Message as NatsMessage
from wire.partition_messages.liftbridge_envelope import decode_ack, encode_ack, encode_publish
from wire.protobuf import liftbridge_pb2 as pb
from wire.protobuf.tidelog_pb2 import Ack, AckPolicy, Message
from wire.subjects import ingest_subject

MAX_IN_FLIGHT = 256
"""Publishes of one PublishAsync that are not answered."""
_LEVELS: dict[int, Level] = {AckPolicy.LEADER: "leader", AckPolicy.ALL: "all", AckPolicy.NONE: "leader"}
_MOVED = (Code.WRONG_INCARNATION, Code.PARTITION_RETIRED)
"""The record was not written, and may be written with the present layout."""
_T = TypeVar("_T")


class PublishCalls:
    """The publishing calls. `replies`: subjects where acknowledgements may be sent."""

    def __init__(self, gateway: Gateway, replies: ReplySubjects) -> None:
        self._gateway = gateway
        self._replies = replies
        self._producers = Producers(gateway.client)
        self._sessions: set[_Session] = set()

    async def close(self) -> None:
        """Ends when all taken records are acknowledged or have failed; no more are taken."""
        for session in self._sessions:
            session.stop()
        await self._producers.close()

    async def publish(self, request: pb.PublishRequest) -> pb.PublishResponse:
        if request.ackPolicy == AckPolicy.NONE:
            await self._producing(request, lambda place, number: self._give(place, request, number))
            return pb.PublishResponse(correlationId=request.correlationId)
        return pb.PublishResponse(ack=await self._acknowledged(request), correlationId=request.correlationId)

    async def publish_async(self, requests: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]) -> None:
        session = _Session(self._prepare, self._outcome)
        self._sessions.add(session)
        session.begin(requests)
        try:
            while (response := await session.next_response()) is not None:
                await write(response)
                session.on_written()
        finally:
            self._sessions.discard(session)
            await session.close()

    async def publish_to_subject(
        self, request: pb.PublishToSubjectRequest, time_remaining: float | None
    ) -> pb.PublishToSubjectResponse:
        """Publishes to a subject. Without a time it waits for no acknowledgement: nobody may listen on the subject."""
        _check_policy(request.ackPolicy)
        subject = self._gateway.subjects.check_subject(request.subject)
        message = Message(
            key=request.key or None,
            value=request.value,
            subject=subject,
            headers=request.headers,
            ackInbox=request.ackInbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
        )
        if request.ackPolicy == AckPolicy.NONE or time_remaining is None:
            self._send(subject, encode_publish(message))
            return pb.PublishToSubjectResponse()
        inbox = self._gateway.transport.new_inbox()
        message.ackInbox = inbox
        answered: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()

        def on_ack(answer: NatsMessage) -> None:
            if not answered.done():
                try:
                    answered.set_result(decode_ack(answer.data))
                except CorruptData as error:
                    answered.set_exception(TidelogError(Code.INTERNAL, f"the acknowledgement is damaged: {error}"))

        self._gateway.transport.on_inbox(inbox, on_ack)
        try:
            self._send(subject, encode_publish(message))
            async with asyncio.timeout(time_remaining):
                ack = await answered
        except TimeoutError:
            raise Refused(StatusCode.DEADLINE_EXCEEDED, f"no stream acknowledged the message to {subject!r}") from None
        finally:
            self._gateway.transport.on_inbox(inbox, None)
        ack.ackInbox = request.ackInbox
        self._tell_inbox(ack)
        return pb.PublishToSubjectResponse(ack=ack)

    async def _prepare(self, request: pb.PublishRequest) -> None:
        """Does all that may wait for a controller, before the record is given to a producer."""
        await self._producing(request, _nothing)

    async def _outcome(self, request: pb.PublishRequest) -> pb.PublishResponse | None:
        """Returns the response; None: the client wants none."""
        ack = await self._acknowledged(request)
        if request.ackPolicy == AckPolicy.NONE:
            return None
        return pb.PublishResponse(ack=ack, correlationId=request.correlationId)

    async def _acknowledged(self, request: pb.PublishRequest) -> Ack:
        received = time.time_ns()
        return await self._producing(request, lambda place, number: self._append(place, request, number, received))

    async def _producing(self, request: pb.PublishRequest, action: Callable[[Place, int], Awaitable[_T]]) -> _T:
        """Calls `action` with a producer for the stream, and the partition that takes the record; once more where the
        stream has been created anew meanwhile, or the partition has left before the record was written."""
        _check(request)
        level = _LEVELS[request.ackPolicy]
        for is_last in (False, True):
            try:
                async with self._producers.use(request.stream, level) as place:
                    return await action(place, await self._target(place, request))
            except TidelogError as error:
                if error.code not in _MOVED or is_last:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _target(self, place: Place, request: pb.PublishRequest) -> int:
        """Returns the partition that takes the record. Waits for a controller only where the producer, or this broker,
        may not know the partition yet."""
        name, number, count = request.stream, request.partition, place.producer.partition_count
        if 0 <= number < count:
            return number
        known = self._gateway.stream(name)
        if known is not None and known.incarnation == place.layout.incarnation and known.partition_count == count:
            target = takes_in_place(known.layouts, number)
        else:
            target = None
        if target is None:
            now = await self._gateway.client.metadata(name)  # updates the producer, too
            if now.incarnation != place.layout.incarnation:
                raise TidelogError(Code.WRONG_INCARNATION, f"stream {name!r} was deleted and created again")
            target, count = takes_in_place(now.layouts, number), place.producer.partition_count
        if target is None:
            raise Refused(StatusCode.NOT_FOUND, f"there is no partition {number} in stream {name!r}")
        if target >= count:
            raise TidelogError(Code.UNAVAILABLE, f"stream {name!r} is being repartitioned; try again")
        if target != number and request.expectedOffset > 0:
            raise TidelogError(
                Code.PARTITION_RETIRED,
                f"partition {number} of stream {name!r} takes no records since the stream has {count} partitions, and"
                " the expected offset means nothing in another one: nothing was written; publish to one below that",
            )
        return target

    async def _append(self, place: Place, request: pb.PublishRequest, target: int, received: int) -> Ack:
        receipt: Receipt = await place.producer.send(
            request.value,
            key=request.key or None,
            headers=dict(request.headers) or None,
            partition=target,
            expected_offset=request.expectedOffset if request.expectedOffset > 0 else None,
        )
        ack = Ack(
            stream=request.stream,
            partitionSubject=ingest_subject(place.layout.subject, target),
            msgSubject=ingest_subject(place.layout.subject, request.partition),
            offset=receipt.offset,
            ackInbox=request.ackInbox,
            correlationId=request.correlationId,
            ackPolicy=request.ackPolicy,
            receptionTimestamp=received,
            commitTimestamp=time.time_ns(),
            partition=target,
        )
        if request.ackPolicy != AckPolicy.NONE:
            self._tell_inbox(ack)
        return ack

    async def _give(self, place: Place, request: pb.PublishRequest, target: int) -> None:
        """Gives the record to the producer; refuses it at once if this broker knows that the partition takes none."""
        stream = self._gateway.stream(request.stream)
        partition = None if stream is None else stream.partitions.get(target)
        if partition is not None and partition.readonly:
            raise TidelogError(Code.READONLY, f"partition {target} of {request.stream!r} is read-only")
        future = place.producer.send_nowait(
            request.value,
            key=request.key or None,
            headers=dict(request.headers) or None,
            partition=target,
            expected_offset=request.expectedOffset if request.expectedOffset > 0 else None,
        )
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # asyncio reports unread ones

    def _tell_inbox(self, ack: Ack) -> None:
        """Sends the ack where a broker would send it for an envelope: not into streams, and not to brokers or NATS."""
        if ack.ackInbox and self._replies.is_clients(ack.ackInbox.encode()):
            self._send(ack.ackInbox, encode_ack(ack))

    def _send(self, subject: str, payload: bytes) -> None:
        transport = self._gateway.transport
        if len(payload) > transport.max_payload:
            raise TidelogError(
                Code.MESSAGE_TOO_LARGE,
                f"the message has {len(payload)} bytes, and NATS takes {transport.max_payload}; send less",
            )
        if not transport.publish(subject, [payload]):
            raise TidelogError(Code.UNAVAILABLE, "the connection to NATS is lost; try again")


class _Session:
    """One PublishAsync. `prepare` is awaited for one request after the other, in their order; `outcome` gives the
    record to a producer before it waits."""

    def __init__(
        self,
        prepare: Callable[[pb.PublishRequest], Awaitable[None]],
        outcome: Callable[[pb.PublishRequest], Awaitable[pb.PublishResponse | None]],
    ) -> None:
        self._prepare = prepare
        self._outcome = outcome
        self._places = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._responses: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._is_stopping = False

    def begin(self, requests: AsyncIterator[bytes]) -> None:
        self._reading = asyncio.create_task(self._read(requests))
        self._reading.add_done_callback(lambda _: self._changed.set())

    def stop(self) -> None:
        """Stops reading, because the broker stops; the call ends when all requests read are answered."""
        self._is_stopping = True
        if self._reading is not None:
            self._reading.cancel()
        self._changed.set()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        """Reads until the client has no more. Raises Refused for malformed requests."""
        async for data in requests:
            try:
                request = pb.PublishRequest.FromString(data)
            except DecodeError:
                raise Refused(
                    StatusCode.INVALID_ARGUMENT, f"a message of {len(data)} bytes is no PublishRequest"
                ) from None
            await self._places.acquire()
            try:
                await self._prepare(request)
            except (TidelogError, Refused) as error:
                self._respond(_failed(request, error))
                continue
            task = asyncio.create_task(self._one(request))
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

    async def next_response(self) -> bytes | None:
        """Returns the next response; None: no more come. Raises Refused where the client's messages end with one."""
        reading = self._reading
        assert reading is not None
        while not self._responses:
            if reading.done() and not self._tasks:
                if self._is_stopping:
                    raise Refused(StatusCode.UNAVAILABLE, "this broker stops; use another one")
                reading.result()
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._responses.popleft()

    def on_written(self) -> None:
        self._places.release()

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._reading] if self._reading is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, request: pb.PublishRequest) -> None:
        try:
            response = await self._outcome(request)
        except (TidelogError, Refused) as error:
            response = _failed(request, error)
        if response is None:
            self._places.release()
        else:
            self._respond(response)

    def _respond(self, response: pb.PublishResponse) -> None:
        self._responses.append(response.SerializeToString())
        self._changed.set()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()


async def _nothing(_place: Place, _target: int) -> None: ...


def _failed(request: pb.PublishRequest, error: TidelogError | Refused) -> pb.PublishResponse:
    """Returns a failure with an empty ack: clients from before `asyncError` read nothing else."""
    return pb.PublishResponse(correlationId=request.correlationId, asyncError=async_error(error), ack=Ack())


def _check(request: pb.PublishRequest) -> None:
    _check_policy(request.ackPolicy)
    if not request.stream:
        raise TidelogError(Code.BAD_REQUEST, "no stream is given; name the one to publish to")


def _check_policy(policy: int) -> None:
    if policy not in _LEVELS:
        raise TidelogError(Code.BAD_REQUEST, f"ackPolicy {policy} is none of LEADER (0), ALL (1) and NONE (2)")
