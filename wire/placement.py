"""The policies by which the replicas of a stream's partitions are placed, as they are given and kept in its settings.

standard                     any brokers, as even as can be, no two in one zone while there are enough zones
pinned:b1,b2,b3              these brokers hold every partition, and their number is the replication factor
colocation_strict:STREAM     partition i is held by brokers that hold partition i of STREAM, and by no others
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from wire.echo import echo
from wire.errors import TidelogError
from wire.names import check_name


class Strategy(Enum):
    STANDARD = "standard"
    PINNED = "pinned"
    COLOCATION_STRICT = "colocation_strict"


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    strategy: Strategy
    brokers: tuple[str, ...] = ()
    """PINNED: the replicas of each partition, in the order given."""
    stream: str = ""
    """COLOCATION_STRICT: the stream whose replicas are followed."""

    @classmethod
    def parse(cls, text: str) -> PlacementPolicy:
        """Raises ValueError with the fault of the text and the remedy, to be read after `placement='TEXT' `."""
        name, colon, rest = text.partition(":")
        name = name.lower()
        if name == Strategy.STANDARD.value and not colon:
            return STANDARD
        if name == Strategy.PINNED.value and rest:
            brokers = tuple(broker_named(part) for part in rest.split(","))
            twice = next((broker for broker in brokers if brokers.count(broker) > 1), None)
            if twice is not None:
                raise ValueError(f"names {twice} twice; name each broker once")
            return cls(Strategy.PINNED, brokers=brokers)
        if name == Strategy.COLOCATION_STRICT.value and rest:
            return cls(Strategy.COLOCATION_STRICT, stream=stream_named(rest))
        raise ValueError(
            "is none of 'standard', 'pinned:BROKER,BROKER,…' and 'colocation_strict:STREAM'; give one of them"
        )

    def __str__(self) -> str:
        match self.strategy:
            case Strategy.STANDARD:
                return str(self.strategy.value)
            case Strategy.PINNED:
                return f"{self.strategy.value}:{','.join(self.brokers)}"
            case Strategy.COLOCATION_STRICT:
                return f"{self.strategy.value}:{self.stream}"


STANDARD: Final = PlacementPolicy(Strategy.STANDARD)


def broker_named(text: str) -> str:
    """Raises ValueError for text that is no id of a broker."""
    try:
        return check_name(text.strip(), "broker id")
    except TidelogError:
        raise ValueError(
            f"names {echo(text):.120}, which is no id of a broker; `tidelog cluster status` shows them"
        ) from None


def stream_named(text: str) -> str:
    """Raises ValueError for text that is no name of a stream."""
    try:
        return check_name(text.strip(), "stream name")
    except TidelogError:
        raise ValueError(
            f"names {echo(text):.120}, which is no name of a stream; `tidelog stream list` shows them"
        ) from None
