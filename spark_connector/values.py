"""Values in JSON, Avro or Protobuf as columns, decoded by Spark's own functions.

    plain            the value is the encoding itself; its schema is in a file
    Confluent's      byte 0       0
    wire format      bytes 1-4    id of the schema that it was written with, big-endian
                     Protobuf     place of the message in its file: how many indexes, then each, zigzag varints; a
                                  single byte 0 is the first message
                     then         the encoding

The schemas of the wire format are in a compacted stream (`Schemas.read`). Ids vary from record to record: an Avro value
is decoded by the schema that it was written with, and becomes a row of one schema, the reader's. JSON and Protobuf need
the reader's schema alone.

A null value, a tombstone, gives null. A value that cannot be decoded fails the query, or with `mode="PERMISSIVE"` gives
null; one that is not in the wire format, or has an unknown id, fails it in any case. `from_avro` and `from_protobuf`
need modules of Spark that PySpark does not bring, and are refused where those are missing, before a job runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from pyspark.sql import Column

MAX_SCHEMAS = 256
"""Schemas that one column may have been written with: each is a branch of Spark's plan."""
_HEADER = 5
_MODULES = {"avro": "SELECT from_avro(X'00', '\"int\"')", "protobuf": "SELECT from_protobuf(X'00', 'A', X'00')"}

Mode = Literal["FAILFAST", "PERMISSIVE"]


@dataclass(frozen=True, slots=True)
class Schema:
    """An entry of the schema stream. `kind`: AVRO, JSON or PROTOBUF. `is_deleted`: nothing new is written with it."""

    id: int
    subject: str
    version: int
    kind: str
    text: str
    is_deleted: bool
    has_references: bool


