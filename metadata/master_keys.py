"""Which brokers have master keys, as far as the controller has heard: encrypted streams need one wherever they lie.

A broker tells the ids of its keys, never a key, as one of the labels of its probe answers. A broker that has not
answered this controller yet counts as having one. A broker that leads an encrypted partition without a key is relieved
of the leadership: `metadata.relief`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wire.errors import Code, TidelogError
from wire.types import BrokerId

MASTER_KEYS_LABEL: Final = "master_keys"
"""Its text: the ids with commas, the one that wraps first; empty for none."""


def check_encryption(labels: Mapping[BrokerId, Mapping[str, str]]) -> None:
    """Before a stream becomes encrypted. `labels` of live brokers. Raises TidelogError(BAD_CONFIG) that names those
    without a master key."""
    without = sorted(broker for broker, said in labels.items() if said.get(MASTER_KEYS_LABEL) == "")
    if without:
        raise TidelogError(
            Code.BAD_CONFIG,
            f"encryption=true needs a master key on every broker, and {', '.join(without)} "
            f"{'has' if len(without) == 1 else 'have'} none; give it with --master-key-file, master_key_file or "
            "TIDELOG_MASTER_KEY",
        )
