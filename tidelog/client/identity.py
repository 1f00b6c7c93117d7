"""What a client tells of itself with a request that changes something, for the brokers' audit trail."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from functools import cache
from pathlib import Path


@cache
def described_self() -> str:
    """USER@HOST PROGRAM, in printable ASCII: what is not becomes `?`."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name; which of the two depends on the version of Python
        user = str(os.getuid())
    program = Path(sys.argv[0] if sys.argv else "").name or "python"
    text = f"{user}@{socket.gethostname()} {program}"
    return "".join(character if " " <= character <= "~" else "?" for character in text)
