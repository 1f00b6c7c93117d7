"""`tidelog security nats-config`: what it refuses, and users without a password."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from scripts.reference.docs_tables import DOCS
from tidelog.cli import main
from wire.operations.api_operations import OPERATIONS, PRODUCER_INIT
from wire.security.permissions import Role, Scope, permissions_of

NKEY = "UAAACAQDAQCQMBYIBEFAWDANBYHRAEISCMKBKFQXDAMRUGY4DUPB63NN"


def printed(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["security", "nats-config", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--role", "producer"], "name them with --stream"),
        (["--role", "consumer", "--role", "admin"], "name them with --stream"),
        (["--role", "spark"], "name them with --stream"),
        (["--role", "consumer", "--stream", "a.b"], "stream name 'a.b'"),
        (["--role", "consumer", "--stream", "*"], "stream name '*'"),
        (["--role", "consumer", "--stream", "inbox"], "is reserved"),
        (["--role", "broker"], "name them with --subject"),
        (["--role", "broker", "--subject", ">", "--broker", "a b"], "broker id 'a b'"),
        (["--role", "broker", "--role", "admin", "--subject", ">"], "a broker has no other role"),
        (["--role", "broker", "--subject", ">", "--account", "APP"], "a broker has no other role"),
        (["--role", "admin", "--inbox-prefix", "tidelog.inbox"], "_INBOX.alice"),
        (["--role", "admin", "--namespace", "a.b"], "namespace 'a.b'"),
        (["--role", "consumer", "--stream", "a", "--subject", "a"], "--subject is for a producer"),
        (["--role", "broker", "--subject", "a", "--stream", "a"], "no streams"),
        (["--role", "admin", "--brokers-account", "T"], "name that one with --account"),
        (["--role", "admin", "--across-accounts"], "are for --role broker"),
        (["--role", "admin", "--broker", "b1"], "are for --role broker"),
        (["--role", "admin", "--account", "A B"], "account 'A B'"),
        (["--role", "admin", "--account", ""], "account ''"),
        (["--role", "admin", "--account", "A", "--brokers-account", "B}"], "account 'B}'"),
        (["--role", "admin", "--account", "TIDELOG"], "the brokers' own"),
        (["--role", "producer", "--stream", "a", "--group", "g"], "or for a producer's --transactional-id"),
        (["--role", "admin", "--nkey", "foo"], "not the public NKey of a user"),
        (["--role", "admin", "--nkey", f"{NKEY[:-1]}A"], "not the public NKey of a user"),
        (["--role", "admin", "--nkey", NKEY, "--user", "u"], "leave one of them out"),
    ],
)
def test_scopes_that_a_role_cannot_have(arguments: list[str], words: str) -> None:
    status, out, err = printed(*arguments)
    assert (status, out) == (2, "")
    assert words in err


@pytest.mark.parametrize("role", ["producer", "broker"])
@pytest.mark.parametrize(
    "subject",
    [
        "tidelog.api.stream.delete",
        "tidelog.*.*",
        "tidelog.>",
        "a b",
        "",
        "a..b",
        "$SRV.INFO",
        "$JS.>",
        "_INBOX.>",
        ">.a",
    ],
)
def test_subjects_that_no_stream_can_have(role: str, subject: str) -> None:
    of = ["--stream", "orders"] if role == "producer" else []
    status, out, err = printed("--role", role, *of, "--subject", subject)
    assert (status, out) == (2, "")
    assert f"subject {subject!r} " in err


def test_wildcards_are_for_brokers() -> None:
    for subject in (">", "app.>", "*.events", "*"):
        assert printed("--role", "broker", "--subject", subject)[0] == 0
        status, _, err = printed("--role", "producer", "--stream", "orders", "--subject", subject)
        assert status == 2
        assert "contains a wildcard" in err


@pytest.mark.parametrize("user", ["al.ice", "al ice", "", "*", ">", "a\n", "größe"])
def test_a_users_name_is_one_token_of_its_inboxes(user: str) -> None:
    status, out, err = printed("--role", "monitoring", "--user", user)
    assert (status, out) == (2, "")
    assert "choose such a name" in err


def test_each_user_has_an_inbox_prefix_of_its_own() -> None:
    for user in ("al_ice", "al-ice", "alice"):
        assert f'"_INBOX.{user}.>"' in printed("--role", "monitoring", "--user", user)[1]


def test_a_user_with_an_nkey_has_no_password() -> None:
    status, out, _ = printed("--role", "monitoring", "--nkey", NKEY)
    assert status == 0
    assert f'nkey: "{NKEY}"  # monitoring\n' in out, "an entry in a list says what it is for"
    assert "password" not in out
    assert f'"_INBOX.{NKEY}.>"' in out


def test_several_roles_are_one_user() -> None:
    status, out, _ = printed("--role", "producer", "--role", "consumer", "--stream", "orders")
    assert status == 0
    assert 'user: "producer-consumer-orders"' in out
    assert "password: $PRODUCER_CONSUMER_ORDERS_PASSWORD" in out
    assert out.count('"tidelog.api.cluster.id"') == 1
    assert out.count('"tidelog.orders.*.append"') == out.count('"tidelog.orders.*.fetch"') == 1


def test_every_operation_is_granted_to_an_admin_and_no_write_to_others() -> None:
    writes = {operation.name for operation in OPERATIONS.values() if operation.writes}

    def operations(role: Role) -> set[str]:
        scope = Scope(streams=("s",) if role not in (Role.ADMIN, Role.MONITORING) else ())
        subjects = {grant.subject for grant in permissions_of(role, scope).publish}
        return {name for name in OPERATIONS if {f"tidelog.api.{name}{of}" for of in ("", ".*", ".s")} & subjects}

    assert operations(Role.ADMIN) == OPERATIONS.keys() - {PRODUCER_INIT.name}
    for role in (Role.PRODUCER, Role.CONSUMER, Role.SPARK, Role.MONITORING):
        assert not operations(role) & writes


def test_the_sample_in_the_docs_is_what_the_command_prints() -> None:
    page = (DOCS / "security.md").read_text()
    samples = re.findall(r"^\$ tidelog security nats-config (.*)\n((?:.+\n)*?)```", page, re.MULTILINE)
    assert samples
    for arguments, shown in samples:
        assert printed(*arguments.split()) == (0, f"{shown}\n", "")
