"""The keys of one broker while it runs: master keys, which may be exchanged, and data keys unwrapped so far.

Thread-safe: the event loop, readers and housekeeping share one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from dataplane.encryption.master_keys import KEY_BYTES, MasterKeys
from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from dataplane.encryption.master_keys import MasterKey

WRAPPED_BYTES: Final = KEY_BYTES + 8
"""RFC 3394 adds 8 bytes, by which it knows a key that it did not wrap. It needs no nonce, so keys are never used up."""
DATA_KEYS_KEPT: Final = 1024
"""Unwrapped data keys in memory; unwrapping one again costs microseconds."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """A new one, to encrypt with."""

    master: MasterKey
    wrapped: bytes
    cipher: AESGCM = field(repr=False)


class Keyring:
    def __init__(
        self,
        keys: MasterKeys | None = None,
        *,
        owner: str = "this broker",
    ) -> None:
        """`owner` is the holder of the keys, as error messages name it."""
        self._keys = keys or MasterKeys()
        self._owner = owner
        self._lock = threading.Lock()
        self._unwrapped: OrderedDict[tuple[str, bytes], AESGCM] = OrderedDict()
        """By id of the master key and wrapped key; the one used last at the end."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the master keys; the first wraps."""
        return self._keys.ids

    @property
    def wrapping(self) -> MasterKey | None:
        """The master key that new data keys are wrapped with."""
        return self._keys.wrapping

    def replace(self, keys: MasterKeys) -> None:
        """Use these from now on, and no others: data keys that a removed key has unwrapped are forgotten."""
        with self._lock:
            self._keys = keys
            self._unwrapped.clear()

    def new_data_key(self) -> DataKey:
        """Raises TidelogError(NO_KEY)."""
        master = self.wrapping
        if master is None:
            raise self.lacks_a_key("encrypts nothing")
        secret = os.urandom(KEY_BYTES)
        return DataKey(master, aes_key_wrap(master.secret, secret), AESGCM(secret))

    def unwrap(self, key_id: str, wrapped: bytes) -> AESGCM:
        """Raises TidelogError(NO_KEY) that names the master key: it is not here, or another one has its id."""
        entry = (key_id, wrapped)
        with self._lock:
            known = self._unwrapped.get(entry)
            if known is not None:
                self._unwrapped.move_to_end(entry)
                return known
            keys = self._keys
        master = keys.find(key_id)
        if master is None:
            raise TidelogError(
                Code.NO_KEY,
                f"{self._owner} does not have the master key {key_id!r}, with which this was encrypted (it has "
                f"{', '.join(map(repr, keys.ids)) or 'none'}); give it that key",
            )
        try:
            cipher = AESGCM(aes_key_unwrap(master.secret, wrapped))
        except (InvalidUnwrap, ValueError):
            raise TidelogError(
                Code.NO_KEY,
                f"the master key {key_id!r} of {self._owner} is not the one of that id with which this was encrypted; "
                "give it that key",
            ) from None
        with self._lock:
            if self._keys is keys:
                self._unwrapped[entry] = cipher
                while len(self._unwrapped) > DATA_KEYS_KEPT:
                    self._unwrapped.popitem(last=False)
        return cipher

    def lacks_a_key(self, consequence: str) -> TidelogError:
        """The refusal where there is no master key at all."""
        return TidelogError(
            Code.NO_KEY,
            f"{self._owner} has no master key and {consequence}; give it one with --master-key-file, "
            "master_key_file or TIDELOG_MASTER_KEY",
        )
