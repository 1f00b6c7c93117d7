"""Names and NATS subjects: Tidelog's own, and the rules for names and subjects of streams.

A cluster owns everything below its namespace, `<ns>.>`:

    <ns>.<stream>.<partition>.replicate | offset | checkpoint | append | fetch
    <ns>.<stream>.<partition>.fetch.<broker>
    <ns>.notify.<broker>
    <ns>.metadata.<kind>[.<broker>]
    <ns>.api.<operation>

so no stream may be called notify, metadata or api. A stream owns its subject (partition 0) and `<subject>.<i>` for each
other partition, all i at once, because partitions can be added; two streams whose shapes meet cannot both exist.
Subjects are plain, without wildcards. A stream that captured `<ns>.>`, replies (`_INBOX.>`) or the subjects of NATS
itself (`$…`) would feed on its own replication, so these are refused.

Refusals are TidelogError: BAD_NAME or BAD_SUBJECT.
"""

from __future__ import annotations

import re
from typing import Final

from wire.errors import Code, TidelogError
from wire.types import BrokerId, StreamName

DEFAULT_NAMESPACE: Final = "tidelog"
MAX_NAME_LENGTH: Final = 64
MAX_SUBJECT_LENGTH: Final = 255
RESERVED_STREAM_NAMES: Final = frozenset({"notify", "metadata", "api"})

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_INBOX: Final = "_INBOX"


class Subjects:
    """The subjects of one cluster. Raises TidelogError(BAD_NAME) for a bad namespace."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.namespace = check_namespace(namespace)

    def replicate(self, stream: StreamName, partition: int) -> str:
        """Followers ask the leader for records."""
        return f"{self.namespace}.{stream}.{partition}.replicate"

    def offset(self, stream: StreamName, partition: int) -> str:
        """Followers ask the leader where a leader epoch ends."""
        return f"{self.namespace}.{stream}.{partition}.offset"

    def checkpoint(self, stream: StreamName, partition: int) -> str:
        """Followers ask the leader for the derived state at its log start."""
        return f"{self.namespace}.{stream}.{partition}.checkpoint"

    def append(self, stream: StreamName, partition: int) -> str:
        """Clients append a batch."""
        return f"{self.namespace}.{stream}.{partition}.append"

    def fetch(self, stream: StreamName, partition: int) -> str:
        """Clients read committed batches at the leader, and ask it for positions."""
        return f"{self.namespace}.{stream}.{partition}.fetch"

    def fetch_from(self, stream: StreamName, partition: int, broker: BrokerId) -> str:
        """Clients read committed batches at that replica, in any role."""
        return f"{self.namespace}.{stream}.{partition}.fetch.{broker}"

    def notify(self, broker: BrokerId) -> str:
        """Leaders tell an idle follower that there are records."""
        return f"{self.namespace}.notify.{broker}"

    def alter_isr(self) -> str:
        """Leaders propose ISR changes to the controller."""
        return f"{self.namespace}.metadata.alter_isr"

    def report_leader(self) -> str:
        """Followers report a failed leader to the controller."""
        return f"{self.namespace}.metadata.report_leader"

    def withdraw(self) -> str:
        """Brokers tell the controller that a replica of theirs is unsound."""
        return f"{self.namespace}.metadata.withdraw"

    def probe(self, broker: BrokerId) -> str:
        """The controller asks whether a broker lives."""
        return f"{self.namespace}.metadata.probe.{broker}"

    def broker_status(self, broker: BrokerId) -> str:
        """The controller asks a broker for the progress of its replicas."""
        return f"{self.namespace}.metadata.status.{broker}"

    def drain(self, broker: BrokerId) -> str:
        """The controller asks a leader to get ready for a planned move of its leadership."""
        return f"{self.namespace}.metadata.drain.{broker}"

    def cluster(self) -> str:
        """Brokers tell to which cluster they belong, and ask the others."""
        return f"{self.namespace}.metadata.cluster"

    def api(self, name: str) -> str:
        """The JSON API; `name` is `stream.create`, `cluster.status`, …"""
        return f"{self.namespace}.api.{name}"

    def check_subject(self, subject: str) -> str:
        """`check_subject` in this cluster's namespace."""
        return check_subject(subject, self.namespace)


