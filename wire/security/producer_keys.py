"""Keys of producers, which prove that a batch, or a request about a transaction, comes from the owner of its id.

Producer ids are small numbers in ascending order, which anybody can guess. So the issuer of an id (the controller, or a
coordinator of transactions) gives its key with it, and every use of the id carries a proof by that key. The key is
derived from the id and a secret of the cluster: each broker can check a proof, and nothing is stored. An id that was
never given out has no key that anybody knows.

    key                                      proof
     0          4                             0          4
     +----------+----------------------+      +----------+---------------+
     | secret   | 32 bytes             |      | secret   | tag, 16 bytes |
     +----------+----------------------+      +----------+---------------+

    secret    fingerprint of the secret of the cluster from which the key is derived (`wire.security.cluster_secrets`)
    32 bytes  BLAKE2b-256, keyed with that secret, over the producer id and the cluster
    tag       BLAKE2b-128, keyed with the 32 bytes, over the proven data: a use, and a batch
              (`wire.security.batch_proofs`) or the values of a request (`wire.security.transaction_proofs`)

A key is void once its secret is, on a broker that has started since: the producer goes on under a new id.
"""

from __future__ import annotations

import hmac
import re
import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from wire.errors import Code, TidelogError
from wire.security.cluster_secrets import FINGERPRINT_BYTES, KEY_BYTES, ClusterSecret, ClusterSecrets

if TYPE_CHECKING:
    from wire.types import Buffer

_TAG_BYTES: Final = 16
_PROOF_BYTES: Final = FINGERPRINT_BYTES + _TAG_BYTES
_KEY_TEXT: Final = re.compile(f"[0-9a-f]{{{2 * (FINGERPRINT_BYTES + KEY_BYTES)}}}")
_ID: Final = struct.Struct(">q")


class ProducerKeys:
    """Makes keys, and checks proofs. `cluster_id()`: of the cluster."""

    def __init__(self, secrets: ClusterSecrets, cluster_id: Callable[[], str]) -> None:
        self._secrets = secrets
        self._cluster_id = cluster_id

    def key_of(self, producer_id: int) -> bytes:
        """Returns the key for the producer that gets that id."""
        secret = self._secrets.first
        return secret.fingerprint + self._of(secret, producer_id)

    # Keeps R76.
    def check(self, proof: bytes, producer_id: int, covered: Buffer) -> bytes:
        """Returns the KEY_BYTES by which the proof holds. Raises TidelogError(UNPROVEN_PRODUCER), which reveals nothing
        about the producer."""
        if len(proof) == _PROOF_BYTES:
            for secret in self._secrets.accepted_of_producers:
                if proof.startswith(secret.fingerprint):
                    key = self._of(secret, producer_id)
                    if hmac.compare_digest(proof[FINGERPRINT_BYTES:], _tag(key, covered)):
                        return key
        if not proof:
            raise unproven(producer_id, "shows no proof that the id is its own; make a new producer")
        raise unproven(
            producer_id,
            "shows a proof that does not hold here: it is of another producer, of other bytes, or of a secret that the"
            " brokers do not hold any more; make a new producer",
        )

    def _of(self, secret: ClusterSecret, producer_id: int) -> bytes:
        covered = _ID.pack(producer_id) + self._cluster_id().encode()
        return blake2b(covered, digest_size=KEY_BYTES, key=secret.producer_key).digest()


def is_key(text: object) -> bool:
    """In hex, as `producer.init` gives it."""
    return isinstance(text, str) and _KEY_TEXT.fullmatch(text) is not None


def prove(key: bytes, covered: Buffer) -> bytes:
    """The proof by a key that `ProducerKeys.key_of` has made."""
    return key[:FINGERPRINT_BYTES] + _tag(key[FINGERPRINT_BYTES:], covered)


def request_proof_of(use: str, values: Iterable[object]) -> bytes:
    """Returns the data that a proof of a request about a transaction covers. No name or number has a line break."""
    return "\n".join([use, *map(str, values)]).encode()


def unproven(producer_id: int, why: str) -> TidelogError:
    return TidelogError(Code.UNPROVEN_PRODUCER, f"a sender under producer id {producer_id} {why}")


def _tag(key: bytes, covered: Buffer) -> bytes:
    return blake2b(covered, digest_size=_TAG_BYTES, key=key).digest()
