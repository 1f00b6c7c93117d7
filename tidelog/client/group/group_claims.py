"""Which partitions a member has had without a break, and of which it has records whose offsets are not committed.

A transaction with results of a partition's records must have its offset, too. So a partition that goes after records of
it were handed out, and before their offset was sent as a part of a transaction, is remembered: until the program goes
back to what is committed, a transaction gets no offsets. The same partition may have come back meanwhile, and another
member may have processed its records. Where offsets are committed without a transaction, a partition that goes with
records that were handed out and not committed is told by the next commit of all that was handed out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeAlias

from tidelog.client.base.exceptions import NotAssigned
from tidelog.client.group.group_commits import Mark
from tidelog.client.group.group_reading import GroupReading
from tidelog.client.group.subscription import Name
from wire.errors import Code
from wire.internal_records.group_records import StreamPartition


class Held(Protocol):
    """A partition from its assignment until it goes. One that goes and comes back is another one."""

    is_leaving: bool
    """It is being given up."""


Claim: TypeAlias = Mapping[StreamPartition, Held]
"""What a member has at some moment."""


class GroupClaims:
    """`held`: what the member has, as it changes."""

    def __init__(self, held: Claim, reading: GroupReading) -> None:
        self._held = held
        self._reading = reading
        self._settled: dict[StreamPartition, int] = {}
        """Up to here, offsets were sent as a part of a transaction; where none were, since reading began."""
        self._gone: set[StreamPartition] = set()
        """With records that were handed out, and whose offset was not sent."""
        self._uncommitted: set[StreamPartition] = set()
        """Gone with records that were handed out and not committed, which nobody was told."""

    def now(self) -> Claim:
        """What the member has at present."""
        return dict(self._held)

    def is_kept(self, of: StreamPartition, claim: Claim) -> bool:
        """It is in `claim`, is still that one, and is read on."""
        held = self._held.get(of)
        return held is not None and held is claim.get(of) and not held.is_leaving and self._reading.is_read(of)

    def check(self, partitions: Collection[Name] | None) -> None:
        """Raises NotAssigned where one of `partitions` (None: any) has gone with records whose offset was not sent."""
        gone = {of for of in self._gone if partitions is None or (of.stream, of.partition) in partitions}
        if gone:
            raise _taken_away(gone)

    def settle(self, marks: Mapping[StreamPartition, Mark], claim: Claim) -> None:
        """The group's coordinator has these offsets, which were taken in `claim`. Raises NotAssigned where a partition
        has gone since: another member may have been ahead of them."""
        gone = {of for of in marks if self._held.get(of) is not claim.get(of)}
        if gone:
            raise _taken_away(gone)
        self._settled |= {of: mark.offset for of, mark in marks.items()}

    def sought(self, of: StreamPartition) -> None:
        """It is read from elsewhere now."""
        self._settled[of] = self._reading.positions[of]

    def went_back(self) -> None:
        """The program has nothing in hand any more."""
        self._gone.clear()

    def goes(self, of: StreamPartition, committed: int | None) -> None:
        """It is about to be dropped. `committed`: up to where the group has committed it, as far as is known."""
        began, position = self._reading.beginnings.get(of), self._reading.position(of)
        settled = self._settled.pop(of, began)
        if position is None or began is None:
            return
        if settled is not None and position > settled:
            self._gone.add(of)
        first, end = self._reading.gap(of) or (position, position)
        handed_out = first if end == position else position  # what lies in a gap is no record
        if handed_out > (began if committed is None else committed):
            self._uncommitted.add(of)

    def check_committed(self) -> None:
        """Raises NotAssigned, once, where partitions have gone with records that were not committed."""
        gone, self._uncommitted = self._uncommitted, set()
        if gone:
            listed = ", ".join(map(str, sorted(gone)))
            raise NotAssigned(
                Code.NOT_ASSIGNED,
                f"{listed} went to others before what was handed out was committed, so that it is read again; what this"
                " member has is committed. Commit in on_revoked, or give a longer max_poll_interval",
            )


def _taken_away(partitions: Iterable[StreamPartition]) -> NotAssigned:
    listed = ", ".join(map(str, sorted(partitions)))
    return NotAssigned(
        Code.NOT_ASSIGNED,
        f"{listed} was taken away after records of it were handed out, and before their offsets were sent: another"
        " member may process them; abort the transaction, and call seek_to_committed()",
    )
