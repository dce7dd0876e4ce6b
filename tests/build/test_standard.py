"""Built optimizers do what was planned: class, clipping, masks, scales, ends."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten, tree_map

import mufree
from mufree import Refused, build_optimizer, plan_optimizer
from mufree.build import Grouped, describe
from mufree.build.guarded import clipped as clipped_gradients
from mufree.build.guarded import global_norm
from mufree.plan.families import FAMILIES
from mufree.plan.names import BUILT

FLOAT32 = 1e-6  # one update of size 1e-3 on weights of size 1, a few roundings in float32
NORM = 1e-5  # a sum of 16 million float32 squares in blocks of 256
NAMED = {
    "adamw_torch": optim.AdamW,
    "adamw_torch_fused": optim.AdamW,
    "adamw_hf": optim.AdamW,
    "adamw": optim.AdamW,
    "adam": optim.Adam,
    "sgd": optim.SGD,
    "lion": optim.Lion,
    "adafactor": optim.Adafactor,
    "adagrad": optim.Adagrad,
    "adamax": optim.Adamax,
    "rmsprop": optim.RMSprop,
    "adadelta": optim.AdaDelta,
    "muon": optim.Muon,
    "schedule_free_adamw": mufree.AdamWScheduleFree,
    "schedule_free_radam": mufree.RAdamScheduleFree,
    "schedule_free_sgd": mufree.SGDScheduleFree,
}


@dataclass(frozen=True)
class FakeScale:
    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


class FakeScales(dict):
    """A mapping of scales with a family, as the optimizers ask for it."""

    def __init__(self, family: str, **scales: FakeScale) -> None:
        super().__init__({path.replace("__", "."): scale for path, scale in scales.items()})
        self.family = family


class Model(nn.Module):
    """Biases, a LayerNorm by a name that says nothing, an RMSNorm by name, and plain weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Linear(4, 4)
        self.ln = nn.LayerNorm(4)
        self.final_norm = nn.RMSNorm(4)
        self.head = nn.Linear(4, 3, bias=False)


def paths(model: nn.Module) -> set[str]:
    return {path for path, _ in tree_flatten(model.parameters())}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("clip", [None, 1.0])
def test_each_name_is_the_class_it_names(name: str, clip: float | None) -> None:
    """With or without clipping, and the plan is on it."""
    plan = plan_optimizer(optimizer=name, lr=1e-3, max_grad_norm=clip)
    optimizer = build_optimizer(plan)
    assert isinstance(optimizer, NAMED[name])
    assert optimizer.plan is plan
    assert describe(optimizer)["max_grad_norm"] == clip


@pytest.mark.parametrize("name", sorted(set(BUILT)))
def test_what_was_built_says_what_was_planned(name: str) -> None:
    """Read back from the object, for every name."""
    plan = plan_optimizer(optimizer=name, lr=0.5, max_grad_norm=2.0)
    said = describe(build_optimizer(plan))
    assert said["learning_rate"] == plan.peak_lr
    for field in ("betas", "eps", "momentum", "weight_decay"):
        if (
            (field in said or plan.family.schedule_free)
            and plan.form != "adafactor"
            and getattr(plan, field) is not None
        ):
            assert said[field] == getattr(plan, field), field
    if plan.form in ("adamw", "adam"):
        assert said["bias_correction"] is True
    for name, value in plan.options:
        assert said["silent" if name == "silent_sgd_phase" else name] == value, name
    if plan.form == "adafactor":
        assert (said["relative_step"], said["scale_parameter"], said["weight_decay"]) == (False, False, 0.0)


@pytest.mark.parametrize("form", [form for form, family in FAMILIES.items() if not family.schedule_free])
def test_the_table_of_decay_is_mlx_s_signatures(form: str) -> None:
    """Whether MLX's class takes a weight decay at all."""
    family = FAMILIES[form]
    takes = "weight_decay" in inspect.signature(getattr(optim, family.optimizer_name)).parameters
    assert takes == (family.decay != "none")


def test_adamw_torch_first_update_is_the_rate() -> None:
    """Without bias correction it would be 3.16 rates."""
    optimizer = build_optimizer(plan_optimizer(optimizer="adamw_torch", lr=1e-3))
    assert type(optimizer) is optim.AdamW
    after = optimizer.apply_gradients({"w": mx.array([0.5, -2.0])}, {"w": mx.array([1.0, 1.0])})["w"]
    assert (1 - after).tolist() == pytest.approx([1e-3, -1e-3], abs=FLOAT32)


