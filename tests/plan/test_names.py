"""Names: each of transformers' 41 is built or refused with its reason, and a new one is noticed."""

from __future__ import annotations

import mlx.optimizers as optim
import pytest

import mufree
from mufree import Refused, plan_optimizer, resolve_optimizer_name
from mufree.plan.names import BUILT, UNBUILT

EXACT = ["adamw_torch", "adamw_torch_fused", "sgd", "adafactor", "lion_32bit", "adagrad", "rmsprop"]
OTHER_LAYOUT = [
    "paged_adamw_32bit",
    "paged_lion_32bit",
    "rmsprop_bnb",
    "rmsprop_bnb_32bit",
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
    "adamw_anyprecision",
]
OURS = ["schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd"]
OLDER_OR_PLAIN = ["adamw_hf", "adamw", "adam", "lion", "adamax", "adadelta", "muon", "adamw_apex_fused"]
REFUSED = {
    "8 or 4 bits": [
        "adamw_bnb_8bit",
        "adamw_8bit",
        "paged_adamw_8bit",
        "lion_8bit",
        "paged_lion_8bit",
        "rmsprop_bnb_8bit",
        "adamw_torch_4bit",
        "adamw_torch_8bit",
    ],
    "second, slower average": ["ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit"],
    "low rank": [
        "galore_adamw",
        "galore_adamw_8bit",
        "galore_adafactor",
        "galore_adamw_layerwise",
        "galore_adamw_8bit_layerwise",
        "galore_adafactor_layerwise",
        "apollo_adamw",
        "apollo_adamw_layerwise",
    ],
    "inside the backward pass": ["lomo", "adalomo"],
    "amplifies slow gradients": ["grokadamw"],
    "clips each update": ["stable_adamw"],
}
ALL = [*EXACT, *OTHER_LAYOUT, *OURS, *(name for names in REFUSED.values() for name in names)]


def test_the_table_is_transformers_s_own_list() -> None:
    """A name that transformers adds turns this red."""
    training_args = pytest.importorskip("transformers.training_args")
    theirs = {item.value for item in training_args.OptimizerNames}
    assert theirs == set(ALL)
    assert len(ALL) == len(set(ALL)) == 41
    assert set(BUILT) | set(UNBUILT) == theirs | set(OLDER_OR_PLAIN)


@pytest.mark.parametrize("name", [*EXACT, *OTHER_LAYOUT, *OURS])
def test_a_built_name_is_a_class_of_mlx_or_ours(name: str) -> None:
    """And resolves whatever its case."""
    assert hasattr(optim, resolve_optimizer_name(f" {name.upper()} ")) or hasattr(mufree, resolve_optimizer_name(name))


@pytest.mark.parametrize("name", OTHER_LAYOUT)
def test_another_layout_is_built_and_said(name: str) -> None:
    """The same numbers, but not what the name promises."""
    plan = plan_optimizer(optimizer=name, lr=1e-3)
    assert any("the same numbers, but not" in text for text in plan.warnings)


@pytest.mark.parametrize("name", EXACT)
def test_an_exact_name_has_no_warning(name: str) -> None:
    """There is nothing to say."""
    assert plan_optimizer(optimizer=name, lr=1e-3).warnings == ()


@pytest.mark.parametrize(("why", "name"), [(why, name) for why, names in REFUSED.items() for name in names])
def test_a_refused_name_says_why_and_what_comes_nearest(why: str, name: str) -> None:
    """No name is silently replaced."""
    with pytest.raises(Refused) as caught:
        resolve_optimizer_name(name)
    (reason,) = caught.value.reasons
    assert (reason.code, reason.field) == ("not_built", "optimizer")
    assert why in reason.message
    assert "the nearest is " in reason.message


def test_a_misspelt_name_is_refused_with_its_neighbours() -> None:
    """And nothing is guessed."""
    with pytest.raises(Refused, match="did you mean 'adamw_torch'"):
        plan_optimizer(optimizer="adamw_toch", lr=1e-3)


@pytest.mark.parametrize("name", [None, 3, "", ["adamw"]])
def test_what_is_no_name_is_refused(name: object) -> None:
    """By name."""
    with pytest.raises(Refused, match="optimizer: "):
        resolve_optimizer_name(name)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_says_whose_it_is(name: str) -> None:
    """mlx-lm's has no bias correction."""
    assert any("bias" in note and "mlx-lm" in note for note in plan_optimizer(optimizer=name, lr=1e-3).notes)
