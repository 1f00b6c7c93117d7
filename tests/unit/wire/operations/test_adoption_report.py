"""The label by which brokers tell what their clients have applied."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wire.operations.adoption_report import MAX_LABELLED, decode_label, encode_label

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(st.dictionaries(NAMES, st.integers(0, 2**63)))
def test_a_label_is_read_as_it_was_written(minimum: dict[str, int]) -> None:
    assert decode_label(encode_label(minimum)) == minimum


@given(st.text())
def test_a_label_of_anything_is_read(label: str) -> None:
    assert all(generation >= 0 for generation in decode_label(label).values())


def test_what_is_no_entry_of_a_label_is_left_out() -> None:
    assert decode_label("") == {}
    assert decode_label("a=1 b b= =3 c=x d=-4 e=²") == {"a": 1}
    assert decode_label("a=" + "9" * 5000) == {}, "int() of very long numbers takes long, and raises"


def test_a_label_has_a_limit() -> None:
    many = {f"s{number:05}": number for number in range(MAX_LABELLED + 5)}
    assert [*decode_label(encode_label(many))] == sorted(many)[:MAX_LABELLED]
