"""How many files this process may have open."""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)

MOST = 1 << 20
"""Where there is no limit at all."""
FEW = 1024


def raise_limit() -> int:
    """As many as the system lets this process have: the soft limit goes up to the hard one. The limit there is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:  # a kernel's own maximum
            _log.info("this process may open %d files, and no more: %s", soft, error)
    allowed = MOST if soft == resource.RLIM_INFINITY else soft
    if allowed < FEW:
        _log.warning(
            "this process may open %d files only; with many partitions publishes will be refused for a while now and"
            " then: raise the limit (ulimit -n)", allowed,
        )  # fmt: skip
    return allowed
