"""Names and NATS subjects: Tidelog's own, and the rules for names and subjects of streams.

A cluster owns everything below its namespace, `<ns>.>`:

    <ns>.<stream>.<partition>.replicate | offset | checkpoint | write | append | fetch | leader
    <ns>.<stream>.<partition>.fetch.<broker>
    <ns>.<internal stream>.<partition>.<kind>.<name>[.<name>]   for the coordinator that this partition belongs to
    <ns>.notify.<broker>[.packed | .parked]
    <ns>.metadata.<kind>[.<broker>]
    <ns>.metadata.topology[.<stream>] | push.<stream> | adopt.<broker>    open to clients
    <ns>.api.<operation>[.<stream>]
    <ns>.inbox.<broker>.<connection>.<number>

so no stream may be called notify, metadata, api or inbox. A stream owns its subject (partition 0) and `<subject>.<i>`
for each other partition, all i at once, because partitions can be added; two streams whose shapes meet cannot both
exist. Subjects are plain, without wildcards. A stream that captured `<ns>.>`, replies (`_INBOX.>`) or the subjects of
NATS itself (`$…`) would feed on its own replication, so these are refused.

Refusals are TidelogError: BAD_NAME or BAD_SUBJECT.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from wire.errors import Code, TidelogError
from wire.names import check_name, check_text
from wire.types import BrokerId, StreamName

DEFAULT_NAMESPACE: Final = "tidelog"
MAX_SUBJECT_LENGTH: Final = 255
RESERVED_STREAM_NAMES: Final = frozenset({"notify", "metadata", "api", "inbox"})

_PLAIN = re.compile(r"[^\x00-\x20\x7f.*>]+(?:\.[^\x00-\x20\x7f.*>]+)*")
DEFAULT_INBOX_PREFIX: Final = "_INBOX"
"""The inbox prefix of all NATS clients that are not configured with another one."""
_WILD: Final = "…"
"""Stands for a wildcard in a pattern; it is no namespace."""
_REQUEST_TOKENS: Final = 4
"""The tokens of `<ns>.<stream>.<partition>.<kind>`."""
_TOKENS_OF_METADATA: Final = 4
"""The tokens of `<ns>.metadata.<kind>.<name>`."""


class Subjects:
    """The subjects of one cluster. Raises TidelogError(BAD_NAME) for a bad namespace."""

    __slots__ = ("_of_brokers", "_of_clients", "_topology", "namespace")

    def __init__(self, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.namespace = check_namespace(namespace)
        self._of_brokers = (f"{namespace}.notify.", f"{namespace}.metadata.")
        self._topology = f"{namespace}.metadata.topology"
        self._of_clients = (
            f"{self._topology}.",
            f"{namespace}.metadata.push.",
            f"{namespace}.metadata.adopt.",
        )

    def replicate(self, stream: StreamName, partition: int | str) -> str:
        """Followers ask the leader for records."""
        return f"{self.namespace}.{stream}.{partition}.replicate"

    def offset(self, stream: StreamName, partition: int | str) -> str:
        """Followers ask the leader where a leader epoch ends."""
        return f"{self.namespace}.{stream}.{partition}.offset"

    def snapshot(self, stream: StreamName, partition: int | str) -> str:
        """Followers ask the leader for the derived state at its log start. The token has nothing to do with the
        checkpoint of the HW."""
        return f"{self.namespace}.{stream}.{partition}.checkpoint"

    def write(self, stream: StreamName, partition: int | str) -> str:
        """Brokers append a batch to an internal stream."""
        return f"{self.namespace}.{stream}.{partition}.write"

    def last(self, stream: StreamName, partition: int | str) -> str:
        """Brokers ask for the last committed batch of an internal stream."""
        return f"{self.namespace}.{stream}.{partition}.last"

    def internal(self, stream: str) -> str:
        """The subject of an internal stream: nobody listens on it, and no other stream can have it."""
        return f"{self.namespace}.{stream}"

    def coordinator(self, stream: StreamName, partition: int | str, kind: str, *names: str) -> str:
        """Clients ask a coordinator about its entries in an internal stream, such as the consumer group `names[0]`; "*"
        for all of them. A second name is a stream or a group which the request takes into a transaction."""
        return ".".join((self.namespace, stream, str(partition), kind, *names))

    def coordinate(self, stream: StreamName, partition: int | str) -> str:
        """The controller asks a coordinator to carry out an operation of the API."""
        return f"{self.namespace}.{stream}.{partition}.coordinate"

    def append(self, stream: StreamName, partition: int | str) -> str:
        """Clients append a batch."""
        return f"{self.namespace}.{stream}.{partition}.append"

    def mark(self, stream: StreamName, partition: int | str) -> str:
        """A coordinator of transactions ends one in this partition."""
        return f"{self.namespace}.{stream}.{partition}.mark"

    def fetch(self, stream: StreamName, partition: int | str) -> str:
        """Clients read committed batches at the leader, and ask it for positions."""
        return f"{self.namespace}.{stream}.{partition}.fetch"

    def fetch_from(self, stream: StreamName, partition: int | str, broker: BrokerId) -> str:
        """Clients read committed batches at that replica, in any role."""
        return f"{self.namespace}.{stream}.{partition}.fetch.{broker}"

    def leader(self, stream: StreamName, partition: int | str) -> str:
        """Producers ask whether the leader serves; the answer has no records."""
        return f"{self.namespace}.{stream}.{partition}.leader"

    def notify(self, broker: BrokerId) -> str:
        """Leaders notify an idle follower of new records."""
        return f"{self.namespace}.notify.{broker}"

    def packed(self, broker: BrokerId) -> str:
        """Brokers send several messages to that broker as one."""
        return f"{self.namespace}.notify.{broker}.packed"

    def broker_of_packed(self, subject: str) -> BrokerId | None:
        """Returns the broker to which messages leave as one on `subject`; None: it is another subject."""
        before, behind = f"{self.namespace}.notify.", ".packed"
        if not subject.startswith(before) or not subject.endswith(behind):
            return None
        return BrokerId(subject.removeprefix(before).removesuffix(behind))

    def parked(self, broker: BrokerId) -> str:
        """Brokers ask that broker whether their followers' fetches wait at its leaders."""
        return f"{self.namespace}.notify.{broker}.parked"

    def controller(self) -> str:
        """Brokers send their requests to the controller."""
        return f"{self.namespace}.metadata.controller"

    def probe(self, broker: BrokerId) -> str:
        """The controller asks whether a broker is alive."""
        return f"{self.namespace}.metadata.probe.{broker}"

    def broker_status(self, broker: BrokerId) -> str:
        """The controller asks a broker for the progress of its replicas."""
        return f"{self.namespace}.metadata.status.{broker}"

    def drain(self, broker: BrokerId) -> str:
        """The controller asks a leader to get ready for a planned move of its leadership."""
        return f"{self.namespace}.metadata.drain.{broker}"

    def cluster(self) -> str:
        """Brokers announce to which cluster they belong, and ask the others."""
        return f"{self.namespace}.metadata.cluster"

    def topology(self, stream: str | None = None) -> str:
        """Clients ask any broker for routes of that stream, of all with "*", or, without a name behind it, of any
        streams; one of the brokers answers."""
        return self._topology if stream is None else f"{self._topology}.{stream}"

    def push(self, stream: str) -> str:
        """The controller pushes the changed routes of a stream to clients; "*" for all streams."""
        return f"{self.namespace}.metadata.push.{stream}"

    def adopt(self, broker: BrokerId) -> str:
        """Clients report the routes that they have applied to their home broker."""
        return f"{self.namespace}.metadata.adopt.{broker}"

    def broker_inbox(self, broker: BrokerId) -> str:
        """The prefix of a broker's inboxes, without a dot at its end."""
        return f"{self.broker_inboxes()}{broker}"

    def broker_inboxes(self) -> str:
        """The common prefix of the inboxes of all brokers, with a dot at its end."""
        return f"{self.namespace}.inbox."

    def is_between_brokers(self, subject: str) -> bool:
        """Whether only brokers send to that subject of this cluster."""
        if subject.startswith(self._of_brokers):
            return not self._is_of_clients(subject)
        tokens = subject.split(".")
        return (
            len(tokens) == _REQUEST_TOKENS
            and tokens[0] == self.namespace
            and tokens[-1] in ("replicate", "offset", "checkpoint", "write", "last", "mark", "coordinate")
        )

    def _is_of_clients(self, subject: str) -> bool:
        """Whether it is one of clients' subjects of metadata: the topology, also with one token behind, and `push` and
        `adopt` with one token behind."""
        return subject == self._topology or (
            subject.startswith(self._of_clients)
            and subject.count(".") == _TOKENS_OF_METADATA - 1
            and not subject.endswith(".")
        )

    def presence(self) -> str:
        """A client that finds no controller asks which brokers are connected."""
        return f"{self.namespace}.api.presence"

    def api(self, name: str, stream: str | None = None) -> str:
        """The JSON API; `name` is `stream.create`, `cluster.status`, … `stream` follows it where the operation is about
        one; "*" for all of them."""
        return f"{self.namespace}.api.{name}" if stream is None else f"{self.namespace}.api.{name}.{stream}"

    def check_subject(self, subject: str) -> str:
        """`check_subject` in this cluster's namespace."""
        return check_subject(subject, self.namespace)


