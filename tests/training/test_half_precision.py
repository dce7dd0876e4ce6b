"""A bfloat16 model, tuned as a whole: float32 state is what its updates need."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree, lm
from mufree.lm.configs import new_config
from mufree.lm.tokenizer import byte_tokenizer, encode_documents
from mufree.training.data import TokenStream, read_corpus, token_stream
from mufree.training.loop import Trainer

LOST = 0.01  # what bfloat16 may cost, as a share of float32's validation loss
UPDATES = 300
SEQUENCE, ROWS = 32, 4
Weights = list[tuple[str, mx.array]]


@cache
def streams() -> tuple[TokenStream, TokenStream, TokenStream]:
    """Half of the help topics to start from, the other half to tune on, and those that neither sees."""
    corpus, tokenizer = read_corpus(None), byte_tokenizer()
    half = len(corpus.train) // 2
    parts = {"first": corpus.train[:half], "second": corpus.train[half:], "valid": corpus.valid}
    first, second, valid = (
        token_stream(documents, lambda texts: encode_documents(tokenizer, texts), SEQUENCE, name)
        for name, documents in parts.items()
    )
    return first, second, valid


def trained(stream: TokenStream, start: Weights, dtype: mx.Dtype, *, rate: float, updates: int, masters: bool) -> Any:
    config = new_config("llama", width=32, layers=1, head_dim=16, vocab_size=257, max_length=64)
    mx.random.seed(0)
    model = lm.build(config)
    if start:
        model.load_weights(start)
    model.set_dtype(dtype)
    optimizer = AdamWScheduleFree(rate, betas=(0.9, 0.98), warmup_steps=20, master_weights=masters)
    trainer = Trainer(model, optimizer, lambda number: stream.shuffled(number, ROWS, 0))
    for _ in range(updates):
        trainer.advance()
    return trainer


@pytest.mark.slow
def test_float32_state_keeps_a_bfloat16_fine_tune_at_float32s_loss() -> None:
    """After 300 updates at a fine-tune's rate: within 1 % with float32 state, and without it not."""
    first, second, valid = streams()
    pretrained = trained(first, [], mx.float32, rate=0.01, updates=150, masters=True)
    with pretrained.optimizer.averaged(pretrained.model):
        start = tree_flatten(pretrained.model.parameters())
    losses = {}
    for name, dtype, masters in (("full", mx.float32, True), ("half", mx.bfloat16, True), ("bare", mx.bfloat16, False)):
        tuned = trained(second, start, dtype, rate=1e-3, updates=UPDATES, masters=masters)
        losses[name] = tuned.evaluate(valid.evenly(8, 32))
        iterate = tuned.optimizer.state["lm_head"]["weight"]["z"]
        assert iterate.dtype == (mx.float32 if masters else mx.bfloat16)
    print(losses, {name: losses[name] / losses["full"] - 1 for name in losses})
    assert losses["full"] < pretrained.evaluate(valid.evenly(8, 32)) - 0.05
    assert abs(losses["half"] / losses["full"] - 1) < LOST
    assert losses["bare"] / losses["full"] - 1 > LOST
