"""A broker that neither makes nor checks tags while it is told so by a signal: for `scripts/bench tags` alone.

Its arguments are those of `tidelog server`. Trailers keep their length: what is left out is the cryptography and the
windows against replays.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from tidelog.cli import main
from tidelog.server.peers import peer_tags

WITH_TAGS = signal.SIGUSR1
WITHOUT_TAGS = signal.SIGUSR2


def _serve() -> None:
    tagged = {"trailer": peer_tags.Signer.trailer, "fault": peer_tags.Verifier.fault}

    def with_tags(*_: object) -> None:
        peer_tags.Signer.trailer = tagged["trailer"]  # type: ignore[method-assign, assignment]
        peer_tags.Verifier.fault = tagged["fault"]  # type: ignore[method-assign, assignment]

    def without_tags(*_: object) -> None:
        peer_tags.Signer.trailer = _no_trailer  # type: ignore[method-assign, assignment]
        peer_tags.Verifier.fault = _no_fault  # type: ignore[method-assign, assignment]

    signal.signal(WITH_TAGS, with_tags)
    signal.signal(WITHOUT_TAGS, without_tags)
    sys.argv = ["tidelog", "server", *sys.argv[1:]]
    main()


def _no_trailer(signer: peer_tags.Signer, *_: Any) -> bytes:
    """It names the sender, whom receivers look up first."""
    return signer._head + bytes(8 + peer_tags.TAG_BYTES) + peer_tags.VERSION


def _no_fault(*_: Any) -> None:
    return None


if __name__ == "__main__":
    _serve()