@pytest.mark.parametrize("compiled", [False, True])
def test_one_global_norm_over_all_groups(compiled: bool) -> None:
    """(3, 4) and (12) in two groups have norm 13; the object clips in a hand-written loop, compiled too."""
    scales = FakeScales("sgd", a=FakeScale(lr=1.0), b=FakeScale(lr=0.5))
    plan = plan_optimizer(optimizer="sgd", lr=1.0, max_grad_norm=1.3)
    optimizer = build_optimizer(plan, scales=scales)
    assert isinstance(optimizer, Grouped)
    params = {"a": mx.zeros(2), "b": mx.zeros(1)}
    optimizer.init(params)

    def update(params: dict) -> dict:
        return optimizer.apply_gradients({"a": mx.array([3.0, 4.0]), "b": mx.array([12.0])}, params)

    step = mx.compile(update, inputs=optimizer.state, outputs=optimizer.state) if compiled else update
    after = step(params)
    assert after["a"].tolist() == pytest.approx([-0.3, -0.4], abs=FLOAT32)
    assert after["b"].tolist() == pytest.approx([-0.6], abs=FLOAT32)


@pytest.mark.parametrize("name", ["sgd", "schedule_free_sgd"])
def test_clipping_once_by_update_and_by_apply_gradients(name: str) -> None:
    """Both of the host's verbs clip, and neither does so twice."""
    moved = []
    for by_update in (False, True):
        model = nn.Linear(2, 1, bias=False)
        model.weight = mx.zeros((1, 2))
        optimizer = build_optimizer(plan_optimizer(optimizer=name, lr=1.0, max_grad_norm=0.5))
        gradients = {"weight": mx.array([[3.0, 4.0]])}
        if by_update:
            optimizer.update(model, gradients)
            moved.append(model.weight)
        else:
            moved.append(optimizer.apply_gradients(gradients, model.parameters())["weight"])
    assert mx.array_equal(moved[0], moved[1])
    assert moved[0].flatten().tolist() == pytest.approx([-0.3, -0.4], abs=FLOAT32)


def test_the_norm_is_summed_in_float32() -> None:
    """4096² + 3 bfloat16 entries of 0.01 have norm 41; summed in bfloat16, or in one float32 run, it is 43.8."""
    gradients = {"w": mx.full((4096 * 4096 + 3,), 0.01, mx.bfloat16)}
    entry = gradients["w"][0].item()
    assert global_norm(gradients).item() == pytest.approx(4096 * entry, rel=NORM)


def test_a_gradient_below_the_norm_is_untouched() -> None:
    """Bit for bit, and what was handed in is not modified."""
    gradients = {"w": mx.array([0.3, 0.4])}
    clipped = clipped_gradients(gradients, 1.0)
    assert mx.array_equal(clipped["w"], mx.array([0.3, 0.4]))
    clipped_gradients(gradients, 0.1)
    assert mx.array_equal(gradients["w"], mx.array([0.3, 0.4]))


def test_a_clipped_gradient_keeps_its_dtype() -> None:
    """The norm is float32, and would promote the parameters."""
    clipped = clipped_gradients({"a": mx.ones(4, mx.bfloat16), "b": mx.ones(4)}, 0.5)
    assert [clipped[path].dtype for path in "ab"] == [mx.bfloat16, mx.float32]


@pytest.mark.parametrize("scheduler", ["linear", {"name": "linear_schedule", "arguments": [1.0, 0.5, 9]}])
def test_a_schedule_past_its_end(scheduler: Any) -> None:
    """By itself it holds its last rate, or gives 0 where the plan refuses such updates."""
    settings = {"optimizer": "sgd", "lr": 1.0, "scheduler": scheduler, "total_updates": 4}
    held = mufree.build_lr_schedule(plan_optimizer(**settings))
    ended = mufree.build_lr_schedule(plan_optimizer(**settings, past_end="refuse"))
    steps = [mx.array(k, mx.uint64) for k in (3, 4, 100)]
    last = held(steps[0]).item()
    assert last > 0
    assert [held(step).item() for step in steps] == [last] * 3
    assert [ended(step).item() for step in steps] == [last, 0.0, 0.0]


