"""Write the tables of docs/ that are made from declarations in the code, from the comments of wire/protobuf/*.proto,
from the rules of the protocol as the code states them, and from the run of the benchmarks in docs/benchmark.json.

Usage: scripts/docs-tables [--check]

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`. `--check` writes nothing and fails when a
table is out of date. tests/unit/project/test_docs_tables.py checks the same.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from inspect import getsource
from pathlib import Path
from textwrap import dedent
from typing import Any

import dataplane.broker.broker  # noqa: F401 - with it all features declare their counters
from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.broker.roles.counters import declared_counters
from dataplane.replica.replica_settings import ReplicaSettings
from metadata.controller.metadata_settings import MetadataSettings
from scripts.benchmarks.rig.comparison import Comparison
from scripts.reference.docs_bounds import bounds as bounds_of_code
from scripts.reference.rules import Place, rules
from tidelog.client.base.options import options
from tidelog.client.consumer.consumer_config import ConsumerConfig
from tidelog.client.group.subscription import GroupConfig
from tidelog.client.producer.producer_config import ProducerConfig, TransactionConfig
from wire.cluster_config import CLUSTER_SETTINGS
from wire.error_details import ADDED_BY_CLIENTS, declared_details
from wire.errors import Code
from wire.operations.api_operations import OPERATIONS
from wire.security.permissions import Grant, Permissions, Role, Scope, permissions_of
from wire.stream_config import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PROTOS = ROOT / "wire" / "protobuf"
_TABLE = re.compile(r"(<!-- table: (?P<name>[a-z_-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def cluster_settings() -> str:
    return _table(
        ("KEY", "values", "default", "meaning"),
        (
            (f"`{setting.name}`", setting.kind.values, setting.default_in_words, setting.help)
            for setting in CLUSTER_SETTINGS.values()
        ),
    )


def stream_settings() -> str:
    return _table(
        ("KEY", "values", "default", "meaning", "while a stream is used", "since"),
        (
            (
                f"`{setting.name}`",
                setting.kind.values,
                setting.default_in_words,
                setting.help,
                setting.alterable_in_words,
                setting.since,
            )
            for setting in SETTINGS.values()
        ),
    )


def section(settings: type[Any]) -> Callable[[], str]:
    """Of a section of a broker's configuration: its fields and the docstrings below them."""

    def make() -> str:
        meanings = _field_docstrings(settings)
        return _table(
            ("setting", "default", "meaning"),
            ((f"`{entry.name}`", _spelled(entry.default), meanings[entry.name]) for entry in fields(settings)),
        )

    return make


def client_options(config: type[Any]) -> Callable[[], str]:
    """Of what programs give to producers and consumers: the options that the class itself has, or spells anew."""

    def make() -> str:
        return _table(
            ("option", "default", "meaning"),
            (
                (f"`{name}`", f"`{option.default!r}`", " ".join(meaning.split()))
                for name, (option, meaning) in options(config).items()
                if name in vars(config)["__annotations__"]
            ),
        )

    return make


def counters() -> str:
    return _table(
        ("counter", "it counts", "unit"), ((f"`{name}`", meaning, unit) for name, unit, meaning in declared_counters())
    )


def _recorded() -> Comparison:
    return Comparison.from_dict(json.loads((DOCS / "benchmark.json").read_text(encoding="utf-8")))


def benchmark_behind() -> str:
    """Where the strongest peer was ahead in the run of `scripts/bench --record`, the worst first."""
    recorded = _recorded()
    about = recorded.about
    run = (
        f"Recorded {about['date']} at commit {about['versions']['commit']} on {about['machine']}, with nats-server"
        f" {about['versions']['nats-server']}; {about['rounds']} rounds."
    )
    return f"{run}\n\n{recorded.markdown(recorded.behind)}\n"


def benchmark() -> str:
    """The other figures of that run."""
    recorded = _recorded()
    behind = {finding.figure.key for finding in recorded.behind}
    return recorded.markdown([f for f in recorded.findings if f.figure.key not in behind]) + "\n"


def api_operations() -> str:
    return _table(
        ("operation", "asked with", "access", "what it does", "refused with, besides those of all"),
        (
            (
                f"`{operation.name}.<{operation.named}>`" if operation.named else f"`{operation.name}`",
                ", ".join(_asked(entry) for entry in fields(operation.request_kind)) or "nothing",
                "writes" if operation.writes else "reads",
                operation.help,
                ", ".join(code.name for code in operation.refusals) or "none",
            )
            for operation in OPERATIONS.values()
        ),
    )


