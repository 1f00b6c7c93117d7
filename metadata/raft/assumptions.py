"""Is the installed PySyncObj the one that this package relies on? Checked at every start.

The hardening replaces private methods and attributes of `pysyncobj.SyncObj` by name and relies on the behaviour of the
code around them (`metadata.raft.pysyncobj_internals`), so it holds for exactly one text of that code. `verify` compares
that text (well below a millisecond) and fails with a sentence; it also makes PySyncObj's unpickling raise, so that no
path to it can be reached, now or after a mistake here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NoReturn

import pysyncobj
import pysyncobj.pickle
from pysyncobj.version import VERSION

from metadata.raft.types import RaftConfigurationError

PINNED_VERSION = "0.3.17"

SOURCE_DIGESTS = {
    "syncobj.py": "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    "transport.py": "0c9d89f9c4781ec9772df8011d7975a1a4a1a5f541357e12eae85a813e92b50b",
    "node.py": "e4a3f027cd8291f558334bb9c977e952f6b6989e7e1fa1588d3005ef0b990e2c",
    "config.py": "fbbc7ff9f18e4d15a7fd563376e42f5bd192956879d4b810b056d5248b955698",
    "fast_queue.py": "8477fe5fdf36d9766df933310d3d66ee953d1afc195b1e6482b3a1498fc517bd",
    "monotonic.py": "d116df70e1f81bcab1fb89191fe2fe18486bc25187401d73fd6101cfe686e0a3",
}
"""SHA-256 of the modules whose behaviour is relied on."""


def _unpickling_denied(*_arguments: object) -> NoReturn:
    raise ValueError("PySyncObj tried to unpickle something; the metadata group never does.")


def verify(overridden: tuple[str, ...], called: tuple[str, ...]) -> None:
    """Raises RaftConfigurationError when the installed PySyncObj is not the one this package was written against, or
    its SyncObj lacks a method of these names."""
    _check_version(VERSION)
    folder = Path(pysyncobj.__file__).parent
    for name, digest in SOURCE_DIGESTS.items():
        _check_source(name, (folder / name).read_bytes(), digest)
    for name in (*overridden, *called):
        if not callable(getattr(pysyncobj.SyncObj, name, None)):
            raise RaftConfigurationError(
                f"pysyncobj.SyncObj has no method {name}, which metadata.raft overrides or calls."
            )
    pysyncobj.pickle.loads = _unpickling_denied
    pysyncobj.pickle.load = _unpickling_denied


def verify_instance(instance: object, attributes: tuple[str, ...]) -> None:
    """Raises RaftConfigurationError when SyncObj.__init__ did not set one of the attributes."""
    for name in attributes:
        if not hasattr(instance, name):
            raise RaftConfigurationError(f"pysyncobj.SyncObj sets no attribute {name}, which metadata.raft works with.")


def _check_version(installed: str) -> None:
    if installed != PINNED_VERSION:
        raise RaftConfigurationError(
            f"pysyncobj {installed} is installed, but metadata.raft overrides internals of {PINNED_VERSION}; "
            f"install pysyncobj=={PINNED_VERSION}."
        )


def _check_source(name: str, content: bytes, digest: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise RaftConfigurationError(
            f"pysyncobj/{name} is not the file of pysyncobj {PINNED_VERSION} that metadata.raft was written against "
            f"(SHA-256 {found[:12]}…, "
            f"expected {digest[:12]}…); install pysyncobj=={PINNED_VERSION} from its published package."
        )
