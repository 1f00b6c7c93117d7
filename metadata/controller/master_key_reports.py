"""Which brokers have master keys, as far as the controller knows: encrypted streams need one on every broker.

A broker reports the ids of its keys, never a key, as one of the labels of its probe answers. A broker that has not
answered this controller yet counts as having one. A broker that leads an encrypted partition without a key is relieved
of the leadership: `metadata.controller.leader_rebalancing`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from metadata.commands.cluster_state import ClusterState
from wire.errors import Code, TidelogError
from wire.stream_config import StreamConfig
from wire.types import BrokerId

_log = logging.getLogger(__name__)

_MOST_NAMED: Final = 5
MASTER_KEYS_LABEL: Final = "master_keys"
"""Label with the ids of a broker's keys, with commas, the wrapping key first; empty for none."""


def warn_of_missing_keys(broker: BrokerId, ids: Sequence[str], state: ClusterState) -> None:
    """Logs a warning at the start of a broker that lacks a key. `ids`: of its master keys."""
    encrypted = sorted(stream.name for stream in state.streams.values() if stream.settings.encryption)
    is_default = StreamConfig.from_strings(dict(state.defaults)).encryption
    if ids or not (encrypted or is_default):
        return
    named = ", ".join(encrypted[:_MOST_NAMED]) + (" and others" if len(encrypted) > _MOST_NAMED else "")
    _log.warning(
        "%s has no master key, and the cluster encrypts %s: it stores such records, and refuses to serve them and to"
        " take them (NO_KEY); give it the cluster's keys with --master-key-file, master_key_file or TIDELOG_MASTER_KEY,"
        " and start it again",
        broker,
        named or "new streams by default",
    )


def check_encryption(labels: Mapping[BrokerId, Mapping[str, str]]) -> None:
    """To be called before a stream becomes encrypted. `labels`: of live brokers. Raises TidelogError(BAD_CONFIG) that
    names those without a master key."""
    without = sorted(broker for broker, said in labels.items() if said.get(MASTER_KEYS_LABEL) == "")
    if without:
        raise TidelogError(
            Code.BAD_CONFIG,
            f"encryption=true needs a master key on every broker, and {', '.join(without)} "
            f"{'has' if len(without) == 1 else 'have'} none; give it with --master-key-file, master_key_file or "
            "TIDELOG_MASTER_KEY",
        )