def decayed(optimizer: optim.Optimizer) -> set[str]:
    """The paths that move at zero gradient."""
    model = Model()
    model.update(
        {path: mx.ones_like(value) for path, value in model.parameters().items() if isinstance(value, mx.array)}
    )
    before = dict(tree_flatten(model.parameters()))
    gradients = tree_map(mx.zeros_like, model.parameters())
    after = dict(tree_flatten(optimizer.apply_gradients(gradients, model.parameters())))
    return {path for path in before if not mx.array_equal(before[path], after[path])}


HF = {"embed.weight", "body.weight", "head.weight"}


@pytest.mark.parametrize("name", ["adamw_torch", "sgd", "lion", "schedule_free_adamw"])
def test_hf_decays_neither_biases_nor_norms(name: str) -> None:
    """By name part, and LayerNorms by their type."""
    plan = plan_optimizer(optimizer=name, lr=0.1, weight_decay=0.5, decay_mask="hf")
    assert decayed(build_optimizer(plan, Model())) == HF


def test_a_function_masks_by_path_and_array() -> None:
    """Only matrices of the body."""
    plan = plan_optimizer(
        optimizer="adamw", lr=0.1, weight_decay=0.5, decay_mask=lambda path, array: "body" in path and array.ndim == 2
    )
    assert decayed(build_optimizer(plan, Model())) == {"body.weight"}


def test_a_mask_without_a_model_is_refused() -> None:
    """A plan that needs the model says so; without decay it needs none."""
    plan = plan_optimizer(optimizer="adamw", lr=0.1, weight_decay=0.5, decay_mask="hf")
    assert plan.needs_model
    with pytest.raises(Refused, match="needs it; give the model"):
        build_optimizer(plan)
    build_optimizer(plan_optimizer(optimizer="adamw", lr=0.1, decay_mask="hf"))


@pytest.mark.parametrize("scheduler", ["constant", "linear"])
def test_scales_reach_rate_eps_and_decay_and_keep_their_ratios(scheduler: str) -> None:
    """Each member is the stock rule with the parameter's own numbers, at every update."""
    scales = FakeScales("adam", a=FakeScale(), b=FakeScale(lr=0.125, eps=0.5, weight_decay=8.0))
    plan = plan_optimizer(
        optimizer="adamw_torch", lr=0.1, weight_decay=0.2, eps=0.3, scheduler=scheduler, total_updates=8, warmup_steps=2
    )
    optimizer = build_optimizer(plan, scales=scales)
    schedule = mufree.build_lr_schedule(plan)
    alone = {
        "a": optim.AdamW(schedule, eps=0.3, weight_decay=0.2, bias_correction=True),
        "b": optim.AdamW(lambda step: 0.125 * schedule(step), eps=0.15, weight_decay=1.6, bias_correction=True),
    }
    ours = theirs = {"a": mx.array([1.0, 2.0]), "b": mx.array([1.0, 2.0])}
    for k in range(6):
        gradients = {path: mx.array([0.5, -1.0 - k]) for path in ours}
        ours = optimizer.apply_gradients(gradients, ours)
        theirs = {p: alone[p].apply_gradients({p: gradients[p]}, {p: theirs[p]})[p] for p in theirs}
    for path in ours:
        assert ours[path].tolist() == pytest.approx(theirs[path].tolist(), abs=FLOAT32)


@pytest.mark.parametrize(
    ("settings", "scales", "field"),
    [
        ({"optimizer": "muon"}, FakeScales("adam", w=FakeScale()), "scales"),
        ({"optimizer": "adafactor"}, FakeScales("adam", w=FakeScale()), "scales"),
        ({"optimizer": "sgd"}, FakeScales("adam", w=FakeScale()), "scales"),
        ({"optimizer": "adamw"}, FakeScales("sgd", w=FakeScale()), "scales"),
        (
            {"optimizer": "adam", "weight_decay": 0.1, "coupled_weight_decay": True},
            FakeScales("adam"),
            "coupled_weight_decay",
        ),
    ],
)
def test_scales_that_do_not_fit_are_refused(settings: dict[str, Any], scales: FakeScales, field: str) -> None:
    """No width rule, another family, or L2 through Adam."""
    with pytest.raises(Refused) as caught:
        build_optimizer(plan_optimizer(lr=0.1, **settings), scales=scales)
    assert [reason.field for reason in caught.value.reasons] == [field]


