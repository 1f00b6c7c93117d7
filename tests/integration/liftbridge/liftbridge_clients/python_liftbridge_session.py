"""Run by the Python of an environment that has python-liftbridge: what its README shows, against a cluster.

    python_liftbridge_session.py HOST:PORT

Prints a line of JSON for each step.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from itertools import islice

from python_liftbridge import ErrNoSuchStream, ErrStreamExists, Lift, Message, Stream


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(address: str) -> None:
    client = Lift(ip_address=address, timeout=30)
    client.create_stream(Stream(subject="foo", name="foo-stream", max_replication=True))
    try:
        client.create_stream(Stream(subject="foo", name="foo-stream"))
    except ErrStreamExists:
        tell(step="create", again="exists")
    client.publish(Message(value="hello", stream="foo-stream"))
    client.publish(Message(value="acknowledged", stream="foo-stream", key="key").ack_policy_all())
    client.publish_to_subject(Message(value="by subject", subject="foo").ack_policy_leader())
    client.publish(Message(value="last", stream="foo-stream").ack_policy_all())

    def read(stream: Stream, count: int) -> list[list[object]]:
        # The first message is the server's word that the subscription stands; this client hands it out.
        messages = islice(client.subscribe(stream), 1, 1 + count)
        return [[message.offset, message.value.decode(), message.key.decode()] for message in messages]

    def stream() -> Stream:
        return Stream(subject="foo", name="foo-stream")

    tell(step="earliest", read=read(stream().start_at_earliest_received(), 4))
    tell(step="latest", read=read(stream().start_at_latest_received(), 1))
    tell(step="offset", read=read(stream().start_at_offset(2), 1))
    tell(step="time", read=read(stream().start_at_time_delta(timedelta(days=1)), 2))
    try:
        read(Stream(subject="no", name="nowhere"), 1)
    except ErrNoSuchStream:
        tell(step="unknown", refused="no such stream")
    metadata = client.fetch_metadata()
    tell(step="metadata", brokers=sorted(broker.id for broker in metadata.brokers))
    client.close()


main(sys.argv[1])
