"""Permissions that a NATS server refuses a login, as it reports them: later, and beside the answers that are awaited.

    -ERR 'Permissions Violation for Publish to "tidelog.orders.0.append"'
    -ERR 'Permissions Violation for Subscription to "orders" using queue "q"'
    -ERR 'Permissions Violation for Subscription to "orders" (sid "3")'           permissions were changed

The line names the subject and not the message. So all requests that wait for an answer to a message on that subject are
ended: every one of them was refused, or was sent before the permissions changed. A subscription that is refused
receives nothing, and the server has forgotten it: it is requested again from time to time, and after each loss of the
connection. A refused subscription to the inboxes of a connection ends all requests that wait there.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from wire.errors import Code, TidelogError
from wire.security.permissions import OF_STREAMS, Role, Scope, permissions_of
from wire.subjects import DEFAULT_NAMESPACE, is_matched

_SENTENCE: Final = re.compile(
    r"'?Permissions Violation for (Publish|Subscription)\b"
    r'[^"]* (?:to|of) ("(?:[^"\\]|\\.)*")'
)
_MOST_TOKENS: Final = 16
"""Limit of the tokens of a subject of Tidelog's own, with room to spare."""
_ROLES: Final = (Role.CONSUMER, Role.PRODUCER, Role.MONITORING, Role.ADMIN)
"""The roles of clients, in the order in which remedies name them: a reader is not advised to take the permission to
write. A Spark job has the permissions of a consumer."""
_SOME: Final = "STREAM"
_SOME_GROUP: Final = "GROUP"
_SOME_ID: Final = "ID"
"""Placeholders for the name of a stream, a group, a transactional id."""
_NAME_AT: Final = 3
"""Index of the group or the transactional id in a coordinator's subject, counted behind the namespace."""


class Act(enum.Enum):
    PUBLISH = "publish to"
    SUBSCRIBE = "subscribe to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A NATS server refuses `act` on `subject`."""

    act: Act
    subject: str
    login: str = ""
    """The connection's identity: "user 'orders'"; empty: unknown."""
    is_inbox: bool = False
    """It concerns the subscription to this connection's inboxes: no answer arrives."""

    @classmethod
    def parse(cls, text: str) -> Violation | None:
        """Reads the text of a -ERR line; None: it is another error."""
        found = _SENTENCE.match(text)
        if found is None:
            return None
        act = Act.PUBLISH if found[1] == "Publish" else Act.SUBSCRIBE
        return cls(act=act, subject=_unquoted(found[2]))

    def seen_by(self, login: str, inboxes: str) -> Violation:
        """Adds the connection's facts. `inboxes`: the subject of its inbox subscription."""
        return replace(self, login=login, is_inbox=self.act is Act.SUBSCRIBE and self.subject == inboxes)

    def ends(self, asked: str) -> bool:
        """Whether a message to subject `asked` will have no answer."""
        return self.is_inbox or (self.act is Act.PUBLISH and self.subject == asked)

    def error(self) -> TidelogError:
        """Returns the error for a client that waits for an answer."""
        if self.is_inbox:
            user = re.fullmatch(r"user '([A-Za-z0-9_-]+)'|NKey (U[A-Z2-7]+)", self.login)
            name = "USER" if user is None else user[1] or user[2]
            remedy = (
                ", where its answers come: give the inbox prefix that it is allowed, as inbox_prefix, --inbox-prefix,"
                " $TIDELOG_INBOX_PREFIX, or inboxPrefix in Spark"
                f" ('_INBOX.{name}' with the permissions that `tidelog security nats-config` prints for {name})"
            )
        else:
            remedy = f": {remedy_for(self.subject)}"
        return TidelogError(Code.NOT_PERMITTED, f"{self.sentence}{remedy}")

    @property
    def sentence(self) -> str:
        """The refusal in words, without a remedy, and without a full stop."""
        return f"NATS does not let {self.login or 'this login'} {self.act.value} {self.subject!r}"