def test_a_parameter_without_a_scale_is_refused_by_path() -> None:
    """Every one of them."""
    with pytest.raises(Refused) as caught:
        build_optimizer(
            plan_optimizer(optimizer="adamw", lr=0.1), nn.Linear(2, 2), scales=FakeScales("adam", old=FakeScale())
        )
    assert {reason.field for reason in caught.value.reasons} == {"weight", "bias"}
    assert "['old']" in str(caught.value)


def test_muon_refuses_what_is_no_hidden_matrix() -> None:
    """At build by path and module type, and at init where no model was given."""
    plan = plan_optimizer(optimizer="muon", lr=0.02)
    with pytest.raises(Refused) as caught:
        build_optimizer(plan, Model())
    assert {r.field for r in caught.value.reasons} == paths(Model()) - {"body.weight", "head.weight"}
    named_otherwise = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4, bias=False))
    with pytest.raises(Refused) as caught:
        build_optimizer(plan, named_otherwise)
    assert [r.field for r in caught.value.reasons] == ["layers.0.weight"]
    experts = {"experts": mx.zeros((2, 3, 4)), "lm_head": {"weight": mx.zeros((4, 4))}, "w": mx.zeros((3, 4))}
    with pytest.raises(Refused) as caught:
        build_optimizer(plan).init(experts)
    assert {r.field for r in caught.value.reasons} == {"experts", "lm_head.weight"}


def test_muon_s_decay_is_a_decay() -> None:
    """At zero gradient, w falls by lr·wd·w; in MLX any positive decay does the same thing."""
    for decay in (0.1, 0.2):
        optimizer = build_optimizer(plan_optimizer(optimizer="muon", lr=0.5, weight_decay=decay))
        after = optimizer.apply_gradients({"w": mx.zeros((2, 2))}, {"w": mx.ones((2, 2))})["w"]
        assert after[0, 0].item() == pytest.approx(1 - 0.5 * decay, abs=FLOAT32)


def test_the_end_holds_or_is_refused() -> None:
    """Held: the last rate. Refused: eagerly by an exception, in a compiled step by changing nothing."""
    settings = {"optimizer": "sgd", "lr": 1.0, "scheduler": "linear", "total_updates": 2}
    one = {"w": mx.ones(1)}
    held = build_optimizer(plan_optimizer(**settings))
    refusing = build_optimizer(plan_optimizer(**settings, past_end="refuse"))
    values = {"w": mx.zeros(1)}
    for _ in range(3):
        values = held.apply_gradients(one, values)
    assert values["w"].item() == pytest.approx(-(1.0 + 0.5 + 0.5))
    values = {"w": mx.zeros(1)}
    for _ in range(2):
        values = refusing.apply_gradients(one, values)
    with pytest.raises(Refused, match="2 updates were planned"):
        refusing.apply_gradients(one, values)
    step = mx.compile(lambda v: refusing.apply_gradients(one, v), inputs=refusing.state, outputs=refusing.state)
    assert step(values)["w"].item() == values["w"].item()


def test_float16_parameters_are_refused() -> None:
    """There eps is 0."""
    model = nn.Linear(2, 2)
    model.set_dtype(mx.float16)
    with pytest.raises(Refused, match="weight: is float16"):
        build_optimizer(plan_optimizer(optimizer="adamw", lr=1e-3), model)


