"""Sessions of clients: which routing generation of each stream they have applied (`wire.operations.adoption_report`).
Pure.

    report of a client ---> its session ---> the minimum of all sessions, for the requested streams

A report replaces the client's last one. A session that has not reported for SESSION_TTL_S is forgotten. Anybody may
report anything: the state is bounded, per client and in all, and reports beyond that are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from wire.echo import echo
from wire.error_details import LIMIT
from wire.errors import Code, TidelogError
from wire.operations.adoption_report import (
    ADOPTION_LABEL,
    MAX_CLIENT_ID,
    MAX_STREAMS,
    SESSION_TTL_S,
    AdoptionReport,
    encode_label,
)

MAX_SESSIONS = 10_000
MAX_SESSIONS_OF_CLIENT = 100
"""Sessions of one connection to NATS, known by its inboxes."""
MAX_BYTES = 32 << 20
"""Bytes of all sessions."""
_COST = 100
"""Bytes of memory that an entry takes besides its name."""


@dataclass(frozen=True, slots=True)
class _Session:
    streams: Mapping[str, int]
    origin: str
    cost: int
    heard_at: float


class AdoptionSessions:
    """Sessions of all clients; see the module. `now`: monotonic seconds."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        """Sessions by client id, the one that reported longest ago first."""
        self._of_origin: dict[str, int] = {}
        self._bytes = 0
        self.refused = 0
        """Reports that were refused."""

    def __len__(self) -> int:
        return len(self._sessions)

    def report(self, report: AdoptionReport, origin: str, now: float) -> None:
        """Takes a report. `origin`: the same for all reports over one connection. Raises TidelogError; the client's
        session stays as it was."""
        try:
            self._check(report)
            self._forget_silent(now)
            self._keep(report, origin, now)
        except TidelogError:
            self.refused += 1
            raise

    def minimum(self, streams: Iterable[str], now: float) -> dict[str, int]:
        """Returns, for those of `streams` that a session names, the oldest generation that a session has applied."""
        self._forget_silent(now)
        found: dict[str, int] = {}
        for stream in streams:
            generations = [s.streams[stream] for s in self._sessions.values() if stream in s.streams]
            if generations:
                found[stream] = min(generations)
        return found

    def _check(self, report: AdoptionReport) -> None:
        if not 0 < len(report.client_id) <= MAX_CLIENT_ID:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"client_id {echo(report.client_id)} has not 1 to {MAX_CLIENT_ID} characters; take a random number",
            )
        if len(report.streams) > MAX_STREAMS:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"a report of adoption names {len(report.streams)} streams, and {MAX_STREAMS} are the limit; report on"
                " those alone that are in use",
            )
        negative = next((stream for stream, generation in report.streams.items() if generation < 0), None)
        if negative is not None:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"a report of adoption has generation {report.streams[negative]} of stream {echo(negative)}, below 0;"
                " report the stream's routing_generation",
            )

    def _keep(self, report: AdoptionReport, origin: str, now: float) -> None:
        cost = _COST + sum(_COST + len(stream) for stream in report.streams)
        old = self._sessions.get(report.client_id)
        grown = cost - (old.cost if old is not None else 0)
        of_origin = self._of_origin.get(origin, 0) - (old is not None and old.origin == origin)
        for is_full, limit, sentence in (
            (old is None and len(self._sessions) >= MAX_SESSIONS, "adoption_sessions", f"{MAX_SESSIONS} clients"),
            (
                of_origin >= MAX_SESSIONS_OF_CLIENT,
                "adoption_sessions_of_client",
                f"{MAX_SESSIONS_OF_CLIENT} client ids of this connection",
            ),
            (self._bytes + grown > MAX_BYTES, "adoption_bytes", f"clients with {MAX_BYTES} bytes"),
        ):
            if is_full:
                raise TidelogError(
                    Code.BACKPRESSURE,
                    f"{sentence} report to this broker which routes they have applied already; ask for the topology,"
                    " and report to the broker that answers",
                    [LIMIT.of(limit)],
                )
        if old is not None:
            self._forget(report.client_id, old)
        self._sessions[report.client_id] = _Session(dict(report.streams), origin, cost, now)
        self._of_origin[origin] = self._of_origin.get(origin, 0) + 1
        self._bytes += cost

    def _forget(self, client_id: str, session: _Session) -> None:
        del self._sessions[client_id]
        self._bytes -= session.cost
        left = self._of_origin[session.origin] - 1
        if left:
            self._of_origin[session.origin] = left
        else:
            del self._of_origin[session.origin]

    def _forget_silent(self, now: float) -> None:
        while self._sessions:
            client_id, session = next(iter(self._sessions.items()))
            if now - session.heard_at <= SESSION_TTL_S:
                return
            self._forget(client_id, session)


class LabelsWithAdoption(Mapping[str, str]):
    """The labels of a broker, and the generations that its clients have applied of streams in repartition. It is made
    anew whenever it is read. `minimum()`: see `AdoptionSessions.minimum`."""

    def __init__(self, labels: Mapping[str, str], minimum: Callable[[], Mapping[str, int]]) -> None:
        self._labels = labels
        self._minimum = minimum

    def __getitem__(self, name: str) -> str:
        if name == ADOPTION_LABEL and (minimum := self._minimum()):
            return encode_label(minimum)
        return self._labels[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._labels
        if self._minimum():
            yield ADOPTION_LABEL

    def __len__(self) -> int:
        return len(self._labels) + bool(self._minimum())
