from __future__ import annotations

import math
from typing import Any

import pytest

from mufree import Refused
from mufree.mup.choices import Choices


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"family": "Adam"}, "family: 'Adam' is none of adam, sgd"),
        ({"weight_decay": 0.1}, "weight_decay: 0.1 is none of independent, standard, none"),
        ({"scale_eps": "no"}, "scale_eps: 'no' is none of True, False"),
        ({"overrides": "hidden"}, "overrides: 'hidden' is no mapping"),
        ({"overrides": {3: "hidden"}}, "overrides: .* is no mapping from path patterns"),
        ({"overrides": {"*": None}}, r"overrides\['\*'\]: None is no word; give a kind"),
        *[
            ({"multipliers": {"w": a}}, r"multipliers\['w'\]: .*above 0")
            for a in (0, -1.0, math.nan, math.inf, "2", True)
        ],
        ({"readout_gain": 3}, "readout_gain: 3 is no path pattern"),
        *[({"base_head_dim": size}, "base_head_dim: .* is no size") for size in (0, -16, 2.5, "16", True)],
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], words: str) -> None:
    """By name, before any model is looked at."""
    with pytest.raises(Refused, match=words):
        Choices(**settings)


def test_all_problems_come_at_once() -> None:
    """One refusal with a reason for each."""
    with pytest.raises(Refused) as refusal:
        Choices(family="x", multipliers={"w": 0.0}, base_head_dim=0)  # type: ignore[arg-type]
    assert [reason.field for reason in refusal.value.reasons] == ["family", "multipliers['w']", "base_head_dim"]