def error_details() -> str:
    carried = {detail: [code.name for code in Code if detail in code.details] for detail in declared_details()}
    return _table(
        ("detail", "value", "of", "meaning"),
        (
            (
                f"`{detail.name}`",
                detail.values,
                ", ".join([*codes, *(["any error, by the client"] if detail in ADDED_BY_CLIENTS else [])]),
                detail.help,
            )
            for detail, codes in carried.items()
        ),
    )


def bounds() -> str:
    return _table(
        ("what is bounded", "limit", "kept by", "what the sender hears", "counter"),
        bounds_of_code(),
    )


def protocol_rules() -> str:
    return _table(
        ("rule", "statement", "hazard", "kept by", "transcripts, tests", "mutants"),
        (
            (
                rule.number,
                f"{rule.statement} *Not covered:* {rule.not_covered}" if rule.not_covered else rule.statement,
                rule.hazard,
                _places([*rule.stated, *rule.kept]),
                ", ".join((*rule.transcripts, *(f"`{path}`" for path in rule.tests))) or "none",
                "; ".join(rule.mutants) or "none",
            )
            for rule in rules().values()
        ),
    )


def _places(places: Iterable[Place]) -> str:
    """Functions by their modules, the one that states the rule first."""
    named: dict[str, list[str]] = {}
    for place in places:
        named.setdefault(place.module, []).append(f"`{place.name}`")
    return "; ".join(f"`{module}` {', '.join(dict.fromkeys(names))}" for module, names in named.items())


def permissions() -> str:
    """With the placeholders STREAM, SUBJECT, BROKER, GROUP, ID and USER."""
    scope = Scope(streams=("STREAM",), subjects=("SUBJECT",), partitions=2, inbox_prefix="_INBOX.USER")
    scopes = {
        Role.BROKER: Scope(broker="BROKER", subjects=("SUBJECT",)),
        Role.ADMIN: Scope(inbox_prefix="_INBOX.USER"),
        Role.MONITORING: Scope(inbox_prefix="_INBOX.USER"),
    }

    def spelled(grants: Iterable[Grant]) -> str:
        return ", ".join(dict.fromkeys(f"`{grant.subject}`" for grant in grants))

    granted = {f"`{role.value}`": permissions_of(role, scopes.get(role, scope)) for role in Role}
    grouped = permissions_of(Role.CONSUMER, replace(scope, groups=("GROUP",)))
    more = tuple(grant for grant in grouped.publish if grant not in granted[f"`{Role.CONSUMER.value}`"].publish)
    granted["`consumer`, `spark` with `--group`: also"] = Permissions(more, grouped.subscribe)
    discovering = permissions_of(Role.CONSUMER, replace(scope, groups=("GROUP",), discovers=True))
    more = tuple(grant for grant in discovering.publish if grant not in grouped.publish)
    granted["`consumer`, `spark` with `--group` and `--patterns`: also"] = Permissions(more, discovering.subscribe)
    transactional = permissions_of(Role.PRODUCER, replace(scope, transactional_ids=("ID",)))
    more = tuple(grant for grant in transactional.publish if grant not in granted[f"`{Role.PRODUCER.value}`"].publish)
    granted["`producer` with `--transactional-id`: also"] = Permissions(more, transactional.subscribe)
    with_group = permissions_of(Role.PRODUCER, replace(scope, transactional_ids=("ID",), groups=("GROUP",)))
    more = tuple(grant for grant in with_group.publish if grant not in transactional.publish)
    granted["`producer` with `--transactional-id` and `--group`: also"] = Permissions(more, with_group.subscribe)
    return _table(
        ("role", "publishes to", "subscribes to"),
        ((name, spelled(each.publish), spelled(each.subscribe)) for name, each in granted.items()),
    )


def _asked(entry: Field[Any]) -> str:
    optional = entry.default is not MISSING or entry.default_factory is not MISSING
    return f"`{entry.name}`{' (optional)' if optional else ''}"


@dataclass(slots=True)
class ProtoMessage:
    """A message of a .proto file."""

    purpose: str
    """Comment above the message."""
    fields: list[tuple[int, str, str]]
    """Number, name and comment of each field, in the order of the file."""


_BLOCK = re.compile(r"(message|enum|oneof) (\w+) \{$")
_FIELD = re.compile(r"(?:(?:repeated|optional) )?(?:map<\w+, \w+>|[\w.]+) (\w+) = (\d+);(?:\s*// (.*))?$")