class Violations:
    """The violations of one connection. `on_error` is called with exceptions of handlers."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self.of_inboxes: Violation | None = None
        """Set while NATS does not let this login subscribe to its inboxes: no answer arrives."""
        self.subscriptions: dict[str, int] = {}
        """Subjects of the connection's subscriptions that NATS refuses, with the number of the question that was
        refused last. At most as many as it has subscriptions."""
        self._question = 0
        self._tried: dict[str, bool] = {}
        """Subjects that are tried, and whether NATS has refused them."""
        self._on_error = on_error
        self._handlers: dict[Callable[[Violation], None], str] = {}
        """Handlers, each with the subject on which its owner publishes messages that must not be written twice."""

    def hear(self, handler: Callable[[Violation], None], *, publishes_to: str = "") -> None:
        """`handler` is called with each violation from now on; for a refused subscription once, until it is permitted.
        `publishes_to`: see `is_shared`."""
        self._handlers[handler] = publishes_to

    def is_shared(self, subject: str) -> bool:
        """Whether several owners publish there. Then it is unknown whose message NATS has refused."""
        return list(self._handlers.values()).count(subject) > 1

    def stop_hearing(self, handler: Callable[[Violation], None]) -> None:
        self._handlers.pop(handler, None)

    def tell(self, violation: Violation) -> None:
        """NATS has reported the violation: notifies the handlers."""
        if violation.act is Act.SUBSCRIBE:
            if violation.subject in self._tried:
                self._tried[violation.subject] = True
                return
            is_known = violation.subject in self.subscriptions
            self.subscriptions[violation.subject] = self._question
            if is_known:
                return
        if violation.is_inbox:
            self.of_inboxes = violation
        for handler in tuple(self._handlers):
            try:
                handler(violation)
            except Exception as error:  # noqa: BLE001 - `on_error` decides
                self._on_error(error)

    def asks_again(self) -> int:
        """The refused subscriptions are requested again; returns the number of this question."""
        self._question += 1
        return self._question

    def answered(self, question: int) -> list[str]:
        """NATS has answered the question: forgets and returns the subjects that it did not refuse again."""
        permitted = [subject for subject, refused_in in self.subscriptions.items() if refused_in < question]
        for subject in permitted:
            self.forget(subject)
        return permitted

    def forget(self, subject: str) -> None:
        """The subject is permitted now, or the subscription was given up."""
        self.subscriptions.pop(subject, None)
        if self.of_inboxes is not None and self.of_inboxes.subject == subject:
            self.of_inboxes = None

    def forget_all(self) -> None:
        """The connection is lost: the next one reports its violations anew."""
        self.subscriptions.clear()
        self.of_inboxes = None

    def begin_trial(self, subject: str) -> None:
        """A subscription is made to see whether NATS permits it; handlers are not called for it."""
        self._tried[subject] = False

    def end_trial(self, subject: str) -> bool:
        """Returns whether NATS permits it."""
        return not self._tried.pop(subject, False)

    def check_answers_arrive(self) -> None:
        """Raises TidelogError(NOT_PERMITTED) while no answer can arrive."""
        if self.of_inboxes is not None:
            raise self.of_inboxes.error()


def named(error: TidelogError, stream: str) -> TidelogError:
    """Returns the error of a request for `stream` on a subject that does not name it, with the stream in its
    remedy."""
    message = re.sub(rf"--stream {_SOME}\b", f"--stream {stream}", error.message)
    return error if message == error.message else type(error)(error.code, message, error.details)


@lru_cache(maxsize=256)
def remedy_for(subject: str) -> str:
    """Returns the roles of clients that may publish to the subject, and the command that prints their permissions."""
    tokens = subject.split(".")
    granted = [
        (role, scope)
        for role in _ROLES
        if (scope := _scope_of_grant(role, tokens[0], subject, tokens[1:_MOST_TOKENS])) is not None
    ]
    if not granted:
        return "allow it in the configuration of nats-server"
    roles = ", ".join(role.value for role, _ in granted)
    role, scope = granted[0]
    options = f"--role {role.value}"
    for option, names in (
        ("--stream", scope.streams),
        ("--group", scope.groups),
        ("--transactional-id", scope.transactional_ids),
    ):
        options += "".join(f" {option} {name}" for name in names)
    options += " --patterns" if scope.discovers else ""
    options += f" --namespace {scope.namespace}" if scope.namespace != DEFAULT_NAMESPACE else ""
    which = f"one of the roles {roles}" if len(granted) > 1 else f"the role {roles}"
    return f"give it {which}, whose permissions `tidelog security nats-config {options}` prints"


def _scope_of_grant(role: Role, namespace: str, subject: str, tokens: list[str]) -> Scope | None:
    """Returns the first scope in which `role` may publish to `subject`, whose tokens behind the namespace are given.
    None: the role may not."""
    for scope in _scopes(role, namespace, tokens):
        try:
            granted = permissions_of(role, scope)
        except TidelogError:  # no name of a namespace, a stream, a group or a transactional id
            continue
        if any(is_matched(subject, grant.subject) for grant in granted.publish):
            return scope
    return None


def _scopes(role: Role, namespace: str, tokens: list[str]) -> Iterator[Scope]:
    """Yields scopes to which the subject may belong, the smallest first. The name of any stream, group or id is one of
    the placeholders; subjects of coordinators have the names behind stream, partition and kind."""
    if role not in OF_STREAMS:
        yield Scope(namespace=namespace)
        return
    for stream in (_SOME, *tokens):
        yield Scope(namespace=namespace, streams=(stream,))
    of_any = Scope(namespace=namespace, streams=(_SOME,))
    name = tokens[_NAME_AT] if len(tokens) > _NAME_AT else ""
    if role is Role.PRODUCER:
        of_id = replace(of_any, transactional_ids=(name or _SOME_ID,))
        yield of_id
        for added in tokens[_NAME_AT + 1 :]:
            yield replace(of_id, streams=(added,))
            yield replace(of_id, groups=(added,))
    else:
        of_group = replace(of_any, groups=(name or _SOME_GROUP,))
        yield from (of_group, replace(of_group, discovers=True))


def _unquoted(text: str) -> str:
    """Reads text as Go's %q writes it: as JSON does, but for characters that no subject of ours has."""
    try:
        return str(json.loads(text))
    except ValueError:
        return text[1:-1]
