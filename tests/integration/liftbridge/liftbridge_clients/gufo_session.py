"""Run by the Python of an environment that has gufo-liftbridge: a publisher and a subscriber that go on while brokers
die.

    gufo_session.py STREAM COUNT HOST:PORT…

Prints a line of JSON for each step, and one for each record that is read; ends when COUNT different ones were.
"""

from __future__ import annotations

import asyncio
import json
import sys

from gufo.liftbridge.client import LiftbridgeClient
from gufo.liftbridge.error import ErrorAlreadyExists, ErrorNotFound, LiftbridgeError
from gufo.liftbridge.types import AckPolicy, StartPosition

ANSWERED_WITHIN = 10.0
"""Seconds: a publish that was sent to a broker which died is given up and sent again."""


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def create(brokers: list[str], stream: str) -> None:
    async with LiftbridgeClient(brokers) as client:
        await client.create_stream(stream, replication_factor=3, minisr=2, partitions=1, wait_for_stream=True)
        try:
            await client.create_stream(stream)
        except ErrorAlreadyExists:
            tell(step="create", again="exists")
        try:
            await client.delete_stream("nowhere")
        except ErrorNotFound:
            tell(step="delete", unknown="not found")
        metadata = await client.get_metadata(stream)
        partition = await client.get_partition_metadata(stream, 0)
        tell(
            step="metadata",
            brokers=sorted(broker.id for broker in metadata.brokers),
            partitions=[len(each.partitions) for each in metadata.metadata],
            high_watermark=partition.high_watermark,
        )


async def publish(brokers: list[str], stream: str, count: int) -> None:
    async with LiftbridgeClient(brokers, compression_method="zlib") as client:
        bulk = [client.get_publish_request(b"bulk%d" % number, stream=stream, partition=0) for number in range(10)]
        offsets = [each.ack.offset async for each in client.publish_bulk(bulk)]
        tell(step="bulk", offsets=offsets)
        for number in range(count):
            while True:
                try:
                    await asyncio.wait_for(
                        client.publish(
                            b"record%d" % number,
                            stream=stream,
                            partition=0,
                            ack_policy=AckPolicy.ALL,
                            auto_compress=True,
                        ),
                        ANSWERED_WITHIN,
                    )
                    break
                except (LiftbridgeError, TimeoutError) as error:
                    tell(step="publish", number=number, error=repr(error))
                    await asyncio.sleep(0.2)
            tell(step="published", number=number)


async def subscribe(brokers: list[str], stream: str, count: int) -> None:
    wanted = {b"bulk%d" % number for number in range(10)} | {b"record%d" % number for number in range(count)}
    async with LiftbridgeClient(brokers) as client:
        async for message in client.subscribe(stream, partition=0, start_position=StartPosition.EARLIEST):
            tell(step="read", offset=message.offset, value=message.value.decode())
            wanted.discard(message.value)
            if not wanted:
                return


async def resume(brokers: list[str], stream: str) -> None:
    """Two subscribers one after the other; the second goes on at the cursor of the first."""
    async with LiftbridgeClient(brokers) as client:
        await client.wait_for_cursors()
        for expected in (-1, 5):
            tell(step="cursor", stored=await client.get_cursor(stream, 0, "resumed"), expected=expected)
            values = []
            async for message in client.subscribe(
                stream, partition=0, start_position=StartPosition.RESUME, cursor_id="resumed"
            ):
                values.append(message.offset)
                await client.set_cursor(stream, partition=0, cursor_id="resumed", offset=message.offset)
                if len(values) == 5:
                    break
            tell(step="resumed", offsets=values)


async def main(stream: str, count: int, brokers: list[str]) -> None:
    await create(brokers, stream)
    await asyncio.gather(publish(brokers, stream, count), subscribe(brokers, stream, count))
    await resume(brokers, stream)
    tell(step="done")


asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
