"""Proofs by the key of a producer (`wire.security.producer_keys`) that its batches come from the producer to which the
id was given, with the body that it has sent.

    proof        by the key, over "batch" LF, the partition with its incarnations, LF, and the batch's 96 bytes of
                 header as they are sent. The header has the CRC of the body, the sequence and the epoch.
    body_proof   16 bytes: Poly1305 of the body, with a key of its own for each proof: BLAKE2b-256, keyed with the key
                 of the producer, over "body" LF and the proof

Anybody can find another body with the same CRC, so the body has a proof of its own. It takes some microseconds for up
to 64 KiB, and is checked once the other one holds: a forged batch costs no more than its header does. A key of Poly1305
is for one body. So is a proof of a header, for a batch that is sent again has the same bytes.

A batch that an attacker has seen on its way is refused in every other partition, and in its own it is a repetition.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.poly1305 import Poly1305

from wire.batch import HEADER_SIZE
from wire.security.cluster_secrets import FINGERPRINT_BYTES
from wire.security.producer_keys import ProducerKeys, prove, unproven

if TYPE_CHECKING:
    from wire.protobuf.tidelog_pb2 import AppendRequest
    from wire.types import Buffer

_POLY1305_KEY_BYTES: Final = 32


def add_batch_proof(request: AppendRequest, key: bytes, target: str, batch: Sequence[Buffer]) -> None:
    """`key`: of the producer, from `ProducerKeys.key_of`. `target`: `wire.security.tickets.partition_target`. `batch`:
    the header, and the parts of the body."""
    request.proof = prove(key, _covered(target, batch[0]))
    request.body_proof = _tag(key[FINGERPRINT_BYTES:], request.proof, batch[1:])


# R76: A producer id is used by whoever was given it. With the id a key is given out, and an AppendRequest whose batch
# has an id carries the proof by that key of header and body. The leader checks both before it looks at anything that
# it knows of the id, and refuses others as UNPROVEN_PRODUCER, in a sentence that says nothing of the id. Requests
# about transactions are proven in the same way.
# Hazard: A producer's records are taken for repetitions of a stranger's and are in no log; a partition that takes no
# producer's records any more.
# Not covered: Whoever reads the answer in which a key is given out has it.
def check_batch_proof(
    keys: ProducerKeys, request: AppendRequest, producer_id: int, target: str, batch: memoryview
) -> None:
    """`batch`: with its header. Raises TidelogError(UNPROVEN_PRODUCER), which reveals nothing about the producer."""
    key = keys.check(request.proof, producer_id, _covered(target, batch[:HEADER_SIZE]))
    if not request.body_proof:
        raise unproven(producer_id, "shows no proof of the batch's body")
    if not hmac.compare_digest(request.body_proof, _tag(key, request.proof, [batch[HEADER_SIZE:]])):
        raise unproven(producer_id, "shows the proof of another body")


def _covered(target: str, header: Buffer) -> bytes:
    return b"".join((b"batch\n", target.encode(), b"\n", header))


def _tag(key: bytes, proof: bytes, body: Sequence[Buffer]) -> bytes:
    tag = Poly1305(blake2b(b"body\n" + proof, digest_size=_POLY1305_KEY_BYTES, key=key).digest())
    for part in body:
        tag.update(part)
    return tag.finalize()
