"""What nats-server says of missing permissions (texts of 2.15), and what a user is told."""

from __future__ import annotations

import pytest

from wire.errors import TidelogError
from wire.messaging.violation import Act, Violation, Violations, remedy_for


@pytest.mark.parametrize(
    ("text", "act", "subject"),
    [
        ("'Permissions Violation for Publish to \"a.b\"'", Act.PUBLISH, "a.b"),
        ("'Permissions Violation for Subscription to \"a.*\"'", Act.SUBSCRIBE, "a.*"),
        ('\'Permissions Violation for Subscription to "a" using queue "q"\'', Act.SUBSCRIBE, "a"),
        ('\'Permissions Violation for Subscription to "a" (sid "3")\'', Act.SUBSCRIBE, "a"),
        ("'Permissions Violation for Publish with Reply of \"a\"'", Act.PUBLISH, "a"),
        (r"""'Permissions Violation for Publish to "ä\"\\c"'""", Act.PUBLISH, 'ä"\\c'),
        (r"""'Permissions Violation for Subscription to "x.\xff"'""", Act.SUBSCRIBE, r"x.\xff"),
    ],
)
def test_a_violation_names_act_and_subject(text: str, act: Act, subject: str) -> None:
    assert Violation.parse(text) == Violation(act=act, subject=subject)


@pytest.mark.parametrize("text", ["'Authorization Violation'", "'Slow Consumer'", "'Permissions Violation'", ""])
def test_other_errors_are_none(text: str) -> None:
    assert Violation.parse(text) is None


def test_a_refused_publish_ends_what_waits_on_its_subject_and_nothing_else() -> None:
    refused = Violation(act=Act.PUBLISH, subject="a").seen_by("", "_INBOX.x.*")
    assert refused.ends("a")
    assert not refused.ends("a.b")
    subscription = Violation(act=Act.SUBSCRIBE, subject="a").seen_by("", "_INBOX.x.*")
    assert not subscription.ends("a")


def test_refused_inboxes_end_everything() -> None:
    refused = Violation(act=Act.SUBSCRIBE, subject="_INBOX.x.*").seen_by("user 'app'", "_INBOX.x.*")
    assert refused.ends("a")
    assert "NATS does not let user 'app' subscribe to '_INBOX.x.*'" in refused.error().message
    for word in ("inbox_prefix", "--inbox-prefix", "inboxPrefix", "_INBOX.app"):
        assert word in refused.error().message
    by_key = Violation(act=Act.SUBSCRIBE, subject="_INBOX.x.*").seen_by("NKey UAAC7", "_INBOX.x.*")
    assert "('_INBOX.UAAC7' with the permissions that `tidelog security nats-config` prints for UAAC7)" in (
        by_key.error().message
    )
    published = Violation(act=Act.PUBLISH, subject="_INBOX.x.*").seen_by("", "_INBOX.x.*")
    assert not published.ends("a")


