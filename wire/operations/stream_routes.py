"""Routes of streams as any broker tells them, and as the controller pushes them to clients.

    <ns>.metadata.topology.<stream>   a client asks; one of the brokers answers, from the state that it has applied;
                                  the request names that stream alone
    <ns>.metadata.topology        the same of any streams, for logins that may see all of them
    <ns>.metadata.push.<stream>   the controller publishes `StreamRoutes` in JSON, with the header `Tidelog-Cluster`,
                                  whenever the stream's `routing_generation` has moved

Both are open to clients, which have no tags (docs/security.md): what they say is a hint. A broker that knows better
refuses a request that was led astray, and a client asks again then.

A push is about a stream that exists. Nothing is pushed when a stream is deleted: a request to one of its partitions
finds no listener, or is refused, and the client asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wire.errors import Code
from wire.operations.api_operations import Topology
from wire.operations.operation import Operation

MAX_STREAMS_ASKED: Final = 1000
"""Names in one request."""
MAX_PAGE: Final = 1000
"""Streams of one answer."""
MAX_TOPOLOGY_REQUEST_BYTES: Final = 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRequest:
    streams: list[str] = field(default_factory=list)
    """Names; empty: all streams but Tidelog's own."""
    after: str = ""
    """Streams whose names are greater than this one: `next` of the page before."""
    limit: int = 100
    """Streams of one answer, at most MAX_PAGE; it has fewer where NATS carries no more in a message."""


TOPOLOGY = Operation(
    name="topology",
    request=TopologyRequest,
    answer=Topology,
    help="leaders, layouts and partitions of streams, from any broker",
    writes=False,
    gives_once=True,
    refusals=(Code.UNAVAILABLE,),
)
"""It is asked on `Subjects.topology(…)`, not on a subject of the API."""
