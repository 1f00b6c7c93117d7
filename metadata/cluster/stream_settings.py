"""A stream's settings: their sources, and how they are changed while the stream is in use. The settings themselves are
declared in `wire.stream_config`.

A setting that the stream was not given has the cluster's default of the time when the stream was made (or the setting
was unset), and else the built-in one. The cluster's defaults are copied into the stream: a change of them changes no
stream that exists.

Nearly all settings can be changed while a stream is in use: every replica takes them from the next view of its
partitions, and the partition epoch rises, so that no replica acts on half of a change. Two cannot (`Setting.fixed`):

- whether copies count once they are synced. Followers have reported under the old rule, and a restart proves its
  place in the ISR under it: a page cache that counted for commits would count as synced. (The rest of a durability
  level can be changed: which replicas must hold a record, and how many.)
- encryption. Batches that were written before would stay as they are, and the setting would not be true.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from wire.cluster_config import CLUSTER_SETTINGS, ClusterConfig, split
from wire.errors import Code, TidelogError
from wire.stream_config import StreamConfig, setting_named


def with_defaults(given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Adds the cluster's defaults to the settings of a stream. A durability level of its own that fixes the number of
    replicas goes before a default `min_isr`. Raises TidelogError(BAD_CONFIG)."""
    merged = {**defaults, **given}
    if "min_isr" not in given and "durability" in given and StreamConfig.from_strings(given).durability.has_floor:
        merged.pop("min_isr", None)
    return dict(sorted(merged.items()))


def altered(
    config: Mapping[str, str],
    *,
    changes: Mapping[str, str],
    unset: Collection[str],
    defaults: Mapping[str, str],
    replication_factor: int,
) -> dict[str, str]:
    """Returns a stream's settings after an operator's change. Raises TidelogError(BAD_CONFIG)."""
    kept = {**_without(config, changes, unset), **changes}
    wanted = with_defaults(kept, {key: value for key, value in defaults.items() if key in unset})
    before, after = StreamConfig.from_strings(config), StreamConfig.from_strings(wanted)
    before.check_change(after)
    after.check(replication_factor)
    return wanted


def altered_defaults(
    defaults: Mapping[str, str], *, changes: Mapping[str, str], unset: Collection[str]
) -> dict[str, str]:
    """Returns the settings of the cluster and its defaults of new streams after an operator's change. Raises
    TidelogError(BAD_CONFIG)."""
    wanted = {**_without(defaults, changes, unset), **changes}
    ClusterConfig.from_strings(wanted)
    StreamConfig.from_strings(split(wanted)[1])
    return dict(sorted(wanted.items()))


def _without(config: Mapping[str, str], changes: Mapping[str, str], unset: Collection[str]) -> dict[str, str]:
    for key in unset:
        if key not in CLUSTER_SETTINGS:
            setting_named(key)
        if key in changes:
            raise TidelogError(Code.BAD_CONFIG, f"{key} is to be {changes[key]!r} and to be unset; say one of them")
    return {key: value for key, value in config.items() if key not in unset}
