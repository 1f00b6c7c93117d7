"""Families of transactional ids: the prepared transactions of a family are committed together, once for each number.

- One record decides. `FamilyRecord` names the members of the last commit; it stands in front of the members' own
  records in the log. A coordinator that finds it, and one of its members open at that epoch, takes that member for
  committing: a commit is complete or has not happened, wherever its records end.
- So the record keeps its members until each of them has a record of its own that says so, and no other commit of the
  family is decided before. `settle` of the shard carries out nothing behind a commit, and nothing at all while members
  are without their records, of a commit or of one that a new coordinator has found that way.
- The members get their records, and their participants are notified, in turns (`go_on`); so are those aborted that a
  commit passes over, or that an end of the family aborts. Committed transactions count as committing at once; those to
  abort stay open until their turn.
- The sequence only grows. A commit with the last one is answered as the first time if it has the same members, and
  otherwise its transactions are aborted: somebody has committed others in their place.
- So is a commit with a smaller one: it may be sent again because its answer was lost, and meanwhile others have
  committed. The record keeps the numbers and digests of some commits before the last one, and the members' own
  transactions tell as long as no newer producer has begun. Where neither does, the refusal says that it is not known.
- The digest says which transactions were committed, and the number does not: a producer's epoch is one transaction,
  which is committed once. So what comes again under another number is not told as not committed. Under a larger one it
  is refused as committed: an answer that it is done would mean that this number is the last one now.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from tidelog.server.coordinators.known_streams import StreamsView
from tidelog.server.coordinators.record_times import Times
from tidelog.server.coordinators.transactions import transaction_refusals
from tidelog.server.coordinators.transactions.decisions import Decisions, Records
from tidelog.server.coordinators.transactions.transaction_metadata import Ending, Idle, Open, Outcome, Transaction
from wire.errors import Code, InvariantViolation, TidelogError
from wire.internal_records.transaction_records import (
    MAX_MEMBERS,
    MAX_METADATA,
    MAX_SEQUENCE,
    TILDE,
    FamilyKey,
    check_family,
    child_id,
    family_of,
)
from wire.names import check_name
from wire.protobuf.transactions_pb2 import EarlierCommit, EndFamilyRequest, FamilyMember, FamilyRecord
from wire.security.tickets import LIFETIME_S

KEPT_S: Final = 30 * 24 * 3600
"""Seconds for which the last commit of a family is kept: a program that does not know whether it has committed may be
stopped for so long."""
KEPT_WHEN_FULL_S: Final = 7 * 24 * 3600
"""Seconds for which the last commit is kept where there is no room for new families."""
KEPT_ONCE_S: Final = 2 * LIFETIME_S
"""Seconds for which a family is kept that commits once: longer than any ticket of its transactions is valid."""
MAX_TOLD: Final = 100_000
"""Partitions and groups that one commit ends transactions in: the coordinator carries out nothing else meanwhile."""
MAX_FAMILIES: Final = 20_000
EARLIER_KEPT: Final = 8
"""Commits before the last one that the record of a family keeps: whoever repeats one of them is told how it ended."""
_DIGEST_BYTES: Final = 16


class Member(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int

    def names(self, transaction: Transaction) -> bool:
        """Returns whether `transaction` is the one of the producer's present epoch."""
        return (transaction.producer_id, transaction.epoch) == (self.producer_id, self.producer_epoch)

    def to_record(self) -> FamilyMember:
        child = self.transactional_id.partition(TILDE)[2]
        return FamilyMember(child=child, producer_id=self.producer_id, producer_epoch=self.producer_epoch)

    @classmethod
    def of_record(cls, family: str, record: FamilyMember) -> Member:
        return cls(child_id(family, record.child), record.producer_id, record.producer_epoch)