@dataclass(frozen=True, slots=True)
class Schemas:
    """The content of a schema stream when it was read, by id. A schema that comes later is unknown to the query."""

    stream: str
    by_id: Mapping[int, Schema]

    @classmethod
    def read(cls, spark: SparkSession, stream: str, **options: str) -> Schemas:
        """Reads the stream from its beginning to its present end. `options`: of the data source, such as `servers`.

        Its records are those of Confluent's topic `_schemas`: the value is a JSON object with `id`, `subject`,
        `version`, `schema` and, unless it is AVRO, `schemaType`. Records without an id are left out.
        Raises TidelogError(BAD_CONFIG) for a value that is none of that.
        """
        records = (
            spark.read.format("tidelog")
            .options(**{"subscribe": stream, "startingOffsets": "earliest", **options})
            .load()
            .select("key", "value", "offset")
            .collect()
        )
        # All records of a key are in one partition.
        return cls.parse(stream, ((row.key, row.value) for row in sorted(records, key=lambda row: int(row.offset))))

    @classmethod
    def parse(cls, stream: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> Schemas:
        """`records`: key and value, those of a key in their order. A later record of a key replaces the earlier one."""
        newest: dict[bytes, Schema | None] = {}
        for key, value in records:
            newest[bytes(key or b"")] = None if value is None else _schema(stream, bytes(value))
        return cls(stream, {schema.id: schema for schema in newest.values() if schema is not None})

    def newest(self, subject: str) -> Schema:
        """Returns the highest version of a subject that was not deleted. Raises TidelogError(BAD_CONFIG) if there is
        none."""
        versions = [schema for schema in self.by_id.values() if schema.subject == subject and not schema.is_deleted]
        if not versions:
            known = ", ".join(sorted({schema.subject for schema in self.by_id.values()})) or "none"
            _refuse(f"schema stream {self.stream} has no schema of subject {subject!r}; its subjects: {known}")
        return max(versions, key=lambda schema: schema.version)

    def of_kind(self, kind: str, subject: str | None) -> list[Schema]:
        """Returns all of a kind, of one subject or of all. Raises TidelogError(BAD_CONFIG) if there are none, or too
        many."""
        found = [schema for schema in self.by_id.values() if schema.kind == kind and subject in (None, schema.subject)]
        about = f"schema stream {self.stream}" + ("" if subject is None else f", subject {subject!r}")
        if not found:
            _refuse(f"{about} has no {kind} schema")
        if len(found) > MAX_SCHEMAS:
            _refuse(f"{about} has {len(found)} {kind} schemas, and a column takes {MAX_SCHEMAS}: name a subject")
        for schema in found:
            if schema.has_references:
                _refuse(f"schema {schema.id} of {about} refers to other schemas: register it with their text inside")
        return sorted(found, key=lambda schema: schema.id)


def from_json(
    value: Column | str,
    schema: StructType | str | Path,
    *,
    is_confluent: bool = False,
    mode: Mode = "FAILFAST",
) -> Column:
    """The value as a struct. `schema`: Spark's, as a type, as DDL text (`carrier string, delay int`), or a file (Path)
    with DDL or with the JSON of a Spark schema. `is_confluent`: the value is in the wire format.
    """
    column = _column(value)
    encoded = _after_header(column, _HEADER) if is_confluent else column
    return f.from_json(encoded.cast("string"), _of(schema), {"mode": mode})


def from_avro(
    value: Column | str,
    schema: str | Path | None = None,
    *,
    schemas: Schemas | None = None,
    subject: str | None = None,
    mode: Mode = "FAILFAST",
) -> Column:
    """The value as a struct. `schema`: Avro's, as JSON or a file (Path) with it.

    With `schemas` the value is in the wire format, and was written with one of the Avro schemas there (of `subject`, if
    it is given). The column's type is that of `schema`, or else of the subject's newest schema; Avro's rules of schema
    resolution decide about older and newer values.
    Raises TidelogError(BAD_CONFIG) when Spark has no module for Avro, or an argument will not do.
    """
    if schema is None and (schemas is None or subject is None):
        _refuse("from_avro needs a schema, or schemas and a subject, whose newest schema is then taken")
    require_module("avro")
    from pyspark.sql.avro.functions import from_avro as decode

    column = _column(value)
    text = schemas.newest(subject or "").text if schemas and schema is None else _text(schema or "")
    if schemas is None:
        return decode(column, text, {"mode": mode})
    encoded = _after_header(column, _HEADER)
    return by_id(
        column,
        schemas,
        {
            written.id: decode(encoded, written.text, {"avroSchema": text, "mode": mode})
            for written in schemas.of_kind("AVRO", subject)
        },
    )


def from_protobuf(
    value: Column | str,
    message: str,
    schema: Path | bytes,
    *,
    is_confluent: bool = False,
    mode: Mode = "FAILFAST",
) -> Column:
    """The value as a struct. `schema`: a descriptor set, as `protoc --include_imports --descriptor_set_out=FILE` writes
    it, or the file. `message`: its name there, with or without the package.

    `is_confluent`: the value is in the wire format; one of another message fails the query.
    Raises TidelogError(BAD_CONFIG) when Spark has no module for Protobuf, or an argument will not do.
    """
    descriptor = schema if isinstance(schema, bytes) else _bytes(schema)
    indexes = _message_indexes(descriptor, message)
    require_module("protobuf")
    from pyspark.sql.protobuf.functions import from_protobuf as decode

    column = _column(value)
    encoded = _after_indexes(column, indexes, message) if is_confluent else column
    return decode(encoded, message, options={"mode": mode}, binaryDescriptorSet=descriptor)


def schema_id(value: Column | str) -> Column:
    """The id (bigint) of a value in Confluent's wire format, null of null. Any other value fails the query."""
    column = _column(value)
    wrong = f.concat(
        f.lit("the value, "), f.length(column), f.lit(" bytes, is not in Confluent's wire format: it begins with 0x"),
        f.hex(f.substring(column, 1, 1)), f.lit(", not with 0x00 and an id of four bytes"),
    )  # fmt: skip
    is_right = (f.length(column) >= _HEADER) & (f.hex(f.substring(column, 1, 1)) == "00")
    number = f.conv(f.hex(f.substring(column, 2, 4)), 16, 10).cast("bigint")
    return f.when(column.isNull() | is_right, number).otherwise(f.raise_error(wrong))


def by_id(value: Column | str, schemas: Schemas, decoded: Mapping[int, Column]) -> Column:
    """One of the columns, by the schema id of the value; null of null. Another id fails the query, by its number."""
    column = _column(value)
    number = schema_id(column)
    unknown = f.concat(
        f.lit("schema id "), number,
        f.lit(f" of a value is none of schema stream {schemas.stream} as it was when the query was made: if it is new,"
              " make the query again"),
    )  # fmt: skip
    chosen = f.when(column.isNull(), f.lit(None))
    for known, result in decoded.items():
        chosen = chosen.when(number == known, result)
    return chosen.otherwise(f.raise_error(unknown))


def require_module(name: Literal["avro", "protobuf"]) -> None:
    """Raises TidelogError(BAD_CONFIG), with the remedy, when the Spark of the active session cannot decode this
    format."""
    spark = _session()
    try:
        _ = spark.sql(_MODULES[name]).schema
    except PySparkException as error:
        if "NOT_LOADED" in (error.getCondition() or ""):
            _refuse(
                f"{name} values need Spark's module spark-{name}, which this Spark does not have: start it with "
                f"--packages org.apache.spark:spark-{name}_2.13:{spark.version} (spark.jars.packages), or with --jars "
                "and the file"
            )


def _session() -> Any:
    """Returns the active session; that of Spark Connect is of another type."""
    if is_remote():
        from pyspark.sql.connect.session import SparkSession as RemoteSession

        return RemoteSession.active()
    return SparkSession.active()


def _after_header(column: Column, size: int) -> Column:
    """Returns the bytes behind the header, after checking the header."""
    return f.when(schema_id(column).isNotNull(), f.substring(column, size + 1, 1 << 30))


def _after_indexes(column: Column, indexes: tuple[int, ...], message: str) -> Column:
    prefixes = [b"".join(map(_zigzag, (len(indexes), *indexes)))]
    if indexes == (0,):
        prefixes.insert(0, b"\0")
    result = f.when(schema_id(column).isNull(), f.lit(None))
    for prefix in prefixes:
        is_it = f.substring(column, _HEADER + 1, len(prefix)) == f.lit(prefix)
        result = result.when(is_it, _after_header(column, _HEADER + len(prefix)))
    wrong = f.concat(
        f.lit(f"a value is of another message than {message}: behind its header it begins with 0x"),
        f.hex(f.substring(column, _HEADER + 1, 4)),
    )
    return result.otherwise(f.raise_error(wrong))


def _zigzag(number: int) -> bytes:
    """Encodes a number from 0 up as a zigzag varint."""
    left, encoded = number << 1, bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _message_indexes(descriptor: bytes, message: str) -> tuple[int, ...]:
    """Returns the place of the message in its file: index at the top, then in each enclosing message."""
    files = FileDescriptorSet()
    try:
        files.ParseFromString(descriptor)
    except DecodeError:
        _refuse("the Protobuf schema is no descriptor set: make it with protoc --include_imports --descriptor_set_out")
    found: list[tuple[str, tuple[int, ...]]] = []

    def visit(messages: Iterable[DescriptorProto], around: str, at: tuple[int, ...]) -> None:
        for index, each in enumerate(messages):
            found.append((f"{around}{each.name}", (*at, index)))
            visit(each.nested_type, f"{around}{each.name}.", (*at, index))

    for file in files.file:
        visit(file.message_type, f"{file.package}." if file.package else "", ())
    matching = [at for name, at in found if name == message or name.endswith(f".{message}")]
    if len(matching) != 1:
        names = ", ".join(name for name, _ in found) or "none"
        problem = "no message" if not matching else f"{len(matching)} messages"
        _refuse(f"the Protobuf schema has {problem} {message!r}; its messages: {names}")
    return matching[0]


def _schema(stream: str, value: bytes) -> Schema | None:
    """Returns the schema; None for an entry that is no schema."""
    try:
        found = json.loads(value)
        if "id" not in found:
            return None
        return Schema(
            int(found["id"]), str(found["subject"]), int(found["version"]), str(found.get("schemaType") or "AVRO"),
            str(found["schema"]), bool(found.get("deleted")), bool(found.get("references")),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError) as error:
        shown = value[:80].decode(errors="replace")
        _refuse(f"schema stream {stream} has a value that is no schema ({type(error).__name__}: {error}): {shown!r}")


def _column(value: Column | str) -> Column:
    return f.col(value) if isinstance(value, str) else value


def _of(schema: StructType | str | Path) -> StructType | str:
    if not isinstance(schema, Path):
        return schema
    text = _text(schema)
    if not text.startswith("{"):
        return text
    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, KeyError):
        _refuse(f"{schema} is neither DDL (carrier string, delay int) nor the JSON of a Spark schema")


def _text(schema: str | Path) -> str:
    return schema.strip() if isinstance(schema, str) else _bytes(schema).decode().strip()


def _bytes(schema: Path) -> bytes:
    try:
        return schema.read_bytes()
    except OSError as error:
        raise TidelogError(Code.BAD_CONFIG, f"the schema file {schema} cannot be read: {error.strerror}") from error


def _refuse(message: str) -> NoReturn:
    raise TidelogError(Code.BAD_CONFIG, message)
