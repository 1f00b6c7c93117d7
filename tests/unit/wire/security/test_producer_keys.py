"""Keys of producers: who has one can prove that an id is its own, and nobody else can."""

from __future__ import annotations

from wire.errors import Code, TidelogError
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets
from wire.security.producer_keys import ProducerKeys, prove

OLD, NEW = (ClusterSecret(letter * 32) for letter in (b"o", b"n"))
COVERED = b"what is proven"


def keys(*secrets: ClusterSecret, cluster: str = "c") -> ProducerKeys:
    return ProducerKeys(ClusterSecrets(secrets), lambda: cluster)


def holds(by: ProducerKeys, proof: bytes, producer: int = 7, covered: bytes = COVERED) -> bool:
    try:
        by.check(proof, producer, covered)
    except TidelogError as error:
        return (error.code, error.details) != (Code.UNPROVEN_PRODUCER, {})
    return True


def test_a_proof_holds_of_its_id_and_of_what_it_covers_alone() -> None:
    by = keys(OLD)
    proof = prove(by.key_of(7), COVERED)
    assert holds(by, proof)
    assert not holds(by, proof, producer=8)
    assert not holds(by, proof, covered=b"something else")
    assert not holds(by, prove(by.key_of(8), COVERED))
    assert not holds(keys(OLD, cluster="other"), proof)
    assert not holds(keys(NEW), proof)
    for other in (b"", proof[:-1], proof + b"x", bytes(20)):
        assert not holds(by, other)


def test_keys_last_while_a_secret_takes_the_place_of_another_one() -> None:
    secrets = ClusterSecrets([OLD])
    by = ProducerKeys(secrets, lambda: "c")
    proof = prove(by.key_of(7), COVERED)
    for step in ([OLD, NEW], [NEW, OLD], [NEW]):
        secrets.replace(step)
        assert holds(by, proof), "a batch may be sent again"
    assert not holds(keys(NEW), proof), "of a broker that has started since"
    assert holds(keys(NEW), prove(by.key_of(7), COVERED))
