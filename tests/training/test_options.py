"""Every option, with values of every wrong kind."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from mufree import Refused
from mufree.training import PretrainConfig
from mufree.training.config import defaults, from_mapping

WRONG: dict[str, tuple[Any, ...]] = {
    "int": (True, 1.0, "1", math.nan, [1], -1, 10**40),
    "float": (True, "0.1", math.nan, math.inf, [0.1], 1j, 10**400),
    "str": (5, "", "a\0b", "\ud800", ["a"], True),
    "bool": (1, "yes", None),
    "Mapping": ([], "a: 1", None),
    "Decay": (5, "", "independant", None),
    "Dtype": (16, "", "float16", None),
    "Packing": (True, "", "document", None),
    "AccumulationWeight": (1, "", "token", None),
}


def kind(item: Any) -> str:
    return str(item.type).removesuffix(" | None").split("[")[0]


@pytest.mark.parametrize("item", fields(PretrainConfig), ids=lambda item: item.name)
def test_no_option_takes_a_wrong_value(item: Any) -> None:
    """Type, range and characters: each is refused in the option's own name, and None where nothing stands for it."""
    values = [*WRONG[kind(item)], *([] if "None" in str(item.type) else [None])]
    for value in values:
        with pytest.raises(Refused) as caught:
            PretrainConfig(**{item.name: value})
        assert [reason.field for reason in caught.value.reasons] == [item.name], value
        assert len(str(caught.value)) < 300


def test_the_defaults_are_right_and_all_problems_are_told() -> None:
    """The control, and a refusal of three options with three reasons."""
    assert from_mapping(defaults()) == PretrainConfig()
    with pytest.raises(Refused) as caught:
        from_mapping({"width": 0, "lr": "fast", "widht": 3}, "my.yaml")
    fields_at_fault = [reason.field for reason in caught.value.reasons]
    assert fields_at_fault == ["my.yaml: widht", "width", "lr"]
    assert "did you mean width?" in str(caught.value)


def test_fewer_tokens_than_an_update_are_refused() -> None:
    """One update more than asked would be made otherwise; from one update on, whole updates."""
    with pytest.raises(Refused, match=r"tokens: 5 is less than one update's 896; give at least that"):
        PretrainConfig(tokens=5)
    assert PretrainConfig(tokens=896).update_limit == 1
    assert PretrainConfig(tokens=2000).update_limit == 2
    assert PretrainConfig(tokens=2000, updates=1).update_limit == 1
    assert PretrainConfig(max_time=1).update_limit is None
    assert PretrainConfig().update_limit == 200
