"""The table of settings: each entry is true, and every refusal names a remedy."""

from __future__ import annotations

import pytest

from wire.errors import Code, TidelogError
from wire.stream_config import SETTINGS, Bytes, Milliseconds, NameOf, Setting, StreamConfig, Tags, WholeNumber

EACH = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


@EACH
def test_a_default_can_be_given(setting: Setting) -> None:
    text = setting.kind.spell(setting.default)
    assert setting.parse(text) == setting.default
    assert StreamConfig.from_strings({setting.name: text}) == StreamConfig()


@EACH
def test_each_choice_can_be_given(setting: Setting) -> None:
    for choice in setting.kind.choices:
        text = choice + "1" if choice.endswith(":") else choice
        value = setting.parse(text.upper())
        assert setting.kind.spell(value) == text
        assert StreamConfig(**{setting.name: value}).to_strings()[setting.name] == text


@EACH
def test_a_refusal_names_the_setting_the_value_and_the_values_that_it_takes(setting: Setting) -> None:
    wrong = "no name!" if isinstance(setting.kind, Tags | NameOf) else "nonsense"
    with pytest.raises(TidelogError) as refused:
        StreamConfig.from_strings({setting.name: wrong})
    assert refused.value.code is Code.BAD_CONFIG
    assert refused.value.message.startswith(f"{setting.name}='{wrong}' ")
    if isinstance(setting.kind, WholeNumber):
        assert f"{setting.kind.low} to {setting.kind.high}" in refused.value.message
        for beyond in (setting.kind.low - 1, setting.kind.high + 1):
            with pytest.raises(TidelogError, match=f"{setting.name}='{beyond}' is outside .*; give a number between"):
                setting.parse(str(beyond))
    elif isinstance(setting.kind, Tags | NameOf):
        assert "such as" in refused.value.message or "shows them" in refused.value.message
    else:
        assert "give one of them" in refused.value.message


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("partitions", "--partitions`), and changed by repartition (`tidelog stream alter --partitions`)"),
        ("partitioner", "--partitioner`), and the same as long as the stream lives"),
        ("replication_factor", "--replication-factor`), and the same as long as the stream lives"),
        ("subject", "--subject`), and the same as long as the stream lives"),
    ],
)
def test_what_a_stream_has_beside_its_settings_is_told_from_them(name: str, remedy: str) -> None:
    with pytest.raises(TidelogError) as refused:
        StreamConfig.from_strings({name: "6"})
    assert refused.value.code is Code.BAD_CONFIG
    assert refused.value.message == (
        f"{name} is no setting: it is given to create_stream as {name}= (`tidelog stream create {remedy}"
    )


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TidelogError, match=r"unknown stream setting 'colour'; known: .* compact, .*segment"):
        StreamConfig.from_strings({"colour": "red"})


def test_settings_that_a_stream_cannot_change_after_its_creation() -> None:
    assert {name for name, setting in SETTINGS.items() if setting.fixed is not None} == {"durability", "encryption"}


def test_settings_that_another_version_did_not_store_have_their_default() -> None:
    told = {"compression": "brotli", "colour": "red", "max_record_bytes": "7"}
    assert StreamConfig.from_strings_known(told) == StreamConfig(max_record_bytes=7)


@pytest.mark.parametrize(
    ("name", "text", "plain"),
    [
        ("retention_max_age_ms", "7d", "604800000"),
        ("dedup_window_ms", "1.5m", "90000"),
        ("retention_max_age_ms", "604800000", "604800000"),
        ("segment_bytes", "512KiB", "524288"),
        ("retention_max_bytes", "10GB", "10000000000"),
        ("producer_byte_rate", "2MB", "2000000"),
        ("retention_max_bytes", "17", "17"),
    ],
)
def test_settings_that_count_bytes_or_milliseconds_take_units(name: str, text: str, plain: str) -> None:
    assert StreamConfig.plain({name: text}) == {name: plain}
    assert StreamConfig.from_strings({name: text}).to_strings()[name] == plain


def test_every_setting_that_counts_bytes_or_milliseconds_takes_units() -> None:
    for setting in SETTINGS.values():
        if setting.name.endswith("_ms"):
            assert isinstance(setting.kind, Milliseconds), setting.name
        elif "byte" in setting.name:
            assert isinstance(setting.kind, Bytes), setting.name


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "retention_max_age_ms",
            "7 days",
            "'7 days' is not a whole number of ms from 0 to 4503599627370496, and none with a unit (ms, s, m, h or d),",
        ),
        ("segment_bytes", "4M", "and none with a unit (B, kB, MB, GB, TB, KiB, MiB, GiB or TiB), such as 512KiB"),
        ("segment_bytes", "1TB", "is 1000000000000 bytes, outside 4096 to 1073741824; give an amount between them"),
        ("retention_max_messages", "7d", "is not a whole number from 0"),
    ],
)
def test_an_amount_that_is_none_is_refused(name: str, text: str, said: str) -> None:
    with pytest.raises(TidelogError) as refused:
        StreamConfig.from_strings({name: text})
    assert said in refused.value.message
