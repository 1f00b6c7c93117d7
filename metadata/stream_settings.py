"""A stream's settings: where they come from, which of them agree, and which of them a living stream can change.

A setting that the stream was not given has the cluster's default of the time when the stream was made (or the setting
was unset), and else the built-in one. The cluster's defaults are copied into the stream: a change of them changes no
stream that exists.

Nearly all settings can be changed while a stream lives: every replica takes them from the next view of its partitions,
and the partition epoch rises, so that nobody acts on half of a change. Two cannot:

- whether copies count once they are synced. What followers have reported, and what a restart must prove to stay in the
  ISR, was said under the old rule: a page cache that counted for commits would count as synced. (What else a durability
  level says can be changed: who must hold a record, and how many.)
- encryption. What was written before would stay as it is, and the setting would not be true.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields

from wire.errors import Code, TidelogError
from wire.types import OnUnderCapacity, StreamConfig


def with_defaults(given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """What a stream gets of the cluster's defaults. A durability level of its own that says how many replicas it needs
    goes before a default `min_isr`. Raises TidelogError(BAD_CONFIG)."""
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
    """The settings of a living stream after an operator's change. Raises TidelogError(BAD_CONFIG)."""
    kept = {**_without(config, changes, unset), **changes}
    wanted = with_defaults(kept, {key: value for key, value in defaults.items() if key in unset})
    before, after = StreamConfig.from_strings(config), StreamConfig.from_strings(wanted)
    if before.is_durable != after.is_durable:
        was, asked = ("synced", "accepted") if before.is_durable else ("held in page caches", "durable")
        raise TidelogError(
            Code.BAD_CONFIG,
            f"durability={before.durability} cannot become {after.durability} while the stream lives: its replicas"
            f" count copies that are {was}; ask for durability={asked} at each publish, or create another stream",
        )
    if before.encryption != after.encryption:
        raise TidelogError(
            Code.BAD_CONFIG,
            f"encryption={str(before.encryption).lower()} cannot be changed while the stream lives: what is on the"
            " disks would stay as it is; create another stream",
        )
    check(after, replication_factor)
    return wanted


def altered_defaults(
    defaults: Mapping[str, str], *, changes: Mapping[str, str], unset: Collection[str]
) -> dict[str, str]:
    """The cluster's defaults after an operator's change. Raises TidelogError(BAD_CONFIG)."""
    wanted = {**_without(defaults, changes, unset), **changes}
    StreamConfig.from_strings(wanted)
    return dict(sorted(wanted.items()))


def _without(config: Mapping[str, str], changes: Mapping[str, str], unset: Collection[str]) -> dict[str, str]:
    known = {f.name for f in fields(StreamConfig)}
    for key in unset:
        if key not in known:
            raise TidelogError(
                Code.BAD_CONFIG, f"unknown stream setting {key!r} to unset; known: {', '.join(sorted(known))}"
            )
        if key in changes:
            raise TidelogError(Code.BAD_CONFIG, f"{key} is to be {changes[key]!r} and to be unset; say one of them")
    return {key: value for key, value in config.items() if key not in unset}


def check(config: StreamConfig, replication_factor: int) -> None:
    """Settings that are right each for itself and do not go together. `config` as given, min ISR not filled in. Raises
    TidelogError(BAD_CONFIG)."""
    floor = config.durability.in_sync_floor(replication_factor)
    limits = config.retention_max_age_ms or config.retention_max_bytes or config.retention_max_messages
    wrong: str | None = None
    if config.min_isr > replication_factor:
        wrong = f"min_isr={config.min_isr} is above the replication factor {replication_factor}; lower it"
    elif floor > replication_factor:
        wrong = (
            f"durability={config.durability} needs {floor} replicas and the replication factor is"
            f" {replication_factor}; ask for {replication_factor} at most"
        )
    elif 0 < config.min_isr < floor:
        wrong = (
            f"min_isr={config.min_isr} is below the {floor} in-sync replicas of durability={config.durability};"
            " raise it, or leave it out"
        )
    elif config.on_under_capacity is OnUnderCapacity.EVICT_OLDEST and config.compact:
        wrong = (
            "on_under_capacity=evict_oldest would take the newest records of quiet keys from a stream with"
            " compact=true; use withdraw"
        )
    elif config.on_under_capacity is OnUnderCapacity.EVICT_OLDEST and not limits:
        wrong = (
            "on_under_capacity=evict_oldest has nothing that it may evict: set retention_max_age_ms,"
            " retention_max_bytes or retention_max_messages, or use withdraw"
        )
    if wrong is not None:
        raise TidelogError(Code.BAD_CONFIG, wrong)
