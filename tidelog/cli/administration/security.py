"""`tidelog security`: the permissions of each role on NATS."""

from __future__ import annotations

import binascii
import re
from base64 import b32decode
from functools import reduce
from operator import or_
from typing import NoReturn

import click

_ROLES = ("broker", "admin", "producer", "consumer", "spark", "monitoring")
_USER = re.compile(r"[A-Za-z0-9_-]+")
_ACCOUNT = re.compile(r"[A-Za-z0-9_.-]+")
_BROKERS_ACCOUNT = "TIDELOG"
_NKEY = re.compile(r"U[A-Z2-7]{55}")
_NKEY_CHECKED = 33
"""First bytes of an NKey, before its checksum: its kind, and the public key."""


@click.group()
def security() -> None:
    """Permissions of NATS for brokers and clients."""


@security.command("nats-config")
@click.option(
    "--role",
    "roles",
    type=click.Choice(_ROLES),
    multiple=True,
    required=True,
    help="Whom the permissions are for; several times for a client that is several of them.",
)
@click.option(
    "--stream", "streams", multiple=True, metavar="NAME", help="A stream that it may use; may be given several times."
)
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="SUBJECT",
    help="For a producer: a stream's subject, for plain publishes. For a broker: what streams capture, also with"
    " wildcards.",
)
@click.option(
    "--partitions",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="Beside a producer's --subject: how many partitions its stream has. Each is permitted by its number, for"
    " SUBJECT.* would reach streams of others.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME",
    help="For a consumer or Spark: a consumer group, or a cursor, that it may use; beside --transactional-id a group"
    " whose offsets transactions commit; repeatable; '*': all.",
)
@click.option(
    "--patterns",
    is_flag=True,
    help="Beside --group: its members may subscribe by pattern. They are told the names of all streams that match.",
)
@click.option(
    "--transactional-id",
    "transactional_ids",
    multiple=True,
    metavar="ID",
    help="For a producer: a transactional id, or family, under which it may begin transactions in its streams;"
    " repeatable; '*': all.",
)
@click.option("--user", metavar="NAME", help="The user's name.  [default: role and first stream]")
@click.option("--nkey", metavar="KEY", help="The user's public NKey, in place of a name and a password.")
@click.option(
    "--namespace",
    envvar="TIDELOG_NAMESPACE",
    default="tidelog",
    show_default=True,
    metavar="NAME",
    help="First token of the cluster's own subjects; also from $TIDELOG_NAMESPACE.",
)
@click.option(
    "--inbox-prefix",
    metavar="SUBJECT",
    help="Of a client: where it has its inboxes.  [default: _INBOX.USER]  Of a broker: where clients have theirs."
    "  [default: _INBOX]",
)
@click.option("--broker", metavar="ID", help="For a broker: its id.  [default: one user for all brokers]")
@click.option(
    "--account", metavar="NAME", help="The account that the client is in, if it is another one than the brokers'."
)
@click.option("--brokers-account", metavar="NAME", help=f"Beside --account.  [default: {_BROKERS_ACCOUNT}]")
@click.option("--across-accounts", is_flag=True, help="For a broker: some clients are in other accounts.")
def nats_config(
    roles: tuple[str, ...],
    streams: tuple[str, ...],
    subjects: tuple[str, ...],
    partitions: int,
    groups: tuple[str, ...],
    patterns: bool,
    transactional_ids: tuple[str, ...],
    user: str | None,
    nkey: str | None,
    namespace: str,
    inbox_prefix: str | None,
    broker: str | None,
    account: str | None,
    brokers_account: str | None,
    across_accounts: bool,
) -> None:
    """Print a user of nats-server's configuration with the permissions that a role needs, and no others.

    It asks no cluster. The password is not part of it: nats-server takes it from its environment.

    \b
    Examples:
      tidelog security nats-config --role broker --broker b1 --subject orders --subject 'app.>'
      tidelog security nats-config --role producer --stream orders --subject orders --partitions 6
      tidelog security nats-config --role consumer --stream orders --group billing --user alice
      tidelog security nats-config --role producer --stream invoices --transactional-id billing-1
    """
    from wire.errors import TidelogError
    from wire.security.permissions import (
        ANY_BROKER,
        Role,
        Scope,
        exports_block,
        imports_block,
        permissions_of,
        user_block,
        variable_of,
    )

    asked = [Role(role) for role in dict.fromkeys(roles)]
    is_broker = Role.BROKER in asked
    if is_broker and (account is not None or streams or len(asked) > 1):
        _refuse("a broker has no other role and no streams, and --account is the account of a client; leave them out")
    if not is_broker and (across_accounts or broker is not None):
        _refuse("--across-accounts and --broker are for --role broker; leave them out")
    if subjects and not {Role.BROKER, Role.PRODUCER} & set(asked):
        _refuse("--subject is for a producer, or a broker; leave it out")
    if partitions != 1 and not (subjects and Role.PRODUCER in asked):
        _refuse("--partitions is for a producer's --subject; leave it out")
    if groups and not ({Role.CONSUMER, Role.SPARK} & set(asked) or transactional_ids):
        _refuse(
            "--group is for a consumer or Spark, or for a producer's --transactional-id; leave it out (an admin may use"
            " all)"
        )
    if patterns and not groups:
        _refuse("--patterns is for the members of a --group; name it, or leave --patterns out")
    if transactional_ids and Role.PRODUCER not in asked:
        _refuse("--transactional-id is for a producer; leave it out (an admin may look at all, and abort)")
    brokers = _accounts(account, brokers_account)
    _check_login(user, nkey)
    name = user or "-".join([*(role.value for role in asked), *([broker] if broker else []), *streams[:1]])
    scope = Scope(
        namespace=namespace,
        streams=streams,
        subjects=subjects,
        partitions=partitions,
        inbox_prefix=inbox_prefix or ("_INBOX" if is_broker else f"_INBOX.{nkey or name}"),
        broker=broker or ANY_BROKER,
        groups=groups,
        discovers=patterns,
        transactional_ids=transactional_ids,
        across_accounts=across_accounts,
    )
    try:
        granted = reduce(or_, (permissions_of(role, scope) for role in asked))
    except TidelogError as error:
        _refuse(error.message)
    of = f" of {', '.join(streams)}" if streams else ""
    where = "`authorization`" if account is None else f"account {account}"
    click.echo(f"# {' and '.join(role.value for role in asked)}{of}: an entry of `users` in {where}")
    if not nkey:
        click.echo(f"# its password: ${variable_of(name)} in the environment of nats-server")
        click.echo(
            "# nats-server reads it as a value of its configuration: best random letters and digits, a letter first;"
            " any other in double quotes within single ones ('\"12 34\"'), or hashed (`nats server passwd`) in single"
            " quotes"
        )
    if not is_broker:
        click.echo(f"# its inboxes: --inbox-prefix {scope.inbox_prefix}, inbox_prefix in Python, inboxPrefix in Spark")
    click.echo(user_block(granted, user=name, nkey=nkey or ""))
    if account is not None:
        click.echo(f"# in account {brokers}\n{exports_block(granted)}")
        click.echo(f"# in account {account}\n{imports_block(granted, brokers=brokers)}")


