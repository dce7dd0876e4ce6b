"""Record what torch's and transformers' optimizers do with fixed gradients.

Run: ``python reference/optimizers.py``. Writes ``tests/data/standard_optimizers.npz``. For each case the plan's
settings and the parameters after 1, 10 and 200 updates, in float32 by the class itself and in float64. Rules without a
class of their own here are written out in NumPy from what was published: lion, and the AdamW of transformers 4, whose
float64 result also stands for float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim import _muon as torch_muon
from transformers.optimization import Adafactor

from recording import Recording, command

NAME = "standard_optimizers"
PACKAGES = ("torch", "transformers", "numpy")
TOLERANCE = 4e-3  # torch's Muon orthogonalises in bfloat16, where another order of sums shows at once
SEED, UPDATES, KEPT = 7, 200, (1, 10, 200)
SHAPES = {"tall": (16, 10), "wide": (10, 16), "flat": (24,)}
MATRICES = ("tall", "wide")
RATES = {"lion": 1e-4, "adamax": 2e-3, "sgd": 1e-2, "adagrad": 1e-2, "adadelta": 1.0, "muon": 2e-2}
BETAS, EPS = (0.8, 0.95), 1e-4
Arrays = dict[str, np.ndarray]


def draws(names: tuple[str, ...]) -> tuple[Arrays, list[Arrays]]:
    """Start and gradients: a drift with noise of about 1e-2, float32 numbers held in float64."""
    random = np.random.RandomState(SEED)
    start = {name: random.normal(0, 0.5, shape).astype(np.float32) for name, shape in SHAPES.items()}
    drift = {name: random.normal(0, 0.5e-2, shape) for name, shape in SHAPES.items()}
    gradients = []
    for _ in range(UPDATES):
        noisy = {
            name: (drift[name] + random.normal(0, 1e-2, shape)).astype(np.float32) for name, shape in SHAPES.items()
        }
        gradients.append({name: noisy[name].astype(np.float64) for name in names})
    return {name: start[name].astype(np.float64) for name in names}, gradients


def plans() -> list[dict[str, Any]]:
    """Settings of every case: decay 0 and 0.1, default and other betas, eps and momenta."""
    cases: list[dict[str, Any]] = []
    other = {
        "adamw_torch": [{"betas": BETAS, "eps": EPS}],
        "adamw_hf": [{"betas": BETAS, "eps": EPS}],
        "adam": [{"betas": BETAS, "eps": EPS}],
        "adamax": [{"betas": BETAS, "eps": EPS}],
        "lion": [{"betas": BETAS}],
        "lion_32bit": [],
        "sgd": [{"momentum": 0.9}, {"momentum": 0.8, "optim_args": "nesterov=true"}],
        "adafactor": [],
        "adagrad": [{"eps": EPS}],
        "rmsprop": [{"eps": EPS, "optim_args": "alpha=0.9"}],
        "adadelta": [{"eps": EPS, "optim_args": "rho=0.8"}],
        "muon": [{"momentum": 0.8, "optim_args": "nesterov=false,ns_steps=3"}],
    }
    for name, variants in other.items():
        for variant in [{}, *variants]:
            for decay in (0.0, 0.1):
                case = {"optimizer": name, "lr": RATES.get(name.split("_")[0], 1e-3), "weight_decay": decay, **variant}
                if decay and name in ("adam", "adamax", "adagrad", "rmsprop", "adadelta"):
                    case["coupled_weight_decay"] = True
                cases.append(case)
    return cases


def option(plan: dict[str, Any], key: str, default: float) -> float:
    """A number from a case's option string."""
    found = dict(piece.split("=") for piece in plan.get("optim_args", "").split(",") if piece)
    text = found.get(key, str(default))
    return {"true": 1.0, "false": 0.0}[text] if text in ("true", "false") else float(text)


def torch_class(plan: dict[str, Any], parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The class that a name means, with the plan's numbers."""
    name, common = plan["optimizer"], {"lr": plan["lr"], "weight_decay": plan["weight_decay"]}
    adam = {"betas": plan.get("betas", (0.9, 0.999)), "eps": plan.get("eps", 1e-8)}
    if name in ("adamw_torch", "adam", "adamax"):
        kind = {"adamw_torch": torch.optim.AdamW, "adam": torch.optim.Adam, "adamax": torch.optim.Adamax}[name]
        return kind(parameters, **common, **adam)
    if name == "sgd":
        nesterov = bool(option(plan, "nesterov", 0))
        return torch.optim.SGD(parameters, **common, momentum=plan.get("momentum", 0.0), nesterov=nesterov)
    if name == "adafactor":
        return Adafactor(parameters, **common, relative_step=False, scale_parameter=False)
    if name == "adagrad":
        return torch.optim.Adagrad(parameters, **common, eps=plan.get("eps", 1e-10))
    if name == "rmsprop":
        return torch.optim.RMSprop(parameters, **common, alpha=option(plan, "alpha", 0.99), eps=plan.get("eps", 1e-8))
    if name == "adadelta":
        return torch.optim.Adadelta(parameters, **common, rho=option(plan, "rho", 0.9), eps=plan.get("eps", 1e-6))
    return torch.optim.Muon(
        parameters,
        **common,
        momentum=plan.get("momentum", 0.95),
        nesterov=bool(option(plan, "nesterov", 1)),
        ns_steps=int(option(plan, "ns_steps", 5)),
    )


def by_class(plan: dict[str, Any], dtype: torch.dtype, start: Arrays, gradients: list[Arrays]) -> list[Arrays]:
    """The kept states of a torch optimizer."""
    parameters = {name: torch.nn.Parameter(torch.tensor(value, dtype=dtype)) for name, value in start.items()}
    optimizer = torch_class(plan, list(parameters.values()))
    kept = []
    for update, gradient in enumerate(gradients, 1):
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradient[name], dtype=dtype)
        optimizer.step()
        if update in KEPT:
            kept.append({name: parameter.detach().numpy().copy() for name, parameter in parameters.items()})
    return kept


