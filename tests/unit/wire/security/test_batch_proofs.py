"""Proofs of batches: they hold of the batch as its producer has sent it, and of no other."""

from __future__ import annotations

import pytest

from tests.bodies import with_the_same_crc
from wire.batch import HEADER_SIZE, BatchBuilder, EncodedBatch
from wire.errors import Code, TidelogError
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.security.batch_proofs import add_batch_proof, check_batch_proof
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets
from wire.security.producer_keys import ProducerKeys
from wire.types import LeaderEpoch, Offset

KEYS = ProducerKeys(ClusterSecrets([ClusterSecret(b"s" * 32)]), lambda: "c")
PRODUCER = 7
HERE = "partition s 1 0 1"


def sent(value: bytes = b"a value") -> bytes:
    builder = BatchBuilder()
    builder.add_record(value)
    batch = builder.build(1, producer_id=PRODUCER, producer_epoch=0, base_sequence=3)
    return b"".join(batch.stamp(Offset(0), LeaderEpoch(0))[0])


def proven(batch: bytes, key: bytes = KEYS.key_of(PRODUCER)) -> AppendRequest:
    request = AppendRequest()
    add_batch_proof(request, key, HERE, [batch[:HEADER_SIZE], batch[HEADER_SIZE:-2], batch[-2:]])
    return request


def refusal(request: AppendRequest, batch: bytes, producer: int = PRODUCER, target: str = HERE) -> str:
    with pytest.raises(TidelogError) as refused:
        check_batch_proof(KEYS, request, producer, target, memoryview(batch))
    assert (refused.value.code, refused.value.details) == (Code.UNPROVEN_PRODUCER, {})
    return refused.value.message


def test_a_proof_holds_of_the_batch_that_was_sent() -> None:
    check_batch_proof(KEYS, proven(sent()), PRODUCER, HERE, memoryview(sent()))


def test_another_body_with_the_same_crc_is_not_the_one_that_was_sent() -> None:
    other = with_the_same_crc(sent())
    assert EncodedBatch.from_bytes(other).header == EncodedBatch.from_bytes(sent()).header
    assert "the proof of another body" in refusal(proven(sent()), other)


@pytest.mark.parametrize("batch", [sent(b"a valuf"), sent(b"")], ids=["another value", "another length"])
def test_another_header(batch: bytes) -> None:
    assert "a proof that does not hold here" in refusal(proven(sent()), batch)


def test_another_partition_another_producer_and_another_key() -> None:
    assert refusal(proven(sent()), sent(), target="partition s 1 1 1")
    assert refusal(proven(sent()), sent(), producer=8)
    assert refusal(proven(sent(), KEYS.key_of(8)), sent())


def test_a_batch_without_a_proof_or_without_one_of_its_body_is_refused() -> None:
    request = proven(sent())
    request.ClearField("body_proof")
    assert "no proof of the batch's body" in refusal(request, sent())
    assert "no proof that the id is its own" in refusal(AppendRequest(), sent())
