"""`python -m tidelog.cli`."""

from __future__ import annotations

import sys

from tidelog.cli.server import server

if __name__ == "__main__":
    server(sys.argv[2:])