def _accounts(account: str | None, brokers_account: str | None) -> str:
    """Returns the brokers' account."""
    if account is None and brokers_account is not None:
        _refuse("--brokers-account is for a client in another account; name that one with --account")
    brokers = _BROKERS_ACCOUNT if brokers_account is None else brokers_account
    for given in (brokers, *([] if account is None else [account])):
        if not _ACCOUNT.fullmatch(given):
            _refuse(f"account {given!r} is not one or more of A-Z, a-z, 0-9, '_', '.' and '-'; choose such a name")
    if account == brokers:
        _refuse(f"account {account!r} is the brokers' own; leave --account out, or name theirs with --brokers-account")
    return brokers


def _check_login(user: str | None, nkey: str | None) -> None:
    if user is not None and nkey is not None:
        _refuse("--nkey takes the place of --user; leave one of them out")
    if user is not None and not _USER.fullmatch(user):
        _refuse(
            f"user {user!r} is not one or more of A-Z, a-z, 0-9, '_' and '-', which are what a part of its inboxes'"
            " name can be; choose such a name"
        )
    if nkey is not None and not _is_users_nkey(nkey):
        _refuse(
            "--nkey is not the public NKey of a user, U and 55 more letters and digits;"
            " `nk -gen user -pubout` prints one below its seed"
        )


def _is_users_nkey(text: str) -> bool:
    if not _NKEY.fullmatch(text):
        return False
    key = b32decode(text)
    return binascii.crc_hqx(key[:_NKEY_CHECKED], 0) == int.from_bytes(key[_NKEY_CHECKED:], "little")


def _refuse(sentence: str) -> NoReturn:
    raise click.UsageError(sentence)
