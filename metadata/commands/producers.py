"""Commands about producers."""

from __future__ import annotations

from metadata.commands.ledger import Ledger
from metadata.model import Outcome
from wire.errors import Code
from wire.protobuf import metadata_pb2 as pb

MAX_PRODUCER_IDS = 100_000
"""Most producer ids that one command hands out."""


def allocate_producer_ids(ledger: Ledger, command: pb.AllocateProducerIds) -> Outcome:
    """`value`: the first of `count` ids that no other producer has."""
    if not 1 <= command.count <= MAX_PRODUCER_IDS:
        return ledger.refuse(
            Code.BAD_REQUEST, f"{command.count} producer ids at once are outside 1 to {MAX_PRODUCER_IDS}"
        )
    first = ledger.contents.next_producer_id
    ledger.contents.next_producer_id += command.count
    return ledger.changed(value=first)
