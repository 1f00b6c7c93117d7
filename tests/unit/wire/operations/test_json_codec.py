"""JSON as typed values: the values that each kind takes, and the sentence that refuses the others."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import pytest

from tests.turns import finished
from wire.operations.json_codec import checked, decode, decoding, encode
from wire.types import BrokerId


class Leaf(TypedDict):
    number: int
    note: NotRequired[str | None]


@dataclass(frozen=True, slots=True)
class Ask:
    name: BrokerId
    count: int = 1
    limit: int | None = None
    texts: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    sure: bool = False
    leaf: Leaf | None = None


def test_an_omitted_field_has_its_default_and_null_stands_for_that() -> None:
    assert decode(Ask, b'{"name": "a"}', "it") == Ask(BrokerId("a"))
    assert decode(Ask, b'{"name": "a", "count": null, "texts": null, "sure": null}', "it") == Ask(BrokerId("a"))


def test_decoding_gives_the_sent_value() -> None:
    ask = Ask(BrokerId("a"), 2, 3, {"k": "v"}, ["x"], sure=True, leaf={"number": 1, "note": None})
    assert decode(Ask, encode(ask), "it") == ask


def test_nesting_and_numbers_are_bounded() -> None:
    for data in (
        b"[" * 900 + b"]" * 900,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"name": ' + b"[" * 60 + b"]" * 60 + b"}",
    ):
        with pytest.raises(ValueError, match="it is nested more than 32 deep"):
            decode(Ask, data, "it")
    with pytest.raises(ValueError, match="it is not JSON"):
        decode(Ask, b"[" * 100_000, "it")
    with pytest.raises(ValueError, match="it is not JSON"):
        decode(Ask, b'{"name": "a", "count": ' + b"9" * 5000 + b"}", "it")
    with pytest.raises(ValueError, match=r"it's count is 9{200}…, beyond 64 bits"):
        decode(Ask, b'{"name": "a", "count": ' + b"9" * 1000 + b"}", "it")
    with pytest.raises(ValueError, match="it's count is a number of thousands of digits, beyond 64 bits"):
        checked(Ask, {"name": "a", "count": 10**5000}, "it")


class Report(TypedDict):
    leaves: dict[str, Leaf]
    listed: NotRequired[list[Leaf]]
    names: list[str]


@pytest.mark.parametrize("size", [0, 3, 200])
@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"listed": [{"number": "x"}]},
        {"leaves": {"last": {"number": None}}},
        {"leaves": []},
        {"names": {}},
        {"names": [1]},
        {"colour": ["red"] * 100},
        {"listed": [[[{}]] * 100] * 100},
    ],
)
def test_what_is_decoded_in_turns_is_the_same_and_so_is_what_is_refused(size: int, wrong: dict[str, Any]) -> None:
    leaves = [{"number": number, "note": None} for number in range(size)]
    value: dict[str, Any] = {
        "leaves": {str(number): leaf for number, leaf in enumerate(leaves)},
        "listed": leaves,
        "names": ["x"] * size,
    }
    for name, entries in wrong.items():
        if isinstance(entries, list) and isinstance(value.get(name), list):
            value[name] = value[name] + entries
        elif isinstance(entries, dict) and isinstance(value.get(name), dict):
            value[name] = value[name] | entries
        else:
            value[name] = entries
    data = json.dumps(value).encode()
    try:
        expected: object = decode(Report, data, "it")
    except ValueError as error:
        expected = str(error)
    try:
        found: object = finished(decoding(Report, data, "it"))
    except ValueError as error:
        found = str(error)
    assert found == expected


def test_depth_is_bounded_of_what_is_decoded_in_turns() -> None:
    for data in (b"[" * 900 + b"]" * 900, b'{"a":' * 40 + b"1" + b"}" * 40, b"[" * 100_000, b"nothing"):
        with pytest.raises(ValueError, match="it is"):
            finished(decoding(Report, data, "it"))


def test_fields_of_a_newer_peer_are_tolerated() -> None:
    assert decode(Ask, b'{"name": "a", "colour": "red"}', "it") == Ask(BrokerId("a"))
    assert checked(Leaf, {"number": 1, "colour": "red"}, "it") == {"number": 1, "colour": "red"}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"{", "it is not JSON: "),
        (b"\xff\xfe", "it is not JSON: "),
        (b"[]", "it is [], not an object"),
        (b"null", "it is null, not an object"),
        (b"{}", "it's name is missing; it must be a text"),
        (b'{"name": null}', "it's name is null, not a text"),
        (b'{"name": 3}', "it's name is 3, not a text"),
        (b'{"name": "a", "count": true}', "it's count is true, not a whole number"),
        (b'{"name": "a", "count": 1.5}', "it's count is 1.5, not a whole number"),
        (b'{"name": "a", "limit": "x"}', 'it\'s limit is "x", not a whole number or null'),
        (b'{"name": "a", "sure": 1}', "it's sure is 1, not true or false"),
        (b'{"name": "a", "texts": {"k": 1}}', "it's texts.k is 1, not a text"),
        (b'{"name": "a", "texts": []}', "it's texts is [], not an object, each value a text"),
        (b'{"name": "a", "names": ["b", 1]}', "it's names[1] is 1, not a text"),
        (b'{"name": "a", "names": {}}', "it's names is {}, not a list, each of it a text"),
        (b'{"name": "a", "leaf": {}}', "it's leaf.number is missing; it must be a whole number"),
        (b'{"name": "a", "leaf": {"number": "1"}}', 'it\'s leaf.number is "1", not a whole number'),
        (b'{"name": "a", "leaf": 1}', "it's leaf is 1, not an object or null"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_its_field_and_value(data: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as refused:
        decode(Ask, data, "it")
    assert str(refused.value).startswith(sentence), refused.value


def test_what_is_nested_too_deeply_to_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="it is not JSON: maximum recursion depth"):
        decode(Ask, b"[" * 1_000_000, "it")


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(ValueError, match="…, not a text") as refused:
        checked(Ask, {"name": ["x" * 10_000]}, "it")
    assert len(str(refused.value)) < 200


def test_a_kind_that_the_codec_does_not_know_is_a_bug() -> None:
    with pytest.raises(TypeError, match="set"):
        checked(set[Any], [], "it")
