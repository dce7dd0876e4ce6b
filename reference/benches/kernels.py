"""Kernels that one parameter's update takes, counted in the exported graph: how often a leaf is gone through."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree

from .harness import Options, Row

DESCRIPTION = "kernels a parameter"
CASES = {"without decay": {}, "decay": {"weight_decay": 0.1}, "scales": {"weight_decay": 0.1, "scales": True}}
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}


class Scales(dict):
    """Unequal multipliers for Adam-like optimizers, as μP makes them."""

    family = "adam"

    def __missing__(self, path: str) -> Any:
        return SimpleNamespace(lr=0.125 if path.startswith("a") else 1.0, eps=0.25, weight_decay=8.0)


def operations(names: list[str], settings: dict[str, Any], dtype: mx.Dtype) -> int:
    """How many operations one compiled update of matrices with these names takes, scalars included."""
    weights = {name: mx.random.normal((24, 16 + index)).astype(dtype) for index, name in enumerate(names)}
    scales = Scales(zip(names, map(Scales().__missing__, names), strict=True)) if "scales" in settings else None
    optimizer = AdamWScheduleFree(**settings | {"scales": scales})
    optimizer.init(weights)
    step = mx.compile(optimizer.apply_gradients, inputs=optimizer.state, outputs=optimizer.state)
    mx.eval(weights, optimizer.state)
    outputs = [step(weights, weights), optimizer.state]
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "graph.dot"
        mx.export_to_dot(str(graph), *[array for _, array in tree_flatten(outputs)])
        return len(re.findall(r'label ="[^"]+"', graph.read_text()))


def rows(options: Options) -> Iterator[Row]:
    """By how many operations an update of eight matrices exceeds one of four; the scalars' are the same."""
    for (case, settings), holds, (precision, dtype) in product(CASES.items(), "yx", DTYPES.items()):
        name = f"kernels a parameter, {precision}, holds {holds}, {case} / 1"
        if options.wants(name):
            chosen = settings | {"model_holds": holds}
            names = [f"{kind}{index}" for index in range(4) for kind in "ab"]
            few, many = operations(names[:4], chosen, dtype), operations(names, chosen, dtype)
            yield Row(name=name, ours=(many - few) / 4, theirs=1, unit="", limit=1)