def test_schedule_free_gets_its_own_settings() -> None:
    """Warmup in updates, r and the power of the weights."""
    plan = plan_optimizer(
        optimizer="schedule_free_adamw", lr=1.0, warmup_ratio=0.5, total_updates=8, optim_args="r=0.5,weight_lr_power=0"
    )
    optimizer = build_optimizer(plan)
    expected = mufree.AdamWScheduleFree(1.0, warmup_steps=4, r=0.5, weight_lr_power=0.0)
    ours = theirs = {"w": mx.array([1.0, 2.0])}
    for k in range(6):
        gradients = {"w": mx.array([1.0, k - 2.0])}
        ours, theirs = optimizer.apply_gradients(gradients, ours), expected.apply_gradients(gradients, theirs)
    assert mx.array_equal(ours["w"], theirs["w"])
    assert mx.array_equal(optimizer.average(ours)["w"], expected.average(theirs)["w"])


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize(
    "named",
    [
        {"name": "cosine_decay", "arguments": [1e-4, 16, 1e-6]},
        {"name": "linear_schedule", "arguments": [1e-4, 0.0, 19]},
        {"name": "exponential_decay", "arguments": [1e-4, 0.9]},
        {"name": "step_decay", "arguments": [1e-4, 0.5, 3]},
    ],
    ids=lambda named: named["name"],
)
def test_mlx_lm_s_schedules_are_mlx_lm_s_bit_for_bit(named: dict[str, Any], warmup: int) -> None:
    """The rates are those of its own builder, the floats of the plan are the same numbers, and none is negative."""
    utils = pytest.importorskip("mlx_lm.tuner.utils")
    mapping = {**named, "warmup": warmup}
    if named["name"] == "linear_schedule" and not warmup:
        assert utils.build_schedule(mapping)(mx.array(19, mx.uint64)).item() < 0  # what must not be taken over
    plan = plan_optimizer(optimizer="adamw", lr=1e-4, scheduler=mapping)
    ours, theirs = mufree.build_lr_schedule(plan), utils.build_schedule(mapping)
    for k in range(30):
        step = mx.array(k, mx.uint64)
        assert ours(step).item() == max(theirs(step).item(), 0.0)
        assert plan.rate(k) == pytest.approx(ours(step).item(), abs=1e-4 * FLOAT32)


def test_adafactor_s_rate_acts() -> None:
    """With the rate alone MLX ignores it: 1e-3 and 10 would give the same parameters."""
    moved = []
    for lr in (1e-3, 10.0):
        optimizer = build_optimizer(plan_optimizer(optimizer="adafactor", lr=lr))
        moved.append(optimizer.apply_gradients({"w": mx.array([0.5])}, {"w": mx.array([1.0])})["w"].item() - 1.0)
    assert moved[1] / moved[0] == pytest.approx(1e4, rel=1e-3)


def test_the_clip_is_torch_s_to_its_epsilon() -> None:
    """max_norm / (norm + 1e-6): a norm of 3e-6 clipped to 1e-6 is scaled by a quarter, not by a third."""
    clipped = clipped_gradients({"w": mx.array([3e-6])}, 1e-6)
    assert clipped["w"].item() == pytest.approx(3e-6 / 4, rel=NORM)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw"},
        {"optimizer": "adamw_hf"},
        {"optimizer": "adamax"},
        {"optimizer": "adam", "weight_decay": 1e-9, "coupled_weight_decay": True},
    ],
    ids=lambda settings: settings["optimizer"],
)
def test_betas_of_zero_are_numbers_like_others(settings: dict[str, Any]) -> None:
    """Nothing is averaged, and each update is the rate by the gradient's sign."""
    optimizer = build_optimizer(plan_optimizer(lr=0.5, betas=(0.0, 0.0), **settings))
    params = {"w": mx.zeros(2)}
    for gradient, end in (([3.0, -2.0], [-0.5, 0.5]), ([-1.0, -4.0], [0.0, 1.0])):
        params = optimizer.apply_gradients({"w": mx.array(gradient)}, params)
        assert params["w"].tolist() == pytest.approx(end, abs=FLOAT32)


def test_a_frozen_parameter_needs_no_scale() -> None:
    """Scales are of what trains; the mask is asked about nothing else."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.layers[0].freeze()
    scales = FakeScales("adam", layers__1__weight=FakeScale(), layers__1__bias=FakeScale(lr=0.5))
    asked = []
    plan = plan_optimizer(
        optimizer="adamw", lr=0.1, weight_decay=0.5, decay_mask=lambda path, _array: asked.append(path) is None
    )
    optimizer = build_optimizer(plan, model, scales=scales)
    assert sorted(path for member in optimizer.members for path in member.paths) == sorted(scales) == sorted(asked)


@pytest.mark.parametrize("name", [name for name, built in BUILT.items() if FAMILIES[built.family].betas])
def test_betas_that_were_given_are_said(name: str) -> None:
    """Read back from the object, ours among them."""
    built = build_optimizer(plan_optimizer(optimizer=name, lr=0.5, betas=(0.8, 0.95)))
    assert describe(built)["betas"] == (0.8, 0.95)