def proto_messages(text: str) -> dict[str, ProtoMessage]:
    """Messages outside of others; fields of a oneof count as fields of its message."""
    found: dict[str, ProtoMessage] = {}
    blocks: list[tuple[str, str]] = []
    comment: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        above, comment = " ".join(comment), []
        if begins := _BLOCK.match(line):
            blocks.append((begins[1], begins[2]))
            if len(blocks) == 1 and begins[1] == "message":
                found[begins[2]] = ProtoMessage(above, [])
        elif line == "}":
            blocks.pop()
        elif blocks and all(kind == "oneof" for kind, _ in blocks[1:]) and (field := _FIELD.match(line)):
            message = found.get(blocks[0][1])
            if message is not None:
                message.fields.append((int(field[2]), field[1], above or field[3] or ""))
    return found


def field_rows(name: str) -> Callable[[], str]:
    """A row for each field of a message of wire/protobuf/tidelog.proto."""

    def make() -> str:
        message = proto_messages((PROTOS / "tidelog.proto").read_text())[name]
        return _table(
            (name, "meaning"), ((f"{number} `{field}`", comment) for number, field, comment in message.fields)
        )

    return make


def message_rows(file: str, *names: str) -> Callable[[], str]:
    """A row for each of some messages."""

    def make() -> str:
        messages = proto_messages((PROTOS / file).read_text())
        return _table(
            ("message", "purpose", "fields"),
            (
                (
                    name,
                    messages[name].purpose,
                    ", ".join(
                        f"{number} `{field}`{f' ({comment})' if comment else ''}"
                        for number, field, comment in messages[name].fields
                    ),
                )
                for name in names
            ),
        )

    return make


TABLES: Mapping[str, Callable[[], str]] = {
    "producer-options": client_options(ProducerConfig),
    "transaction-options": client_options(TransactionConfig),
    "consumer-options": client_options(ConsumerConfig),
    "group-options": client_options(GroupConfig),
    "api-operations": api_operations,
    "error-details": error_details,
    "cluster-settings": cluster_settings,
    "stream-settings": stream_settings,
    "replica-settings": section(ReplicaSettings),
    "metadata-settings": section(MetadataSettings),
    "storage-settings": section(StorageSettings),
    "counters": counters,
    "append-request": field_rows("AppendRequest"),
    "client-messages": message_rows("tidelog.proto", "AppendResponse", "FetchRequest"),
    "group-messages": message_rows(
        "groups.proto",
        "HeartbeatRequest",
        "HeartbeatResponse",
        "CommitRequest",
        "OffsetsRequest",
        "CommittedOffset",
        "CursorRequest",
        "CursorResponse",
    ),
    "group-records": message_rows(
        "groups.proto", "GroupRecord", "MemberRecord", "OffsetRecord", "PendingRecord", "CursorRecord"
    ),
    "transaction-messages": message_rows(
        "transactions.proto",
        "InitRequest",
        "InitResponse",
        "AddRequest",
        "AddResponse",
        "EndRequest",
        "EndResponse",
        "EndFamilyRequest",
        "EndFamilyResponse",
        "FamilyMember",
        "FamilyRequest",
        "FamilyResponse",
        "TransactionPartition",
    ),
    "transaction-ends": message_rows("tidelog.proto", "EndTransactionRequest"),
    "transaction-records": message_rows("transactions.proto", "TransactionRecord", "FamilyRecord", "ProducerIds"),
    "bounds": bounds,
    "benchmark-behind": benchmark_behind,
    "benchmark": benchmark,
    "rules": protocol_rules,
    "permissions": permissions,
}


def with_tables(text: str) -> str:
    """A document with its tables as they are now."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found['name']]()}{found[3]}", text)


def stale() -> list[Path]:
    """Documents with a table that differs from the code."""
    return [path for path in sorted(DOCS.glob("*.md")) if with_tables(path.read_text()) != path.read_text()]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [[*head], *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:], ""])


def _field_docstrings(settings: type[Any]) -> dict[str, str]:
    (body,) = ast.parse(dedent(getsource(settings))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for entry, below in zip(body.body, body.body[1:], strict=False):
        match entry, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found


def _spelled(value: object) -> str:
    """As a configuration file has it; sizes in MiB."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value} ({value >> 20} MiB)"
    return f"{value:g}" if isinstance(value, float) else str(value)


def write() -> list[Path]:
    """Writes the tables that are out of date. Returns their pages."""
    outdated = stale()
    for path in outdated:
        path.write_text(with_tables(path.read_text()))
    return outdated


def main() -> None:
    check = "--check" in sys.argv[1:]
    outdated = stale() if check else write()
    for path in outdated:
        print(f"{'stale' if check else 'wrote'} {path.relative_to(DOCS.parent)}")
    if outdated and check:
        sys.exit("run scripts/docs-tables")


if __name__ == "__main__":
    main()
