"""Hostile requests for the port of Liftbridge's clients: every call, with fields at their ends, changed, cut and random
bytes. Calls that make, delete or alter streams name the stream `fuzzed` alone, or none that exists.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message import Message as ProtobufMessage
from grpc import aio

from wire.protobuf import liftbridge_pb2 as pb

SERVICE = "proto.API"
MOST_AT_ONCE = 32
CALL_S = 1.0
"""Seconds for a call; Subscribe ends by it."""
_STREAMS = ("fuzzed", "none", "", "x" * 300, "é", "fuzzed.1", "*", ">")
_NUMBERS = (0, 1, -1, 7, (1 << 31) - 1, -(1 << 31))


def _sample(rng: random.Random, stream: str) -> dict[str, ProtobufMessage]:
    """A request of each call."""
    number, name = rng.choice(_NUMBERS), rng.choice(_STREAMS)
    value = rng.randbytes(rng.randrange(50))
    group: dict[str, Any] = {"groupId": name, "consumerId": rng.choice(("c1", "c2", name))}
    return {
        "SetStreamReadonly": pb.SetStreamReadonlyRequest(name=stream, partitions=[number], readonly=rng.random() < 0.1),
        "PauseStream": pb.PauseStreamRequest(name=stream, partitions=[number], resumeAll=rng.random() < 0.5),
        "Subscribe": pb.SubscribeRequest(stream=name, partition=number, startOffset=number, stopOffset=number),
        "FetchMetadata": pb.FetchMetadataRequest(streams=[name] * rng.randrange(50)),
        "FetchPartitionMetadata": pb.FetchPartitionMetadataRequest(stream=name, partition=number),
        "Publish": pb.PublishRequest(stream=stream, partition=number, key=value, value=value, correlationId=name),
        "PublishAsync": pb.PublishRequest(stream=stream, partition=number, value=value),
        "SetCursor": pb.SetCursorRequest(stream=name, partition=number, cursorId=name, offset=number),
        "FetchCursor": pb.FetchCursorRequest(stream=name, partition=number, cursorId=name),
        "JoinConsumerGroup": pb.JoinConsumerGroupRequest(streams=[name], **group),
        "LeaveConsumerGroup": pb.LeaveConsumerGroupRequest(**group),
        "FetchConsumerGroupAssignments": pb.FetchConsumerGroupAssignmentsRequest(epoch=abs(number), **group),
        "ReportConsumerGroupCoordinator": pb.ReportConsumerGroupCoordinatorRequest(coordinator=name, **group),
    }


def _broken(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    match rng.randrange(5):
        case 0:
            return bytes(changed[: rng.randint(0, len(changed))])
        case 1:
            return rng.randbytes(rng.randrange(300))
        case 2 if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        case 3:
            at = rng.randint(0, len(changed))
            changed[at:at] = b"\xff" * 9 + b"\x01"
        case _:
            pass
    return bytes(changed)


class GrpcFuzz:
    """`addresses`: of the ports. `sent` counts the calls, `statuses` what became of them."""

    def __init__(self, addresses: list[str], seed: int) -> None:
        self._rng = random.Random(seed)
        self._channels = [aio.insecure_channel(address) for address in addresses]
        self.sent = 0
        self.statuses: Counter[str] = Counter()

    async def run(self) -> None:
        """Until it is cancelled; at once where there is no port."""
        if not self._channels:
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(MOST_AT_ONCE):
                group.create_task(self._call_again_and_again())

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def _call_again_and_again(self) -> None:
        rng = self._rng
        while True:
            calls = _sample(rng, "fuzzed")
            method = rng.choice([*calls, "NoSuchCall"])
            data = b"" if method == "NoSuchCall" else _broken(rng, calls[method].SerializeToString())
            self.sent += 1
            try:
                await self._call(rng.choice(self._channels), f"/{SERVICE}/{method}", data)
            except aio.AioRpcError as error:
                self.statuses[error.code().name] += 1
            else:
                self.statuses["OK"] += 1

    async def _call(self, channel: Any, path: str, data: bytes) -> None:
        if path.endswith("/Subscribe"):
            async for _ in channel.unary_stream(path)(data, timeout=CALL_S / 4):
                pass
        elif path.endswith("/PublishAsync"):

            async def requests() -> AsyncIterator[bytes]:
                yield data

            async for _ in channel.stream_stream(path)(requests(), timeout=CALL_S):
                pass
        else:
            await channel.unary_unary(path)(data, timeout=CALL_S)