class FamilyEnd(NamedTuple):
    """A checked request to end transactions of a family."""

    family: str
    members: tuple[Member, ...]
    sequence: int
    others: bool
    once: bool
    metadata: str

    @classmethod
    def of_request(cls, request: EndFamilyRequest) -> Self:
        """Returns the end that `request` asks for, checked. Raises TidelogError."""
        family = check_family(request.family)
        if len(request.members) > MAX_MEMBERS:
            raise TidelogError(
                Code.BAD_REQUEST, f"{len(request.members)} transactions; {MAX_MEMBERS} at most end together"
            )
        for each in request.members:
            check_name(each.child, "the name of a child")
        if len({each.child for each in request.members}) < len(request.members):
            raise TidelogError(Code.BAD_REQUEST, f"a child of {family!r} is named twice; name each of them once")
        if request.sequence > MAX_SEQUENCE:
            raise TidelogError(Code.BAD_REQUEST, f"sequence {request.sequence} is above {MAX_SEQUENCE}")
        if len(request.metadata) > MAX_METADATA:
            raise TidelogError(
                Code.BAD_REQUEST, f"{len(request.metadata)} characters of metadata; {MAX_METADATA} are taken at most"
            )
        members = tuple(Member.of_record(family, each) for each in request.members)
        return cls(family, members, request.sequence, request.others, request.once, request.metadata)


class Earlier(NamedTuple):
    """A commit of a family before the last one."""

    sequence: int
    digest: bytes
    """The digest of the members."""


@dataclass(slots=True)
class Family:
    """The last commit of a family, and some before it."""

    sequence: int
    digest: bytes
    """The digest of the members."""
    changed_at: int
    """A date of `Times`."""
    members: tuple[Member, ...]
    """Members of the commit; empty once each of them has a record of its own."""
    once: bool
    """The family commits nothing else."""
    metadata: str
    """Text of the committing program about its commit."""
    earlier: tuple[Earlier, ...] = ()
    """The commits just before, EARLIER_KEPT at most, oldest first."""
    ending: set[str] = field(default_factory=set)
    """Members that a request waits for: not all of their participants have confirmed. Not in the record."""

    def to_record(self) -> FamilyRecord:
        return FamilyRecord(
            sequence=self.sequence,
            digest=self.digest,
            changed_at=self.changed_at,
            members=[member.to_record() for member in self.members],
            once=self.once,
            metadata=self.metadata,
            earlier=[EarlierCommit(sequence=each.sequence, digest=each.digest) for each in self.earlier],
        )

    @classmethod
    def of_record(cls, name: str, record: FamilyRecord) -> Family:
        members = tuple(Member.of_record(name, each) for each in record.members)
        earlier = tuple(Earlier(each.sequence, each.digest) for each in record.earlier)
        return cls(record.sequence, record.digest, record.changed_at, members, record.once, record.metadata, earlier)

    def kept(self) -> tuple[Earlier, ...]:
        """Returns the commits that are known, oldest first: none between two of them is missing."""
        return (*self.earlier, Earlier(self.sequence, self.digest))