def ingest_subject(subject: str, partition: int) -> str:
    """The subject of a partition's publishes, on which its leader listens."""
    return subject if partition == 0 else f"{subject}.{partition}"


def ingest_owner(subject: str, owned: Container[str]) -> str | None:
    """Returns the subject in `owned` whose stream has `subject` for one of its partitions, if there is one."""
    if subject in owned:
        return subject
    parent = numbered_parent(subject)
    return parent if parent in owned else None


def numbered_parent(subject: str) -> str | None:
    """Returns the subject of the stream to one of whose partitions `subject` may belong; None: its last token is no
    partition number."""
    parent, _, last = subject.rpartition(".")
    return parent if parent and _is_partition_number(last) else None


def reaches(subject: str, pattern: str) -> bool:
    """Whether a subscription to `pattern` receives messages to one of the partitions of a stream on `subject`."""
    tokens, wanted = subject.split("."), pattern.split(".")
    if _matches(tokens, wanted):
        return True
    *parent, last = wanted
    return (last == "*" or _is_partition_number(last)) and _matches(tokens, parent)


def is_matched(subject: str, pattern: str) -> bool:
    """Whether NATS delivers messages to `subject` to a subscription to `pattern`."""
    tokens, wanted = subject.split("."), pattern.split(".")
    if wanted[-1] == ">":
        if len(tokens) < len(wanted):
            return False
        tokens, wanted = tokens[: len(wanted) - 1], wanted[:-1]
    return len(tokens) == len(wanted) and all(each in ("*", token) for token, each in zip(tokens, wanted, strict=True))


