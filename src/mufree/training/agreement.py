"""What the ranks have in common before the first update: the same model, from the same bits, on the same data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import mlx.core as mx
from mlx.nn.layers import distributed
from mlx.utils import tree_flatten, tree_unflatten

from ..errors import Reasons
from ..random_state import random_key, set_random_key
from .checkpoint import load_state
from .config import PretrainConfig
from .ranks import Ranks, digest

LOCAL = frozenset({"data", "tokenizer", "cache", "weights", "out", "prompt"})
"""Options that may differ between ranks: where a machine keeps its files. What the files hold is compared."""

_SHARDED = (
    distributed.FullyShardedModule,
    distributed.AllToShardedLinear,
    distributed.ShardedToAllLinear,
    distributed.QuantizedAllToShardedLinear,
    distributed.QuantizedShardedToAllLinear,
)


def check_agreement(
    ranks: Ranks, config: PretrainConfig, identity: Mapping[str, Any], arrays: Iterable[tuple[str, Any]]
) -> None:
    """Refuse ranks that would not make the same updates.

    Args:
        ranks: The ranks.
        config: This rank's settings.
        identity: Of its model, tokenizer and data.
        arrays: Its weights and optimizer state, by path.

    Raises:
        Refused: On every rank, with every difference to rank 0 that comes first: of settings, else of what they
            name, else of weights.
    """
    if ranks.size == 1:
        return
    settings = {name: value for name, value in asdict(config).items() if name not in LOCAL}
    for part in (settings, identity, {"weights": digest(arrays)}):
        ranks.together(_compare, ranks.gather(dict(part)))


def state_of(model: Any, optimizer: Any) -> list[tuple[str, mx.array]]:
    """All that an update changes, by path."""
    return list(tree_flatten({"weights": model.parameters(), "optimizer": optimizer.state}))


def share_state(ranks: Ranks, model: Any, optimizer: Any) -> None:
    """Give every rank the weights, the optimizer's state and the random state of rank 0, bit for bit."""
    if ranks.size == 1:
        return
    weights = ranks.from_first(dict(tree_flatten(model.parameters())))
    state = ranks.from_first(dict(tree_flatten(optimizer.state)))
    random = ranks.from_first({"key": random_key()})
    if not ranks.is_first:
        load_state(optimizer, state)
        model.update(tree_unflatten(list(weights.items())))
        set_random_key(random["key"])


def _compare(rows: list[dict[str, Any]]) -> None:
    reasons = Reasons()
    for rank, row in enumerate(rows):
        for name, value in row.items():
            if value != rows[0][name]:
                message = f"rank {rank} has {value!r}, rank 0 has {rows[0][name]!r}; start all ranks alike"
                reasons.add("contradiction", name, message)
    reasons.refuse_if_any()


def check_whole(model: Any) -> None:
    """Refuse a model of which each rank holds a part only.

    Raises:
        Refused: With every such module. MLX's ring and MPI have no reduce-scatter, by which ``nn.fully_shard`` averages
            gradients, and μP's scales go by the paths and the full shapes of the parameters.
    """
    reasons = Reasons()
    for path, module in model.named_modules():
        if isinstance(module, _SHARDED):
            message = (
                f"{type(module).__name__} holds one rank's part of its weights; give the whole model, as every rank "
                "trains all of it on its part of the batch"
            )
            reasons.add("sharded", path or "model", message)
    reasons.refuse_if_any()
