"""Which optimizer a fine-tune's settings mean, and what is said of it. Nothing is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from mufree import Refused
from mufree.lm.tuning.choice import Choice, choose
from mufree.lm.tuning.mapping import from_mapping

COSINE = {"name": "cosine_decay", "warmup": 10, "arguments": [1e-3, 120, 1e-7]}


def chosen(**changes: Any) -> Choice:
    return choose(from_mapping({"train": True, **changes}))


def refused(**changes: Any) -> list[str]:
    with pytest.raises(Refused) as caught:
        chosen(**changes)
    return [str(reason) for reason in caught.value.reasons]


def test_mlx_lms_names_are_looked_up_as_mlx_lm_does() -> None:
    """In lower case: a section that is spelt as the name was is read by nobody, and that is said."""
    says = "not read: optimizer_config.AdamW; mlx-lm reads optimizer_config.adamw"
    for name in ("AdamW", "adamw"):
        other = chosen(optimizer=name, optimizer_config={"AdamW": {"weight_decay": 5.0}})
        assert (other.settings, says in other.lines) == ({}, True)
        both = {"AdamW": {"weight_decay": 5.0}, "adamw": {"weight_decay": 0.05}}
        choice = chosen(optimizer=name, optimizer_config=both)
        assert (choice.settings, says in choice.lines) == ({"weight_decay": 0.05}, True)
    ours = chosen(optimizer="AdamW_Torch", optimizer_config={"AdamW_Torch": {"weight_decay": 0.3}})
    assert (ours.settings, any("not read" in line for line in ours.lines)) == ({"weight_decay": 0.3}, False)


def test_a_run_that_is_not_schedule_free_says_why() -> None:
    """Once, with what is named."""
    for given, says in (
        ({"optimizer": "adamw", "lr_schedule": COSINE}, "optimizer and lr_schedule are named; leave both out"),
        ({"optimizer": "lion"}, "optimizer is named; leave it out"),
        ({"lr_schedule": COSINE}, "lr_schedule is named; leave it out"),
    ):
        lines = chosen(**given).lines
        assert lines.count(f"not schedule-free, since {says} for a schedule-free run") == 1
    for name in (None, "schedule_free_sgd"):
        assert not any("not schedule-free" in line for line in chosen(optimizer=name).lines)


def test_a_schedule_beside_a_schedule_free_optimizer_has_one_reason() -> None:
    """None of it speaks of a warmup that nobody gave, and none advises what would be refused."""
    says = "lr_schedule: a schedule-free optimizer has none; leave lr_schedule out"
    more = " (its warmup of 10 is `warmup: 10`)"
    assert refused(optimizer="schedule_free_adamw", lr_schedule=COSINE) == [says + more]
    assert refused(optimizer="schedule_free_adamw", lr_schedule=COSINE, warmup=5) == [says + more]
    assert refused(optimizer="schedule_free_radam", lr_schedule=COSINE) == [says]
    own = {"schedule_free_adamw": {"scheduler": "cosine"}}
    assert [reason.partition(":")[0] for reason in refused(optimizer_config=own)] == [
        "optimizer_config.schedule_free_adamw.scheduler"
    ]


def test_which_way_the_rate_lies_is_said() -> None:
    said = chosen(learning_rate=1e-3).lines[1]
    assert said.endswith("schedule-free's best rate is usually 1 to 10 times an Adam's with a schedule")


def test_radam_says_that_it_has_no_warmup() -> None:
    assert "(warmup is not read)" in chosen(optimizer="schedule_free_radam").lines[0]
    assert not any("warmup is not read" in line for line in chosen().lines)