def _matches(tokens: list[str], pattern: list[str]) -> bool:
    if pattern and pattern[-1] == ">":
        pattern = pattern[:-1]
        # `a.>` matches only below `a`; a stream on `a` has partitions there.
        tokens = [*tokens, "0"] if len(tokens) == len(pattern) else tokens
        if len(tokens) <= len(pattern):
            return False
        tokens = tokens[: len(pattern)]
    return len(tokens) == len(pattern) and all(
        wanted in ("*", token) for token, wanted in zip(tokens, pattern, strict=True)
    )


def check_stream_name(name: str) -> StreamName:
    check_name(name, "stream name")
    if name in RESERVED_STREAM_NAMES:
        reserved = ", ".join(sorted(RESERVED_STREAM_NAMES))
        raise TidelogError(Code.BAD_NAME, f"stream name {name!r} is reserved ({reserved}); choose another one")
    return StreamName(name)


def check_broker_id(broker: str) -> BrokerId:
    return BrokerId(check_name(broker, "broker id"))


def check_namespace(namespace: str) -> str:
    check_name(namespace, "namespace")
    if namespace == DEFAULT_INBOX_PREFIX:
        raise TidelogError(
            Code.BAD_NAME, f"namespace {namespace!r} is where NATS clients get their answers; choose another one"
        )
    return namespace


def check_inbox_prefix(prefix: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Checks that a client may have its inboxes below `prefix` in a cluster that owns `<namespace>.>`."""
    check_text(prefix, "inbox prefix", Code.BAD_SUBJECT)
    first = prefix.partition(".")[0]
    if len(prefix) > MAX_SUBJECT_LENGTH or not _PLAIN.fullmatch(prefix) or first.startswith("$") or first == namespace:
        raise TidelogError(
            Code.BAD_SUBJECT,
            f"inbox prefix {prefix[: MAX_SUBJECT_LENGTH + 1]!r} is no plain subject outside of {namespace}.> and $…;"
            " choose one such as _INBOX.alice",
        )
    return prefix


# R37: A stream captures none of the cluster's own messages: subjects that fall into `<ns>.>`, `_INBOX.>` or `$…`,
# wildcards, and overlaps with other streams are refused at creation.
# Hazard: Feedback: a stream that stores its own acknowledgements.
def check_subject(subject: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Checks that a stream may be attached to `subject` in a cluster that owns `<namespace>.>`."""
    check_text(subject, "subject", Code.BAD_SUBJECT)
    wrong = _subject_fault(subject, namespace)
    if wrong is not None:
        raise TidelogError(Code.BAD_SUBJECT, f"subject {subject[: MAX_SUBJECT_LENGTH + 1]!r} {wrong}")
    return subject


def check_captured(pattern: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Checks that `pattern` matches subjects of possible streams: as `check_subject`, with NATS' wildcards."""
    check_text(pattern, "subject", Code.BAD_SUBJECT)
    tokens = pattern.split(".")
    last = len(tokens) - 1
    plain = [_WILD if each == "*" or (each == ">" and at == last) else each for at, each in enumerate(tokens)]
    wrong = _subject_fault(".".join(plain), namespace)
    if wrong is not None:
        raise TidelogError(Code.BAD_SUBJECT, f"subject {pattern[: MAX_SUBJECT_LENGTH + 1]!r} {wrong}")
    return pattern


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
    if tokens[0] == DEFAULT_INBOX_PREFIX:
        return f"is below {DEFAULT_INBOX_PREFIX}, where NATS clients get their answers; choose another one"
    if tokens[0] == namespace:
        return f"is inside the cluster's own namespace {namespace!r}; choose another one"
    return None


def _is_partition_number(token: str) -> bool:
    """Whether the token is a number as `ingest_subject` writes it: from 1, no leading zeros."""
    return token.isascii() and token.isdigit() and token[0] != "0"
