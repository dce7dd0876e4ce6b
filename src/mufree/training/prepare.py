"""Everything that a pretraining run decides before its first update, or refuses. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from ..build import build_optimizer
from ..errors import Reasons, Refused
from ..lm.building import base_shapes, build
from ..lm.configs import at_width, new_config
from ..lm.tokenizer import load_tokenizer, tokenizer_hash
from ..mup import parametrize
from ..plan import OptimizerPlan, plan_optimizer
from ..recipe import Recipe
from .config import PretrainConfig
from .data import Corpus
from .grad_checkpoint import checkpoint_gradients
from .memory import check_memory
from .ranks import ALONE, Ranks
from .sources import Stream, read_data
from .weights import load_weights

if TYPE_CHECKING:
    from ..mup import Scales


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run, ready to start.

    Args:
        config: Its settings.
        model_config: The model's config.
        model: The fresh model.
        scales: Its μP scales.
        plan: The optimizer's plan.
        optimizer: The optimizer.
        tokenizer: A transformers tokenizer.
        corpus: The documents.
        train: Tokens to train on.
        valid: Tokens to validate on.
        notes: What a person should know of how it starts.
    """

    config: PretrainConfig
    model_config: dict[str, Any]
    model: Any
    scales: Scales
    plan: OptimizerPlan
    optimizer: Any
    tokenizer: Any
    corpus: Corpus
    train: Stream
    valid: Stream
    notes: tuple[str, ...] = ()

    def identity(self) -> dict[str, Any]:
        """What a run must share with the one that it goes on from, beside its settings."""
        return {
            "model_config": self.model_config,
            "tokenizer": tokenizer_hash(self.tokenizer),
            "train_tokens": self.train.digest,
            "valid_tokens": self.valid.digest,
        }


def prepare(config: PretrainConfig, ranks: Ranks = ALONE, *, fresh: bool = True) -> Prepared:
    """Decide everything from the settings: data, model, μP, optimizer.

    The global random state is set from ``config.seed``; the model is fresh and parametrized, the same on every rank.

    Args:
        config: The settings.
        ranks: The processes that train together; each reads its own data.
        fresh: Whether the run starts from here; one that goes on from a checkpoint needs no ``config.weights``.

    Raises:
        Refused: With every reason that the settings, the data and the tokenizer give.
    """
    reasons = Reasons()
    plan = reasons.attempt(plan_run, config)
    tokenizer = reasons.attempt(load_tokenizer, config.tokenizer)
    reasons.attempt(ranks.check_batch, config.batch_size)
    vocab_size = 257 if tokenizer is None else len(tokenizer)
    model_config = reasons.attempt(_model_config, config, vocab_size, ranks.size)
    data = reasons.attempt(read_data, config, tokenizer)
    if config.recipe and model_config is not None and tokenizer is not None:
        reasons.attempt(_check_recipe, config, model_config, tokenizer)
    plan, model_config = reasons.settled(plan), reasons.settled(model_config)
    corpus, train, valid = reasons.settled(data)
    mx.random.seed(config.seed)
    model = build(model_config)
    scales = parametrize(
        model,
        base_shapes(model_config, config.base_width),
        zero_readout=config.zero_readout,
        zero_query=config.zero_query,
        weight_decay=config.decay_rule,
    )
    notes = load_weights(model, config.weights) if config.weights is not None and fresh else ()
    if config.dtype != "float32":
        model.set_dtype(getattr(mx, config.dtype))
    if config.grad_checkpoint:
        checkpoint_gradients(model)
    with _named_as_options():
        optimizer = build_optimizer(plan, model, scales=scales)
    mx.eval(model.parameters())
    return Prepared(config, model_config, model, scales, plan, optimizer, tokenizer, corpus, train, valid, notes)


def plan_run(config: PretrainConfig) -> OptimizerPlan:
    """The optimizer's plan. It has no declared end: nothing about the end of a run changes an update."""
    with _named_as_options():
        return plan_optimizer(
            optimizer="schedule_free_adamw",
            lr=config.lr,
            warmup_steps=config.warmup,
            weight_decay=config.weight_decay,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            grad_accumulation_steps=config.accumulation,
            max_grad_norm=config.max_grad_norm,
        )


_OPTIONS = {
    "betas": "beta1",
    "betas[0]": "beta1",
    "betas[1]": "beta2",
    "warmup_steps": "warmup",
    "weight_lr_power": "lr",
    "optim_args.weight_lr_power": "lr",
    "grad_accumulation_steps": "accumulation",
}
"""By a planned setting: the option that it comes from, where that has another name."""


@contextmanager
def _named_as_options(**names: str) -> Iterator[None]:
    """Refusals inside name the options of a run, not what they are called further in."""
    try:
        yield
    except Refused as refused:
        known = _OPTIONS | names
        raise type(refused)(replace(r, field=known.get(r.field, r.field)) for r in refused.reasons) from None


def _model_config(config: PretrainConfig, vocab_size: int, ranks: int) -> dict[str, Any]:
    made = new_config(
        config.model_type,
        width=config.width,
        layers=config.layers,
        head_dim=config.head_dim,
        vocab_size=vocab_size,
        max_length=max(2048, config.seq_length),
        fields=config.model,
    )
    with _named_as_options(width="base_width"):
        at_width(made, config.base_width)
    check_memory(config, made, ranks)
    return made


def _check_recipe(config: PretrainConfig, model_config: dict[str, Any], tokenizer: Any) -> None:
    recipe = Recipe.from_mapping(config.recipe)
    recipe.check_covers(at_width(model_config, config.base_width), tokenizer_hash(tokenizer))
