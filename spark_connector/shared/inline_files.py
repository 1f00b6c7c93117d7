"""Certificates, keys and credentials as text, where the client wants files.

A job that is started from elsewhere has no files on the machines that it runs on. The text is held in a file without a
name (memfd), which this process and its forks alone can open, by a path of `/proc/self/fd`, and which goes with them:
nothing is left on a disk. Such a path can be opened again and again, as the client does when it connects anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from wire.errors import Code, TidelogError

FILE_OPTIONS = ("nkey", "creds", "ca", "cert", "key")
"""Options of the login that may hold the text of their file."""
_SEED = re.compile(r"SU[A-Z2-7]{56}")

_paths: dict[str, str] = {}
"""Paths by text. A process has few logins, so none is closed."""


def with_paths(login: Mapping[str, str]) -> dict[str, str]:
    """Returns the login with paths in place of texts. Raises TidelogError(BAD_CONFIG) where the system has no memfd."""
    return {name: _path(name, text) if is_inline(name, text) else text for name, text in login.items()}


def is_inline(name: str, text: str) -> bool:
    """Returns whether the value is the content of its file: PEM, a .creds file, or the seed of an NKey."""
    return name in FILE_OPTIONS and (
        "-----BEGIN " in text or (name == "nkey" and _SEED.fullmatch(text.strip()) is not None)
    )


def _path(name: str, text: str) -> str:
    path = _paths.get(text)
    if path is None:
        if not hasattr(os, "memfd_create"):
            raise TidelogError(
                Code.BAD_CONFIG, f"nats.{name} holds text, which needs Linux: give the path of a file instead"
            )
        descriptor = os.memfd_create(f"tidelog-{name}")
        os.fchmod(descriptor, 0o600)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(text.encode())
        path = _paths[text] = f"/proc/self/fd/{descriptor}"
    return path