class Families:
    def __init__(self, decisions: Decisions, partition: int) -> None:
        self.by_name: dict[str, Family] = {}
        self._decisions = decisions
        self._partition = partition
        self._long: dict[str, float] = {}
        """Families whose record has members: since when each of these has one of its own, in monotonic seconds;
        infinity: not all of them have."""
        self._implied: deque[str] = deque()
        """Ids whose transaction is committed by the record of their family alone."""
        self._to_abort: deque[tuple[Member, Outcome]] = deque()
        """Members to abort in turns, if they are still open then."""

    # ---- a new coordinator -----------------------------------------------------------------------------------------

    def replay(self, name: str, record: FamilyRecord | None) -> None:
        if record is None:
            self.by_name.pop(name, None)
        else:
            self.by_name[name] = Family.of_record(name, record)

    def begin(self) -> None:
        """Starts the families: all records were read."""
        for name, family in self.by_name.items():
            if family.members:
                self._long[name] = float("inf")
            for member in family.members:
                transaction = self._decisions.transactions.get(member.transactional_id)
                if transaction is not None and member.names(transaction) and not isinstance(transaction.state, Ending):
                    self._decisions.imply(transaction, since=0.0)
                    self._implied.append(member.transactional_id)

    def resume(self, now: float) -> None:
        """The coordinator begins to decide."""
        self._note_written(now)

    # ---- turns -----------------------------------------------------------------------------------------------------

    def is_unfinished(self) -> bool:
        """Returns whether other decisions must wait until `go_on` has finished."""
        return bool(self._implied or self._to_abort)

    @property
    def unwritten(self) -> Collection[str]:
        """Ids whose transaction is committed by the record of their family alone."""
        return self._implied

    def go_on(self, most: int, view: StreamsView, now: float, times: Times, records: Records) -> None:
        """Writes the own records of transactions that only a family's record decides, and aborts those to abort. Ends
        when `most` participants, or one transaction with more, were notified."""
        while self.is_unfinished() and most > 0:
            if self._implied:
                transaction = self._decisions.transactions[self._implied.popleft()]
                most -= 1 + len(transaction.participants)
                self._decisions.decide_implied(transaction, view, now, times, records)
                continue
            member, outcome = self._to_abort.popleft()
            found = self._decisions.transactions.get(member.transactional_id)
            if found is not None and member.names(found) and isinstance(found.state, Open):
                most -= 1 + len(found.participants)
                self._decisions.decide(found, outcome, view, now, times, records)
        self._note_written(now)

    def _note_written(self, now: float) -> None:
        if not self._implied:
            for name in [name for name, since in self._long.items() if since == float("inf")]:
                self._long[name] = now

    # ---- the end of prepared transactions --------------------------------------------------------------------------

    def commits_anew(self, end: FamilyEnd) -> bool:
        """Returns whether `end` is no repetition of a commit."""
        family = self.by_name.get(end.family)
        return family is None or end.sequence > family.sequence

    # R79: The prepared transactions of a family are committed together, once for each sequence number: the record of
    # the family decides, and the records of its members follow it. A commit that is sent again finds what the first
    # one has done, and attempts that it has passed over are aborted.
    # Hazard: A part of the prepared transactions is committed, or a sequence twice.
    def commit(self, end: FamilyEnd, now: float, times: Times, records: Records) -> bool:
        """Commits the members. False: others were committed in their place. Raises TidelogError: none is committed.
        `go_on` does the rest, in all three cases."""
        family, digest = self.by_name.get(end.family), _digest(end.members)
        if family is not None and end.sequence <= family.sequence:
            was_committed = self._was_committed(end, digest, family)
            if was_committed:
                return True
            self._abort(end.members, Outcome.ABORTED)
            if end.sequence < family.sequence:
                if was_committed is False and (committed := self._committed_one(end.members)) is not None:
                    raise transaction_refusals.committed_before(committed.transactional_id)
                raise transaction_refusals.stale_sequence(
                    end.family, end.sequence, family.sequence, is_known=was_committed is not None
                )
            if was_committed is None:
                raise transaction_refusals.taken_sequence(end.family, end.sequence)
            return False
        for member in end.members:
            if (why := self._not_open(member)) is not None:
                self._abort(end.members, Outcome.ABORTED)
                raise self._not_open_refusal(end, digest, family, member, why)
        told = sum(len(self._decisions.transactions[each.transactional_id].participants) for each in end.members)
        if told > MAX_TOLD:
            self._abort(end.members, Outcome.ABORTED)
            raise transaction_refusals.too_many_told(end.family, told, MAX_TOLD)
        if family is None:
            self._make_room(times, records)
        earlier = () if family is None else family.kept()[-EARLIER_KEPT:]
        self.by_name[end.family] = Family(
            end.sequence, digest, times.date, end.members, end.once, end.metadata, earlier
        )
        records[FamilyKey(end.family)] = self.by_name[end.family].to_record()
        self._long.pop(end.family, None)
        if end.members:
            self._long[end.family] = float("inf")
        for member in end.members:
            transaction = self._decisions.transactions[member.transactional_id]
            self._decisions.imply(transaction, since=now)
            self._implied.append(member.transactional_id)
        if end.others:
            self._abort(self._others(end), Outcome.NONE)
        return True

    # Keeps R81.
    def abort(self, end: FamilyEnd) -> bool:
        """Aborts the transactions of `end`. Returns whether none of the members was committed before; False: that is
        not known any more. Raises TidelogError where one is committed; the others are aborted."""
        self._abort(end.members, Outcome.ABORTED)
        if end.others:
            self._abort(self._others(end), Outcome.NONE)
        family = self.by_name.get(end.family)
        if end.members and family is not None and _digest(end.members) in {each.digest for each in family.kept()}:
            raise transaction_refusals.is_committed(end.members[0].transactional_id)
        commits = [self._commits(member) for member in end.members]
        if True in commits:
            raise transaction_refusals.is_committed(end.members[commits.index(True)].transactional_id)
        return None not in commits

    def is_last(self, end: FamilyEnd) -> bool:
        """Returns whether `end` is the last commit of its family."""
        family = self.by_name[end.family]
        return (family.sequence, family.digest) == (end.sequence, _digest(end.members))

    def wait(self, end: FamilyEnd) -> float | None:
        """Waits for the participants of these transactions, which are committed last. Returns since when they are being
        notified, in monotonic seconds; None: all have confirmed."""
        ending = self._ending(end.members)
        self.by_name[end.family].ending = {name for name, _ in ending}
        return ending[-1][1].since if ending else None

    def on_complete(self, transactional_id: str) -> str | None:
        """Returns the family whose request waits for nothing any more, if there is one."""
        name = family_of(transactional_id)
        family = self.by_name.get(name)
        if family is None or transactional_id not in family.ending:
            return None
        family.ending.discard(transactional_id)
        return None if family.ending else name

    def waits_for(self, name: str) -> list[str]:
        """Returns the participants that have not confirmed the last commit, as far as a request waits for them."""
        ending = sorted(self.by_name[name].ending)
        return [str(each) for child in ending for each in self._decisions.transactions[child].participants]

    def not_told(self, end: FamilyEnd) -> list[str]:
        """Returns the participants of these transactions that have not confirmed."""
        return [str(each) for _, state in self._ending(end.members) for each in state.left]

    # ---- retention -------------------------------------------------------------------------------------------------

    @property
    def is_unwritten(self) -> bool:
        """A record is longer than need be."""
        return bool(self._long)

    def catch_up(self, until: float, records: Records) -> None:
        """Shortens the records that were written at `until` or earlier: they need their members no more."""
        for name in [name for name, since in self._long.items() if since <= until]:
            del self._long[name]
            self.by_name[name].members = ()
            records[FamilyKey(name)] = self.by_name[name].to_record()

    def forget(self, times: Times, records: Records, kept_s: int = KEPT_S) -> None:
        """Forgets families that have not committed for `kept_s`; those that commit once go earlier, with their ids."""
        gone = set()
        for name, family in [*self.by_name.items()]:
            kept = min(kept_s, KEPT_ONCE_S) if family.once else kept_s
            family.changed_at = times.dated(family.changed_at)
            if not family.members and not family.ending and times.is_over(family.changed_at, kept):
                del self.by_name[name]
                records[FamilyKey(name)] = None
                if family.once:
                    gone.add(name)
        if gone:
            self._decisions.forget(KEPT_ONCE_S, times, records, chosen=lambda name: family_of(name) in gone)

    def _make_room(self, times: Times, records: Records) -> None:
        """Forgets families where there are too many. Raises TidelogError(LIMIT_REACHED)."""
        if len(self.by_name) >= MAX_FAMILIES:
            self.forget(times, records, KEPT_WHEN_FULL_S)
        if len(self.by_name) >= MAX_FAMILIES:
            raise transaction_refusals.too_many_families(self._partition, MAX_FAMILIES, KEPT_WHEN_FULL_S)

    # ----

    def _not_open(self, member: Member) -> str | None:
        """Returns why the member cannot be committed; None: it can."""
        transaction = self._decisions.transactions.get(member.transactional_id)
        if transaction is None or transaction.producer_id != member.producer_id:
            return "its coordinator does not know it any more"
        state, outcome = transaction.state, transaction.last
        if isinstance(state, Ending):
            outcome = state.outcome
        if transaction.epoch == member.producer_epoch:
            if isinstance(state, Open):
                return None
            if isinstance(state, Idle):
                return "nothing was written in it"
        elif transaction.epoch != member.producer_epoch + 1 or not isinstance(state, Idle):
            outcome = Outcome.NONE
        match outcome:
            case Outcome.NONE:
                return "a newer producer has begun under that id, or an operator has aborted it"
            case Outcome.TIMED_OUT:
                return f"it was open for longer than its timeout of {transaction.timeout_ms} ms"
            case Outcome.ABORTED:
                return "it was aborted"
            case Outcome.COMMITTED:
                return "it was committed before"

    # R81: A commit of a family that comes behind a later one, or finds its transactions not open, and an abort of
    # prepared transactions are answered by what is known of them: they were committed, they were not, or that is not
    # known any more. The digests that a family keeps prove what was committed, and its numbers prove nothing: a family
    # that was forgotten may have begun anew with smaller ones. Only a member that is known as not committed proves that
    # these were not.
    # Hazard: A program whose commit was carried out, and not answered, writes the same records again.
    def _was_committed(self, end: FamilyEnd, digest: bytes, family: Family | None) -> bool | None:
        """Returns whether the members of `end` were committed, not all of which are open if its sequence is above the
        last one; None: that is not known. Without members it is a number alone, which another commit may have."""
        kept = () if family is None else family.kept()
        if any(each.digest == digest and (end.members or each.sequence == end.sequence) for each in kept):
            return True
        return self._are_committed(end.members)

    # Keeps R81.
    def _not_open_refusal(
        self, end: FamilyEnd, digest: bytes, family: Family | None, member: Member, why: str
    ) -> TidelogError:
        """Returns the refusal of `end`, whose sequence is above the last one, because `member` cannot be committed;
        `why` says why. A family that is not known may have committed these, and is forgotten since."""
        was_committed = self._was_committed(end, digest, family)
        if was_committed is None:
            return transaction_refusals.unknown_commit(end.family, member.transactional_id, why)
        committed = self._committed_one(end.members)
        if was_committed or committed is not None:
            return transaction_refusals.committed_before((committed or member).transactional_id)
        return transaction_refusals.not_all_open(member.transactional_id, why)

    def _committed_one(self, members: Sequence[Member]) -> Member | None:
        """Returns a member that is known to be committed, perhaps with others than these."""
        return next((member for member in members if self._commits(member)), None)

    def _are_committed(self, members: Sequence[Member]) -> bool | None:
        """Returns whether these are committed. As they are committed together, one that is not proves it of all. None:
        that is not known, because newer producers have begun under their ids."""
        commits = [self._commits(member) for member in members]
        if False in commits or not commits:
            return False
        return None if None in commits else True

    def _commits(self, member: Member) -> bool | None:
        """Returns whether the member is committed, or decided to be; None: that is not known."""
        transaction = self._decisions.transactions.get(member.transactional_id)
        if transaction is None or transaction.producer_id != member.producer_id:
            return None
        if transaction.epoch == member.producer_epoch:
            return isinstance(transaction.state, Ending) and transaction.state.outcome.commits
        return transaction.last.commits if transaction.epoch == member.producer_epoch + 1 else None

    def _ending(self, members: Iterable[Member]) -> list[tuple[str, Ending]]:
        """Returns the members that not all participants have confirmed, with their states."""
        found = ((each, self._decisions.transactions.get(each.transactional_id)) for each in members)
        return [
            (each.transactional_id, transaction.state)
            for each, transaction in found
            if transaction is not None and each.names(transaction) and isinstance(transaction.state, Ending)
        ]

    def _others(self, end: FamilyEnd) -> list[Member]:
        """Returns the open transactions of the family that `end` does not name. One of a newer producer under the id of
        a member is another transaction."""
        prefix = child_id(end.family, "")
        found = (self._decisions.transactions[name] for name in self._decisions.active if name.startswith(prefix))
        is_open = (each for each in found if isinstance(each.state, Open))
        others = (Member(each.transactional_id, each.producer_id, each.epoch) for each in is_open)
        given = {*end.members}
        return [each for each in others if each not in given]

    def _abort(self, members: Iterable[Member], outcome: Outcome) -> None:
        """Aborts the members that are open, in turns."""
        self._to_abort.extend((member, outcome) for member in members)

    def validate(self) -> None:
        if {name for name, family in self.by_name.items() if family.members} != set(self._long):
            raise InvariantViolation(f"{len(self._long)} families are counted as long, and that is wrong")
        for name, family in self.by_name.items():
            for member in family.members:
                transaction = self._decisions.transactions.get(member.transactional_id)
                if transaction is None or not member.names(transaction):
                    continue
                if not isinstance(transaction.state, Ending) or not transaction.state.outcome.commits:
                    raise InvariantViolation(
                        f"{member.transactional_id} is {transaction.state_name}, and committed with its family"
                    )
            if family.ending - set(self._decisions.active):
                raise InvariantViolation(f"family {name} waits for transactions that have ended")


def _digest(members: Iterable[Member]) -> bytes:
    """Returns a digest that does not depend on the order of the members."""
    texts = sorted(f"{each.transactional_id} {each.producer_id} {each.producer_epoch}" for each in members)
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=_DIGEST_BYTES).digest()
