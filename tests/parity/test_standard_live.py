"""Where torch and transformers are installed, they still do what was recorded: a recording that is stale turns red."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for package in ("torch", "accelerate", "transformers"):
    pytest.importorskip(package)

import torch  # noqa: E402

import optimizers  # noqa: E402 - they need what is asked for above
import schedules  # noqa: E402
import trainer  # noqa: E402

DATA = Path(__file__).parent.parent / "data"
ROUNDING = {  # of the largest number recorded: another build of torch may add up in another order, for 200 updates
    "float64": 1e-13,
    "float32": 1e-6,
}
BFLOAT16 = 4e-3  # torch's Muon orthogonalises in bfloat16, where another order shows at once
TRAINED = 1e-5  # 40 updates of forward, backward and update in float32
NAMES = sorted({plan["optimizer"] for plan in optimizers.plans()})
STALE = "the recording is stale: run python reference/{}.py, and look at what changed"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices of ten rows are not worth sharing out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def recorded(name: str) -> tuple[Any, dict[str, Any]]:
    data = np.load(DATA / f"standard_{name}.npz")
    return data, json.loads(str(data["about"]))


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def apart(now: np.ndarray, then: np.ndarray) -> float:
    """The largest difference over the largest number."""
    return float(np.abs(now.astype(np.float64) - then).max() / np.abs(then).max())


def test_schedules_are_transformers_of_today() -> None:
    """Every sequence of up to 100 updates, bit for bit, and every error."""
    data, about = recorded("schedules")
    arrays, now = schedules.record(longest=100)
    assert len(now["cases"]) == len(about["cases"])
    for case, then in zip(now["cases"], about["cases"], strict=True):
        then.pop("sha256", None)
        assert as_json(case) == then, STALE.format("schedules")
    assert len(arrays) > 100
    for index, rates in arrays.items():
        assert np.array_equal(rates, data[index]), STALE.format("schedules")


def test_the_plans_are_the_script_s() -> None:
    """The same cases in the same order, from the same draws."""
    about = recorded("optimizers")[1]
    now = {"plans": optimizers.plans(), "seed": optimizers.SEED, "shapes": optimizers.SHAPES, "kept": optimizers.KEPT}
    assert as_json(now) == {key: about[key] for key in now}, STALE.format("optimizers")


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_is_torch_s_of_today(name: str) -> None:
    """The last case of each name, which has decay and no default left."""
    data = recorded("optimizers")[0]
    index, plan = [case for case in enumerate(optimizers.plans()) if case[1]["optimizer"] == name][-1]
    single, double = optimizers.states(plan)
    last = optimizers.UPDATES
    for kind, state in (("float32", single[-1]), ("float64", double[-1])):
        bound = BFLOAT16 if (name, kind) == ("muon", "float32") else ROUNDING[kind]
        for path, value in state.items():
            assert apart(value, data[f"{index}/{last}/{path}/{kind}"]) <= bound, STALE.format("optimizers")


@pytest.mark.parametrize("index", [2])
def test_the_trainer_is_transformers_of_today(index: int) -> None:
    """One of the four runs, with accumulation and clipping: the same arguments, the same weights."""
    data, about = recorded("trainer")
    x, y = trainer.data()
    assert np.array_equal(x, data["x"])
    assert np.array_equal(y, data["y"])
    then = about["runs"][index]
    first, last, arguments = trainer.trained(x, y, then["gradient_accumulation_steps"], then["max_grad_norm"])
    assert as_json(arguments) == then, STALE.format("trainer")
    for path, value in last.items():
        assert np.array_equal(first[path], data[f"first/{path}"]), STALE.format("trainer")
        assert apart(value, data[f"{index}/{path}"]) <= TRAINED, STALE.format("trainer")
