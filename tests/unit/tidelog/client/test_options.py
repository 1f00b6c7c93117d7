"""The options of producers and consumers are in one place; the keywords that programs give, and `help`, follow it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from tidelog.client.base.options import options
from tidelog.client.client import Client
from tidelog.client.consumer.consumer_config import ConsumerConfig, ConsumerOptions
from tidelog.client.group.subscription import GroupConfig, GroupOptions
from tidelog.client.producer.producer_config import (
    ProducerConfig,
    ProducerOptions,
    TransactionConfig,
    TransactionOptions,
)

NOT_OF_TRANSACTIONS = {"acks", "durability", "confirm_timeout", "dedup"}


@pytest.mark.parametrize(
    ("config", "keywords", "refused"),
    [
        (ConsumerConfig, ConsumerOptions, set[str]()),
        (GroupConfig, GroupOptions, set[str]()),
        (ProducerConfig, ProducerOptions, set[str]()),
        (TransactionConfig, TransactionOptions, NOT_OF_TRANSACTIONS),
    ],
)
def test_each_option_is_a_keyword(config: type[Any], keywords: type[Any], refused: set[str]) -> None:
    types = get_type_hints(config)
    assert get_type_hints(keywords) == {name: types[name] for name in options(config) if name not in refused}


@pytest.mark.parametrize(
    ("call", "config"),
    [(Client.consume, ConsumerConfig), (Client.producer, TransactionConfig), (Client.subscribe, GroupConfig)],
)
def test_help_shows_each_option_with_its_default_and_meaning(call: Callable[..., Any], config: type[Any]) -> None:
    parameters = inspect.signature(call).parameters
    for name, (option, meaning) in options(config).items():
        assert parameters[name].default == option.default
        assert meaning, f"{config.__name__} does not say what {name} is for"
        assert f"- `{name}`: {meaning}" in (inspect.getdoc(call) or "")
    assert not [name for name, each in parameters.items() if each.kind is each.VAR_KEYWORD]


@pytest.mark.parametrize("call", [Client.consume, Client.producer, Client.subscribe])
def test_an_unknown_option_is_named_with_the_function_and_the_nearest_known_one(call: Callable[..., Any]) -> None:
    with pytest.raises(
        TypeError, match=rf"{call.__name__}\(\) .*'key_deserialiser'; did you mean 'key_d?e?serializer'\?"
    ):
        call(None, "flights", key_deserialiser=str)


def test_streams_may_be_given_once_only_as_an_iterator_is() -> None:
    config: TransactionConfig[bytes, bytes] = TransactionConfig(streams=iter(["orders", "bills"]))
    assert config.stream_names == config.stream_names == ["orders", "bills"]
    assert TransactionConfig(streams="orders").stream_names == ["orders"]


def test_none_stands_for_the_default_that_the_start_gives() -> None:
    config: GroupConfig[bytes, bytes] = GroupConfig(on_gap=None, on_out_of_range=None)
    assert (config.on_gap, config.on_out_of_range) == (None, None)