def ingest_subject(subject: str, partition: int) -> str:
    """The subject of a partition's publishes, on which its leader listens."""
    return subject if partition == 0 else f"{subject}.{partition}"


def overlaps(a: str, b: str) -> bool:
    """Whether streams on `a` and `b` own a subject in common. Each owns X and X.<i>, i a partition number from 1."""
    if a == b:
        return True
    shorter, longer = sorted((a, b), key=len)
    parent, _, last = longer.rpartition(".")
    return parent == shorter and _is_partition_number(last)


def check_stream_name(name: str) -> StreamName:
    _check_name(name, "stream name")
    if name in RESERVED_STREAM_NAMES:
        reserved = ", ".join(sorted(RESERVED_STREAM_NAMES))
        raise TidelogError(Code.BAD_NAME, f"stream name {name!r} is reserved ({reserved}); choose another one")
    return StreamName(name)


def check_broker_id(broker: str) -> BrokerId:
    return BrokerId(_check_name(broker, "broker id"))


def check_namespace(namespace: str) -> str:
    _check_name(namespace, "namespace")
    if namespace == _INBOX:
        raise TidelogError(
            Code.BAD_NAME, f"namespace {namespace!r} is where NATS clients get their answers; choose another one"
        )
    return namespace


def check_subject(subject: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Whether a stream may be attached to `subject` in a cluster that owns `<namespace>.>`."""
    _check_text(subject, "subject", Code.BAD_SUBJECT)
    wrong = _subject_fault(subject, namespace)
    if wrong is not None:
        raise TidelogError(Code.BAD_SUBJECT, f"subject {subject[: MAX_SUBJECT_LENGTH + 1]!r} {wrong}")
    return subject


def _subject_fault(subject: str, namespace: str) -> str | None:
    if not subject:
        return "is empty; give the NATS subject that the stream is to capture"
    if len(subject.encode("utf-8", "replace")) > MAX_SUBJECT_LENGTH:
        return f"has more than {MAX_SUBJECT_LENGTH} bytes; choose a shorter one"
    tokens = subject.split(".")
    if not all(tokens):
        return "has an empty token; remove the dots that are too many"
    if any(not character.isprintable() or character.isspace() for character in subject):
        return "contains blanks or characters that are not printable; NATS does not allow them"
    if "*" in tokens or ">" in tokens:
        return "contains a wildcard; a stream captures one plain subject, create one stream for each subject"
    if "*" in subject or ">" in subject:
        return "contains '*' or '>', which are for wildcards; choose a name without them"
    if tokens[0].startswith("$"):
        return "begins with '$', which belongs to the NATS server; choose another one"
    if tokens[0] == _INBOX:
        return f"is below {_INBOX}, where NATS clients get their answers; choose another one"
    if tokens[0] == namespace:
        return f"is inside the cluster's own namespace {namespace!r}; choose another one"
    return None


def _is_partition_number(token: str) -> bool:
    """As `ingest_subject` writes them: from 1, no leading zeros."""
    return token.isascii() and token.isdigit() and token[0] != "0"


def _check_text(given: object, what: str, code: Code) -> None:
    if not isinstance(given, str):
        raise TidelogError(code, f"{what} {given!r:.80} is {type(given).__name__}, not text; give it as text")


def _check_name(name: str, what: str) -> str:
    _check_text(name, what, Code.BAD_NAME)
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        shown = name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}…"
        raise TidelogError(
            Code.BAD_NAME,
            f"{what} {shown!r} is not 1 to {MAX_NAME_LENGTH} characters of A-Z, a-z, 0-9, '_' and '-';"
            " choose such a name",
        )
    return name
