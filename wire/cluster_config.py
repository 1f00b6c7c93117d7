"""The settings of the cluster, declared once, beside the defaults of new streams (`wire.stream_config`).

Both are changed by `tidelog cluster alter --config KEY=VALUE`, and kept together in the cluster state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from wire.durability import DEFAULT_REPLICAS, MAX_REPLICAS
from wire.errors import Code, TidelogError
from wire.stream_config import Bytes, Flag, Fraction, Milliseconds, Setting, StreamConfig, WholeNumber, setting_field


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The settings of the cluster, one field for each."""

    default_replication_factor: int = setting_field(
        DEFAULT_REPLICAS,
        WholeNumber(1, MAX_REPLICAS),
        "replicas of each partition of a new stream that names no replication factor; all brokers of a smaller cluster",
    )
    max_replication_factor: int = setting_field(
        MAX_REPLICAS, WholeNumber(1, MAX_REPLICAS), "a new stream has no more replicas of each partition"
    )
    auto_leader_rebalance: bool = setting_field(
        True,
        Flag(),
        "leaderships go back to the preferred leaders of their partitions once these are back for"
        " leader_rebalance_delay_ms",
    )
    leader_rebalance_delay_ms: int = setting_field(
        300_000,
        Milliseconds(0, 24 * 3_600_000),
        "a broker that is back leads again where it is the preferred leader after so long",
    )
    network_capacity: int = setting_field(
        125_000_000,
        Bytes(1_000_000, 10**12),
        "bytes a second that the network of a broker carries; the default is 1 Gbit/s",
    )
    replication_budget_fraction: float = setting_field(
        0.5,
        Fraction(0.01, 1.0),
        "the part of `network_capacity` that replicas outside the ISR may take together while they catch up with the"
        " leaders of one broker; members of the ISR are not counted",
    )

    @property
    def replication_budget(self) -> int:
        """Bytes a second for replicas outside the ISR, at each broker."""
        return round(self.network_capacity * self.replication_budget_fraction)

    @classmethod
    def from_strings(cls, values: Mapping[str, str]) -> ClusterConfig:
        """Reads those of the values that are settings of the cluster. Raises TidelogError(BAD_CONFIG)."""
        own, _ = split(values)
        config = cls(**{key: CLUSTER_SETTINGS[key].parse(text) for key, text in own.items()})
        if config.default_replication_factor > config.max_replication_factor:
            raise TidelogError(
                Code.BAD_CONFIG,
                f"default_replication_factor={config.default_replication_factor} is above"
                f" max_replication_factor={config.max_replication_factor}; lower the one, or raise the other",
            )
        return config


CLUSTER_SETTINGS: Mapping[str, Setting] = {
    entry.name: Setting(name=entry.name, default=entry.default, **entry.metadata) for entry in fields(ClusterConfig)
}
"""All settings of the cluster by name, in the order of the table."""


def split(values: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the settings of the cluster, and the defaults of new streams."""
    own = {key: text for key, text in values.items() if key in CLUSTER_SETTINGS}
    return own, {key: text for key, text in values.items() if key not in own}


def plain(values: Mapping[str, str]) -> dict[str, str]:
    """As `StreamConfig.plain`, of both kinds of settings. Raises TidelogError(BAD_CONFIG)."""
    own, defaults = split(values)
    spelled = {key: (setting := CLUSTER_SETTINGS[key]).kind.spell(setting.parse(text)) for key, text in own.items()}
    return {**StreamConfig.plain(defaults), **spelled}
