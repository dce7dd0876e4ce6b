"""The schedule-free algorithms as the paper states them, in plain NumPy float64: slow and obvious.

x, y and z are all kept, nothing is folded, and a scalar is a Python float. ``late`` says at which update a parameter
joins; it then starts as mufree documents, with a second moment whose corrected value is its squared gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass
class Reference:
    kind: str = "adamw"
    lr: float | Callable[[int], float] = 0.0025
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    r: float = 0.0
    weight_lr_power: float = 2.0
    silent_sgd_phase: bool = True
    scales: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)  # lr, eps, weight decay

    def run(self, start: Arrays, gradient: Callable[[Arrays, int], Arrays], updates: int) -> Iterator[dict]:
        x, y, z = ({name: w.copy() for name, w in start.items()} for _ in range(3))
        v: Arrays = {}
        lr_max, weight_sum = 0.0, 0.0
        for k in range(updates):
            rate, adaptive = self.rate(k)
            lr_max = max(lr_max, rate)
            weight = (k + 1) ** self.r * lr_max**self.weight_lr_power
            weight_sum += weight
            c = weight / weight_sum if weight_sum else 0.0
            for name, g in gradient(y, k).items():
                lr_scale, eps_scale, decay_scale = self.scales.get(name, (1.0, 1.0, 1.0))
                if self.kind == "sgd":
                    u = g
                else:
                    corrected = 1 - self.beta2 ** (k + 1)
                    v[name] = corrected * g**2 if name not in v else self.beta2 * v[name] + (1 - self.beta2) * g**2
                    u = g / (np.sqrt(v[name] / corrected) + self.eps * eps_scale) if adaptive else g
                u = u + self.weight_decay * decay_scale * y[name]
                z[name] = z[name] - rate * lr_scale * u
                x[name] = (1 - c) * x[name] + c * z[name]
                y[name] = self.beta1 * x[name] + (1 - self.beta1) * z[name]
            yield {
                **{
                    key: {n: a.copy() for n, a in part.items()}
                    for key, part in (("x", x), ("y", y), ("z", z), ("v", v))
                },
                "weight_sum": weight_sum,
                "lr_max": lr_max,
                "c": c,
                "scheduled_lr": rate,
            }

    def rate(self, k: int) -> tuple[float, bool]:
        peak = self.lr(k) if callable(self.lr) else self.lr
        if self.kind != "radam":
            return peak * (min(1.0, (k + 1) / self.warmup_steps) if self.warmup_steps else 1.0), True
        longest, power = 2 / (1 - self.beta2) - 1, self.beta2 ** (k + 1)
        length = longest - 2 * (k + 1) * power / (1 - power)
        if length <= 4:
            return peak * (0.0 if self.silent_sgd_phase else 1.0), False
        rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        return peak * rectified**0.5, True
