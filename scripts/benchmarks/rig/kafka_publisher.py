"""The publisher program for Kafka: librdkafka, by the wheel confluent-kafka, with the words of `publisher.py`.

    python -m scripts.benchmarks.rig.kafka_publisher < TASK     with TASK as there

Targets are (bootstrap servers, topic), one for each partition. A task without a rate sends as fast as the queue takes
records, `batched` without a callback for each; one with a rate sends each record by itself and measures the time until
its acknowledgement is called back.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import IO, Any

from confluent_kafka import KafkaError, Message, Producer

from scripts.benchmarks.rig.publisher import Lines, Sent, Task

FLUSH_TIMEOUT = 60.0
SERVE_EVERY = 1_000
"""So many records are produced between two polls for delivery reports."""
QUEUE = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 20}


def settings(task: Task) -> dict[str, Any]:
    """Returns librdkafka's configuration: a client's batches wait 5 ms for each other (its default), paced records do
    not."""
    return {
        "bootstrap.servers": task.targets[0][0],
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 0 if task.rate is not None else 5,
        **QUEUE,
    }


def produce(task: Task, producer: Producer, bodies: Sequence[bytes]) -> tuple[list[float], int]:
    """Sends all of it and waits for the acknowledgements. Returns (seconds of each acknowledged record that was paced
    or called back, refused records). Raises TimeoutError when some are not acknowledged."""
    topic, partitions = task.targets[0][1], len(task.targets)
    times: list[float] = []
    refused = 0

    def delivered(sent_at: float, error: KafkaError | None, _: Message) -> None:
        nonlocal refused
        if error is None:
            times.append(time.perf_counter() - sent_at)
        else:
            refused += 1

    began = time.perf_counter()
    for number in range(task.count):
        if task.rate is not None:
            while (wait := began + number / task.rate - time.perf_counter()) > 0:
                producer.poll(wait)
        elif number % SERVE_EVERY == 0:
            producer.poll(0)
        body, partition = bodies[number % len(bodies)], number % partitions
        while True:
            try:
                if task.batched:
                    producer.produce(topic, body, partition=partition)
                else:
                    callback = partial(delivered, time.perf_counter())
                    producer.produce(topic, body, partition=partition, on_delivery=callback)
            except BufferError:
                producer.poll(0.01)
            else:
                break
    if left := producer.flush(FLUSH_TIMEOUT):
        raise TimeoutError(f"{left} records were not acknowledged within {FLUSH_TIMEOUT:.0f} s")
    return times, refused


def main(words: IO[str]) -> None:
    task = Task(**json.loads(words.readline()))
    bodies = Lines(task).bodies
    producer = Producer(settings(task))
    producer.list_topics(task.targets[0][1], timeout=10)  # connected before it counts
    print("ready", flush=True)
    words.readline()
    cpu, began = time.process_time(), time.perf_counter()
    times, refused = produce(task, producer, bodies)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    percentiles = (
        statistics.quantiles([1e3 * each for each in times], n=100, method="inclusive") if task.rate is not None else ()
    )
    sent = Sent(
        count=task.count,
        bytes=task.count * task.size,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        answered=len(times) + refused,
        refused=refused,
        percentiles_ms=percentiles,
    )
    print(json.dumps(asdict(sent)), flush=True)


if __name__ == "__main__":
    main(sys.stdin)