@pytest.mark.parametrize(
    ("subject", "roles", "options"),
    [
        ("tidelog.orders.0.append", "the role producer", "--role producer --stream orders"),
        ("tidelog.orders.3.leader", "the role producer", "--role producer --stream orders"),
        ("tidelog.orders.0.fetch", "the role consumer", "--role consumer --stream orders"),
        ("tidelog.orders.0.fetch.b1", "the role consumer", "--role consumer --stream orders"),
        ("tidelog.__audit.0.fetch", "one of the roles consumer, admin", "--role consumer --stream __audit"),
        (
            "tidelog.api.cluster.id",
            "one of the roles consumer, producer, monitoring, admin",
            "--role consumer --stream STREAM",
        ),
        (
            "tidelog.api.metadata.orders",
            "one of the roles consumer, producer, monitoring, admin",
            "--role consumer --stream orders",
        ),
        ("tidelog.api.stream.create.orders", "the role admin", "--role admin"),
        ("tidelog.api.cluster.status", "one of the roles monitoring, admin", "--role monitoring"),
        ("other.orders.0.append", "the role producer", "--role producer --stream orders --namespace other"),
        (
            "tidelog.__groups.2.heartbeat.evil",
            "the role consumer",
            "--role consumer --stream STREAM --group evil",
        ),
        (
            "tidelog.__groups.2.discover.evil",
            "the role consumer",
            "--role consumer --stream STREAM --group evil --patterns",
        ),
        (
            "tidelog.api.group.coordinator",
            "one of the roles consumer, monitoring, admin",
            "--role consumer --stream STREAM --group GROUP",
        ),
        (
            "tidelog.__transactions.1.init.billing-1",
            "the role producer",
            "--role producer --stream STREAM --transactional-id billing-1",
        ),
        (
            "tidelog.__transactions.1.add-partitions.billing-1.orders",
            "the role producer",
            "--role producer --stream orders --transactional-id billing-1",
        ),
        (
            "tidelog.__transactions.1.add-offsets.billing-1.evil",
            "the role producer",
            "--role producer --stream STREAM --group evil --transactional-id billing-1",
        ),
        (
            "tidelog.metadata.topology.__audit",
            "one of the roles consumer, producer, admin",
            "--role consumer --stream __audit",
        ),
    ],
)
def test_the_remedy_names_the_roles_that_may(subject: str, roles: str, options: str) -> None:
    assert remedy_for(subject) == f"give it {roles}, whose permissions `tidelog security nats-config {options}` prints"


@pytest.mark.parametrize("subject", ["tidelog.orders.0.replicate", "elsewhere", "a b", "x." * 1000 + "y"])
def test_what_no_client_may_is_left_to_the_configuration(subject: str) -> None:
    assert remedy_for(subject) == "allow it in the configuration of nats-server"


# ---- those of one connection


def refused(subject: str, *, is_inbox: bool = False) -> Violation:
    return Violation(act=Act.SUBSCRIBE, subject=subject, is_inbox=is_inbox)


def made() -> tuple[Violations, list[str]]:
    violations, heard = Violations(on_error=lambda error: heard.append(str(error))), list[str]()
    violations.hear(lambda violation: heard.append(violation.subject))
    return violations, heard


def test_what_is_not_refused_again_is_permitted() -> None:
    violations, _ = made()
    violations.tell(refused("a"))
    violations.tell(refused("_INBOX.x.*", is_inbox=True))
    question = violations.asks_again()
    assert set(violations.subscriptions) == {"a", "_INBOX.x.*"}  # until the answer is there
    violations.tell(refused("a"))
    assert violations.answered(question) == ["_INBOX.x.*"]
    assert set(violations.subscriptions) == {"a"}
    violations.check_answers_arrive()


def test_no_answer_arrives_while_the_inboxes_are_refused() -> None:
    violations, _ = made()
    violations.tell(refused("_INBOX.x.*", is_inbox=True))
    with pytest.raises(TidelogError, match="inbox_prefix"):
        violations.check_answers_arrive()
    violations.forget_all()
    violations.check_answers_arrive()
    assert not violations.subscriptions


def test_a_trial_is_no_subscription_and_nobody_hears_of_it() -> None:
    violations, heard = made()
    violations.begin_trial("a")
    violations.begin_trial("b")
    violations.tell(refused("a"))
    assert not violations.end_trial("a")
    assert violations.end_trial("b")
    assert not violations.subscriptions
    assert not heard
    violations.tell(refused("a"))
    assert heard == ["a"]


def test_a_handler_that_raises_keeps_nothing_from_the_others() -> None:
    violations, heard = made()

    def fail(_: Violation) -> None:
        raise ValueError("a bug")

    violations.hear(fail)
    violations.hear(lambda _: heard.append("last"))
    violations.tell(Violation(act=Act.PUBLISH, subject="a"))
    assert heard == ["a", "a bug", "last"]
    assert not violations.subscriptions
    violations.stop_hearing(fail)
    violations.tell(Violation(act=Act.PUBLISH, subject="b"))
    assert heard[3:] == ["b", "last"]
