"""The secret of a standalone broker without a configured one: it makes one, and keeps it in its data folder.

Nobody else has to know it. Keys of producers and tickets of transactions follow from it (`wire.security.producer_keys`,
`wire.security.tickets`), and a producer goes on with them when the broker starts again: it may have sent a batch whose
answer was lost, and the log recognises that one by the producer's id alone.
"""

from __future__ import annotations

import logging
from pathlib import Path
from secrets import token_hex

from dataplane.log.storage.checkpoints import read_file, replace_file
from dataplane.log.storage.files import FileSystem
from wire.errors import TidelogError
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets, parse_secrets

FILE = "own-secret"

_log = logging.getLogger(__name__)


def keep_own_secret(secrets: ClusterSecrets, files: FileSystem, folder: Path) -> None:
    """Replaces `secrets` by the secret of the folder. Raises OSError."""
    secrets.replace(_kept(files, folder / FILE) or _made(files, folder / FILE))


def _kept(files: FileSystem, path: Path) -> tuple[ClusterSecret, ...] | None:
    text = read_file(files, path)
    if text is None:
        return None
    try:
        return parse_secrets(text, str(path))
    except TidelogError as error:
        _log.warning("%s; a new secret takes its place, and producers go on under new ids", error)
        return None


def _made(files: FileSystem, path: Path) -> tuple[ClusterSecret, ...]:
    text = f"{token_hex(32)}\n".encode()
    replace_file(files, path, text)
    return parse_secrets(text, str(path))
