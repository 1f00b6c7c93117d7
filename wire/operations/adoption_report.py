"""Adoption: which routing generation of each stream the clients have applied.

    client   --AdoptionReport, after each applied change and every REPORT_INTERVAL_S-->  its home broker
    broker   --the label ADOPTION_LABEL in its answers to probes: the minimum of its sessions-->  controller

The home broker is the one that answered the client's last question for the topology. It forgets a session SESSION_TTL_S
after its last report. The label has the streams alone that are being repartitioned, and those of them that a session
names.

Any client can report what it likes, under any id. Adoption decides when a repartition is finished and nothing else, and
a finish waits for it no longer than `repartition_adoption_timeout_s`: records are protected by the leaders, which
refuse batches of an old layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypedDict

from wire.operations.operation import Operation

ADOPTION_LABEL: Final = "adoption"
REPORT_INTERVAL_S: Final = 5.0
SESSION_TTL_S: Final = 15.0
MAX_CLIENT_ID: Final = 64
"""Characters."""
MAX_STREAMS: Final = 1000
"""Most streams of one session."""
MAX_REPORT_BYTES: Final = 128 << 10
MAX_LABELLED: Final = 1000
"""Streams in the label, the first by name; those beyond are as if nobody had reported on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionReport:
    """What one client has applied, as a whole: it replaces the client's last report."""

    client_id: str
    """Unique to the client, such as a random number in hex; at most MAX_CLIENT_ID characters."""
    streams: dict[str, int]
    """By name: the `routing_generation` that the client's cache and its producers go by; at most MAX_STREAMS."""


class AdoptionTaken(TypedDict):
    ttl_ms: int
    """The session is forgotten after so long."""


ADOPT = Operation(
    name="adopt",
    request=AdoptionReport,
    answer=AdoptionTaken,
    help="which routing generations a client has applied",
    writes=False,
    gives_once=True,
)
"""It is asked on `Subjects.adopt(home_broker)`, not on a subject of the API. BACKPRESSURE, with `limit`, when the
broker can take no more sessions: nothing depends on it, the client reports again in REPORT_INTERVAL_S."""


def encode_label(minimum: Mapping[str, int]) -> str:
    """`minimum`: by stream, the oldest generation that a session has applied. Such as `flights=20 orders=17`."""
    return " ".join(f"{stream}={generation}" for stream, generation in sorted(minimum.items())[:MAX_LABELLED])


def decode_label(label: str) -> dict[str, int]:
    """What `encode_label` was given. Anything else in it is left out."""
    found: dict[str, int] = {}
    for entry in label.split(" ")[:MAX_LABELLED]:
        stream, _, generation = entry.partition("=")
        if stream and generation.isascii() and generation.isdigit() and len(generation) < 20:
            found[stream] = int(generation)
    return found