def lion(plan: dict[str, Any], w: np.ndarray, m: np.ndarray, _v: np.ndarray, g: np.ndarray, _t: int) -> np.ndarray:
    """Chen et al. 2023, algorithm 2; the decay first and as one factor, as bitsandbytes rounds it."""
    beta1, beta2 = plan.get("betas", (0.9, 0.99) if plan["optimizer"] == "lion" else (0.9, 0.999))
    direction = np.sign(beta1 * m + (1 - beta1) * g)
    m[...] = beta2 * m + (1 - beta2) * g
    return w * w.dtype.type(1 - plan["lr"] * plan["weight_decay"]) - plan["lr"] * direction


def adamw_hf(plan: dict[str, Any], w: np.ndarray, m: np.ndarray, v: np.ndarray, g: np.ndarray, t: int) -> np.ndarray:
    """The AdamW class of transformers 4.44: eps inside before correction, decay last."""
    (beta1, beta2), eps, lr = plan.get("betas", (0.9, 0.999)), plan.get("eps", 1e-8), plan["lr"]
    m[...] = beta1 * m + (1 - beta1) * g
    v[...] = beta2 * v + (1 - beta2) * g * g
    w = w - lr * np.sqrt(1 - beta2**t) / (1 - beta1**t) * m / (np.sqrt(v) + eps)
    return w - lr * plan["weight_decay"] * w


def by_formula(
    rule: Callable[..., np.ndarray], dtype: type, plan: dict[str, Any], start: Arrays, gradients: list[Arrays]
) -> list[Arrays]:
    """The kept states of a rule written out, every number in ``dtype``."""
    now = {name: value.astype(dtype) for name, value in start.items()}
    first, second = ({name: np.zeros(value.shape, dtype) for name, value in start.items()} for _ in range(2))
    kept = []
    for update, gradient in enumerate(gradients, 1):
        now = {n: rule(plan, w, first[n], second[n], gradient[n].astype(dtype), update) for n, w in now.items()}
        if update in KEPT:
            kept.append(now)
    return kept


def exact_newton_schulz(grad: torch.Tensor, coefficients: Any, steps: int, eps: float) -> torch.Tensor:
    """Torch's iteration without its cast to bfloat16."""
    a, b, c = coefficients
    tall = grad.size(0) > grad.size(1)
    x = grad.T if tall else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def states(plan: dict[str, Any]) -> tuple[list[Arrays], list[Arrays]]:
    """A case's kept states in float32 and in float64."""
    names = MATRICES if plan["optimizer"] == "muon" else tuple(SHAPES)
    start, gradients = draws(names)
    formulas = {"lion": lion, "lion_32bit": lion, "adamw_hf": adamw_hf}
    if plan["optimizer"] in formulas:
        rule = formulas[plan["optimizer"]]
        exact = by_formula(rule, np.float64, plan, start, gradients)
        return (exact if rule is adamw_hf else by_formula(rule, np.float32, plan, start, gradients)), exact
    own = by_class(plan, torch.float32, start, gradients)
    shipped = torch_muon._zeropower_via_newtonschulz
    torch_muon._zeropower_via_newtonschulz = exact_newton_schulz
    try:
        return own, by_class(plan, torch.float64, start, gradients)
    finally:
        torch_muon._zeropower_via_newtonschulz = shipped


def record() -> Recording:
    """Every case."""
    arrays, cases = {}, plans()
    for index, plan in enumerate(cases):
        single, double = states(plan)
        for update, one, two in zip(KEPT, single, double, strict=True):
            for name in one:
                arrays[f"{index}/{update}/{name}/float32"] = one[name].astype(np.float32)
                if update == UPDATES:
                    arrays[f"{index}/{update}/{name}/float64"] = two[name]
    return arrays, {"plans": cases, "seed": SEED, "updates": UPDATES, "kept": KEPT, "shapes": SHAPES}


if __name__ == "__main__":
    command(__doc__, NAME, record, PACKAGES)
